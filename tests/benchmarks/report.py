"""Report: what a run found, as Markdown that a terminal can show as well."""

from __future__ import annotations

from .tables import Column, Goal, Group, Line, Table

NONE = "–"


def markdown(head: list[str], rows: list[list[str]]) -> str:
    """A table whose columns are aligned; the first has words, the others figures."""
    widths = [max(len(row[number]) for row in (head, *rows)) for number in range(len(head))]

    def line(cells: list[str]) -> str:
        padded = [
            cell.ljust(width) if number == 0 else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return f"| {' | '.join(padded)} |"

    rule = [
        "-" * (width + 2) if number == 0 else "-" * (width + 1) + ":" for number, width in enumerate(widths)
    ]
    return "\n".join([line(head), f"|{'|'.join(rule)}|", *map(line, rows)])


def figure(value: float | None, digits: int) -> str:
    """A number with so many digits behind the point."""
    return NONE if value is None else f"{value:,.{digits}f}"


def table(shown: Table) -> str:
    """Ratios first. The first column of figures has the range of the rounds as well."""
    compared = [column for column in shown.columns if column.compared]
    head = ["", *(f"× ours, {column.name}" if len(shown.columns) > 1 else "× ours" for column in compared)]
    head += [f"{column.name}, {column.unit}" if column.unit else column.name for column in shown.columns]
    rows = []
    for line in shown.lines:
        if line.failed:
            continue
        ratios = [figure(shown.ratio(line, column.name), 2) for column in compared]
        cells = [figure(line.median(column.name), column.digits) for column in shown.columns]
        cells[0] += f" ({spread(line, shown.columns[0])})"
        rows.append([f"{line.library}: {line.name}", *ratios, *cells])
    return markdown(head, rows)


def absent(shown: Table) -> str:
    """The figures that could not be measured, by the reason; nothing if all could."""
    by_reason: dict[str, list[str]] = {}
    for line in shown.lines:
        if line.failed:
            name = line.library if line.name == NONE else f"{line.library} {line.name}"
            by_reason.setdefault(line.failed, []).append(f"`{name}`")
    return "; ".join(f"{', '.join(names)} ({reason})" for reason, names in by_reason.items())


def spread(line: Line, column: Column) -> str:
    """From the least round to the largest."""
    rounds = line.rounds[column.name]
    return f"{figure(min(rounds), column.digits)}–{figure(max(rounds), column.digits)}"


def goals(met: list[Goal]) -> str:
    """The goals, and whether they are met. A figure without a goal is in the tables."""
    rows = [
        [goal.what, figure(goal.measured, 2), _verdict(goal, goal.bound)]
        for goal in met
        if goal.bound is not None
    ]
    return markdown(["", "measured", "goal"], rows) if rows else ""


def _verdict(goal: Goal, bound: float) -> str:
    return f"{'≤' if goal.less else '≥'}{bound:,g}, {'met' if goal.is_met else '**missed**'}"


def group(shown: Group) -> str:
    """All of a group, without its heading."""
    if shown.failed:
        return f"Not measured: {shown.failed}"
    parts = [bounded] if (bounded := goals(shown.goals)) else []
    for number, each in enumerate(shown.tables, 1):
        if len(shown.tables) > 1:
            parts.append(f"**{each.title}**")
        parts.append(table(each))
        missing = absent(each)
        # Once, below the last of consecutive tables that lack the same lines.
        if missing and (number == len(shown.tables) or absent(shown.tables[number]) != missing):
            parts.append(f"Not in the table: {missing}.")
    return "\n\n".join(parts)


def facts(machine: dict[str, str]) -> str:
    """The machine, in one line."""
    return " · ".join(f"{name} {value}" for name, value in machine.items())
