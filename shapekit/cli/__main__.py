"""The entry point of the `shapekit` command, and of `python -m shapekit.cli`."""

from __future__ import annotations

import os
import signal
import sys
from io import TextIOWrapper
from typing import NoReturn

from shapekit._runtime.process import SWITCH
from shapekit.cli import BAD_INPUT, INTERRUPTED, TERMINATED
from shapekit.errors import missing

_NEEDED = ("click", "rich")


def main() -> NoReturn:
    """Run the command that the process was started with, and end the process."""
    # A stream is None if the process was started without it.
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115 - to the end of the process
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A letter that the terminal cannot show is replaced, instead of raising an error.
            stream.reconfigure(errors="replace")
    # Plans and the demo are shaped also where the calls of programs are not.
    os.environ.pop("SHAPEKIT_OFF", None)
    SWITCH.offs.clear()
    SWITCH.loud.clear()
    # As an exception, so that the code runs that restores the terminal.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    try:
        from shapekit.cli.main import cli  # noqa: PLC0415 - without click, the error below says how to install it

        cli(prog_name="shapekit")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _NEEDED:
            raise
        sys.stderr.write(f"shapekit: {missing('the shapekit command', 'cli')}\n")
        sys.exit(BAD_INPUT)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    sys.exit(0)


if __name__ == "__main__":
    main()
