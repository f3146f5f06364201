"""Tables: the results of a run, as they are written to JSON, printed, and put on the page."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, NamedTuple


class Effort(NamedTuple):
    """How much is measured: the rounds of each figure, and what share of the full length each takes."""

    rounds: int = 7
    share: float = 1.0

    def of(self, full: int) -> int:
        """So many calls instead of `full`."""
        return max(1, round(full * self.share))


QUICK = Effort(rounds=2, share=0.05)
"""To try it: too few rounds and too short for figures to publish."""


@dataclass(frozen=True)
class Column:
    """One kind of figure. Where `compared`, there is a column of ratios to the line of ours as well."""

    name: str
    unit: str = ""
    digits: int = 1
    compared: bool = False


@dataclass(frozen=True)
class Line:
    """One subject: the rounds of each column by its name, or why there are none."""

    library: str
    name: str
    rounds: dict[str, list[float]] = field(default_factory=dict)
    failed: str = ""

    def median(self, column: str) -> float | None:
        """The median of the rounds; None where nothing was measured."""
        rounds = self.rounds.get(column)
        return median(rounds) if rounds else None

    def beside(self, other: Line, column: str) -> float:
        """The median of the ratios of each round."""
        return median(own / its for own, its in zip(self.rounds[column], other.rounds[column], strict=True))


@dataclass(frozen=True)
class Table:
    """Lines beside each other. `base` is the one that ratios are to: its library and its name.

    `drawn` names the column that becomes a picture, if one does.
    """

    title: str
    columns: list[Column]
    lines: list[Line]
    base: tuple[str, str] = ("", "")
    drawn: str = ""

    def line(self, library: str, name: str) -> Line:
        """The line of that name."""
        return next(line for line in self.lines if (line.library, line.name) == (library, name))

    def ratio(self, line: Line, column: str) -> float | None:
        """The line's median, as a multiple of the base's."""
        base, own = self.line(*self.base).median(column), line.median(column)
        return None if base is None or own is None or base == 0 else own / base


@dataclass(frozen=True)
class Course:
    """How many calls there were in each step of time, by who made them: drawn, and in no table."""

    title: str
    step_s: float
    limit: float
    """The most that a step may have, if each has its share of the limit."""
    counts: dict[str, list[int]]


@dataclass(frozen=True)
class Goal:
    """A goal, its measured value, and whether less is better; without a bound, the value only."""

    what: str
    measured: float
    bound: float | None = None
    less: bool = True

    @property
    def is_met(self) -> bool | None:
        """None without a goal."""
        if self.bound is None:
            return None
        return self.measured <= self.bound if self.less else self.measured >= self.bound


@dataclass(frozen=True)
class Group:
    """One subject of the page: how it was measured, in `method`, and the results."""

    name: str
    title: str
    method: str
    tables: list[Table] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)
    failed: str = ""
    courses: list[Course] = field(default_factory=list)


def to_json(groups: list[Group]) -> list[dict[str, Any]]:
    """The groups in their JSON form."""
    return [asdict(group) for group in groups]


def from_json(read: list[dict[str, Any]]) -> list[Group]:
    """The groups that `to_json` wrote."""
    return [
        Group(
            group["name"],
            group["title"],
            group["method"],
            [_table(table) for table in group["tables"]],
            [Goal(**goal) for goal in group["goals"]],
            group["failed"],
            [Course(**course) for course in group["courses"]],
        )
        for group in read
    ]


def _table(read: dict[str, Any]) -> Table:
    library, name = read["base"]
    return Table(
        read["title"],
        [Column(**column) for column in read["columns"]],
        [Line(**line) for line in read["lines"]],
        (library, name),
        read["drawn"],
    )
