"""The `shapekit` command: its subcommands by name, each loaded on first use.

Every problem becomes a CommandError: one line that says what is wrong, and how to fix it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import IO, Any, NamedTuple, NoReturn

import click

from shapekit.cli import BAD_INPUT, INTERRUPTED
from shapekit.errors import ShapekitError


class CommandError(click.ClickException):
    """Ends a command that cannot do what was asked: one line on stderr, exit code 2."""

    exit_code = BAD_INPUT

    def show(self, file: IO[Any] | None = None) -> None:
        from shapekit.cli.output import printable  # noqa: PLC0415 - only for errors

        message = printable(" ".join(self.message.split()))
        click.echo(f"shapekit: {message}", file=file, err=file is None)


_NUMBER = re.compile(r"-?[0-9]*\.?[0-9]+")


def spelled(text: str) -> float | str:
    """A duration in the spelling of a shell: a plain number is seconds."""
    return float(text) if _NUMBER.fullmatch(text) else text


def command_error(error: Exception) -> CommandError | None:
    """The CommandError that reports an error; None if the error is a bug and not a fault of the input."""
    if isinstance(error, CommandError):
        return error
    if isinstance(error, click.UsageError):
        where = error.ctx.command_path if error.ctx else "shapekit"
        return CommandError(f"{error.format_message().rstrip('.')}; see {where} --help")
    if isinstance(error, click.ClickException):
        return CommandError(error.format_message())
    if isinstance(error, OSError) and error.filename is not None:
        return CommandError(f"{error.filename}: {error.strerror}; check the path and who may use it")
    # An ImportError without a name comes from `errors.missing`, and says what to install.
    is_told = isinstance(error, ShapekitError | OSError) or (
        isinstance(error, ImportError) and error.name is None
    )
    return CommandError(str(error)) if is_told else None


class Subcommand(NamedTuple):
    """The module of a subcommand, its line in the list of subcommands, and the name of its function if that
    differs from the subcommand's.
    """

    module: str
    summary: str
    function: str = ""


COMMANDS = {
    "demo": Subcommand("demo", "Show what shaping gains, before an API that enforces its limit."),
    "plan": Subcommand("plan", "Show when the first, the n-th and the last of many calls leave."),
    "simulate": Subcommand("simulate", "Compare strategies on the same arrivals."),
    "check": Subcommand("check", "Validate a TOML file of policies, and explain each."),
    "top": Subcommand("top", "Show a live table of the keys of a store."),
    "hold": Subcommand("control", "Stop the calls on a key for a while."),
    "resume": Subcommand("control", "End the hold of a key early."),
    "set": Subcommand("control", "Set limits for every process, instead of the code's.", "set_"),
    "unset": Subcommand("control", "Remove what was set: the limits in the code apply again."),
    "settings": Subcommand("control", "Show what is set, by whom, and until when."),
    "apply": Subcommand("control", "Set what a file says, and show what that changes."),
    "reset": Subcommand("control", "Forget a key: its queue, its hold, its counts."),
}


class LazyGroup(click.Group):
    """Loads subcommands by name, and reports every problem in one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        entry = COMMANDS[cmd_name]
        module = import_module(f"shapekit.cli.{entry.module}")
        command: click.Command = getattr(module, entry.function or cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.summary) for name, command in COMMANDS.items()])

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> NoReturn:
        """Run, and exit: 0 for done, 2 for not possible as asked, 130 for Ctrl-C."""
        extra["standalone_mode"] = False
        try:
            code = super().main(args, *rest, **extra)
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message(), err=True)
            sys.exit(BAD_INPUT)
        except click.Abort:
            sys.exit(INTERRUPTED)
        except Exception as error:
            problem = command_error(error)
            if problem is None:
                raise
            problem.show()
            sys.exit(problem.exit_code)
        sys.exit(code if isinstance(code, int) else 0)


@click.command(
    "shapekit",
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="shapekit", prog_name="shapekit")
def cli() -> None:
    """Shape outgoing calls: look at limits, try them out, and hold, resume or reset keys.

    Every subcommand has --help, and --json for machines. Exit codes: 0 done, 2 not possible as asked
    (one line on stderr says what and how to fix it), 130 interrupted.
    """
