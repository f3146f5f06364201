"""Report: what a run found, as Markdown that a terminal can show as well."""

from __future__ import annotations

from .tables import Column, Goal, Group, Line, Table

VERDICTS = {True: "met", False: "**missed**", None: ""}
NONE = "–"


def markdown(head: list[str], rows: list[list[str]], left: int) -> str:
    """A table whose columns stand below each other; the first `left` of them are words."""
    widths = [max(len(row[number]) for row in (head, *rows)) for number in range(len(head))]

    def line(cells: list[str]) -> str:
        padded = [
            cell.ljust(width) if number < left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return f"| {' | '.join(padded)} |"

    rule = ["-" * width if number < left else "-" * (width - 1) + ":" for number, width in enumerate(widths)]
    return "\n".join([line(head), line(rule), *map(line, rows)])


def figure(value: float | None, digits: int) -> str:
    """A number with so many digits behind the point."""
    return NONE if value is None else f"{value:,.{digits}f}"


def table(told: Table) -> str:
    """Ratios first; whoever could not be measured last, with the reason."""
    compared = [column for column in told.columns if column.compared]
    head = ["", "", *(f"× ours, {column.name}" if len(told.columns) > 1 else "× ours" for column in compared)]
    for column in told.columns:
        head.append(f"{column.name}, {column.unit}" if column.unit else column.name)
        if column is told.columns[0]:
            head.append("from – to")
    rows, failed = [], []
    for line in told.lines:
        if line.failed:
            failed.append(f"- {line.library}{'' if line.name == NONE else f', {line.name}'}: {line.failed}")
            continue
        ratios = [figure(told.ratio(line, column.name), 2) for column in compared]
        cells = []
        for column in told.columns:
            cells.append(figure(line.median(column.name), column.digits))
            if column is told.columns[0]:
                cells.append(spread(line, column))
        rows.append([line.library, line.name, *ratios, *cells])
    parts = [markdown(head, rows, left=2)]
    if failed:
        parts.append("Not in the table:\n\n" + "\n".join(failed))
    return "\n\n".join(parts)


def spread(line: Line, column: Column) -> str:
    """From the least round to the largest."""
    rounds = line.rounds[column.name]
    return f"{figure(min(rounds), column.digits)} – {figure(max(rounds), column.digits)}"


def goals(told: list[Goal]) -> str:
    """What was asked for, and whether it is so."""
    rows = [
        [
            goal.what,
            figure(goal.measured, 2),
            "none set" if goal.bound is None else f"{'≤' if goal.less else '≥'} {goal.bound:,g}",
            VERDICTS[goal.is_met],
        ]
        for goal in told
    ]
    return markdown(["ratio or figure", "measured", "goal", "verdict"], rows, left=1)


def group(told: Group) -> str:
    """All of a group, without its heading."""
    if told.failed:
        return f"Not measured: {told.failed}"
    parts = [goals(told.goals)] if told.goals else []
    for each in told.tables:
        parts += [f"**{each.title}**", table(each)]
    return "\n\n".join(parts)


def facts(machine: dict[str, str]) -> str:
    """What it was measured on, in one line."""
    return " · ".join(f"{name} {value}" for name, value in machine.items())
