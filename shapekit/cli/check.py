"""Check: a file of policies, validated table by table and put into words."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import click

from shapekit.cli import BAD_INPUT
from shapekit.cli.complaint import Complaint
from shapekit.cli.meaning import meaning
from shapekit.cli.output import console, json_option, print_json
from shapekit.errors import ConfigError, shortened
from shapekit.policy import Policy
from shapekit.waiting import max_wait_us

__all__ = ["check"]


class Finding(NamedTuple):
    """What one table is: a policy in words, or a problem."""

    table: str
    means: list[str]
    problem: str | None


@click.command
@click.argument("file", metavar="FILE.toml", type=click.Path())
@json_option
def check(file: str, as_json: bool) -> None:
    """Validate every table of FILE.toml as a policy, and say in words what each means.

    Whatever is wrong is named by table and field, one line each on stderr; the exit code is then 2.
    """
    findings = list(_findings(file, _read(file)))
    if as_json:
        tables = [finding._asdict() for finding in findings]
        print_json({"file": file, "ok": not any(finding.problem for finding in findings), "tables": tables})
    else:
        page = console()
        for finding in findings:
            if finding.problem is None:
                page.print(f"[{finding.table}]", style="bold")
                for line in finding.means:
                    page.print(f"  {line}", soft_wrap=True)
    problems = [finding.problem for finding in findings if finding.problem is not None]
    for problem in problems:
        Complaint(problem).show()
    if problems:
        sys.exit(BAD_INPUT)


def _read(file: str) -> Mapping[str, Any]:
    try:
        with open(file, "rb") as opened:
            tables = tomllib.load(opened)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Complaint(f"{file} is not TOML: {error}; mend that place") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise Complaint(f"{file} cannot be read: {reason}; name a TOML file") from None
    if not tables:
        raise Complaint(f'{file} holds no policy; write a table such as [stripe] with rate = "25/s"')
    return tables


def _findings(file: str, tables: Mapping[str, Any]) -> Iterator[Finding]:
    for name, table in tables.items():
        if not isinstance(table, dict):
            told = f"{file} {name}={shortened(table)} stands in no table; put it under one such as [stripe]"
            yield Finding(name, [], told)
            continue
        try:
            policy = Policy.from_toml(file, name)
        except ConfigError as error:
            yield Finding(name, [], str(error))
        else:
            yield Finding(name, meaning(policy, max_wait_us(table.get("max_wait"))), None)
            policy.close()
