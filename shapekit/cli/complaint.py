"""Complaint: one line that says what is wrong and how to fix it."""

from __future__ import annotations

from typing import IO, Any

import click

from shapekit.cli import BAD_INPUT
from shapekit.errors import ShapekitError

__all__ = ["Complaint", "complaint_of"]


class Complaint(click.ClickException):
    """What ends a command that cannot do what it was asked: one line on stderr, exit code 2."""

    exit_code = BAD_INPUT

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"shapekit: {' '.join(self.message.split())}", file=file, err=file is None)


def complaint_of(error: Exception) -> Complaint | None:
    """What to tell of an error; None if it is no fault of the input, but ours."""
    if isinstance(error, Complaint):
        return error
    if isinstance(error, click.UsageError):
        where = error.ctx.command_path if error.ctx else "shapekit"
        return Complaint(f"{error.format_message().rstrip('.')}; see {where} --help")
    if isinstance(error, click.ClickException):
        return Complaint(error.format_message())
    if isinstance(error, ShapekitError):
        return Complaint(str(error))
    if isinstance(error, ImportError) and error.name is None:
        return Complaint(str(error))  # errors.missing: names the line that installs it
    if isinstance(error, OSError):
        if error.filename is None:
            return Complaint(str(error))
        return Complaint(f"{error.filename}: {error.strerror}; check the path and who may use it")
    return None
