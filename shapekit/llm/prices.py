"""Prices: what tokens cost, and how much may be spent.

Money is counted in integers: millionths of a cent, which are 8 decimal places. The cost of a call is rounded
up to a whole millionth, once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from os import PathLike, fspath
from typing import Any, NamedTuple, TypeAlias

from shapekit.algorithms.quota import Quota
from shapekit.config import DOTTED
from shapekit.errors import ConfigError, amount_text
from shapekit.llm.usage import TokenUsage
from shapekit.rate import COUNT, MAX_COUNT, count_of, exactly

__all__ = ["Spending"]

DIGITS = 8
"""The decimal places of an amount of money."""
_UNIT = 10**DIGITS
MOST = MAX_COUNT // _UNIT
"""The largest amount of a budget, and the most that one call is charged."""
_PER = 10**6
"""How many tokens a price is for."""

PriceSpec: TypeAlias = "Mapping[str, Any] | str | PathLike[str]"
"""A table of prices, or the path of a TOML or JSON file with one."""

_FIX = 'write prices={"currency": "USD", "some-model": {"input": "2.50", "cached": "1.25", "output": "10"}}'
_SPEND_FIX = 'write "50 USD/day", "1000 EUR/month" or "5 USD/hour"'
_SPEND = re.compile(rf"\s*({COUNT})\s*([^\W\d_]{{1,16}})\s*(?:/|\bper\b)\s*(\S.*?)\s*")
_CALENDAR = ("day", "week", "month")


class Price(NamedTuple):
    """The price of a million tokens of each kind, in millionths of a cent."""

    input: int
    cached: int
    written: int
    output: int
    reasoning: int

    def cost(self, usage: TokenUsage) -> int:
        """The cost of a call, rounded up, and at most `MOST`."""
        fresh = max(0, usage.input - usage.cached - usage.written)
        answered = max(0, usage.output - usage.reasoning)
        cost = (
            fresh * self.input
            + (usage.cached + usage.uncounted) * self.cached
            + usage.written * self.written
            + answered * self.output
            + usage.reasoning * self.reasoning
        )
        return min(-(-cost // _PER), MAX_COUNT)

    def most(self, usage: TokenUsage) -> int:
        """The most that a call with this many tokens can cost, whatever kinds they turn out to be."""
        given, answered = max(self.input, self.cached, self.written), max(self.output, self.reasoning)
        return -(-(usage.input * given + usage.output * answered) // _PER)


class Prices(NamedTuple):
    """The prices of some models."""

    currency: str | None
    models: Mapping[str, Price]

    def of(self, model: object) -> Price:
        """The price of a model, or ConfigError."""
        price = self.models.get(model) if isinstance(model, str) else None
        if price is None:
            known = ", ".join(self.models)
            bound = "is missing, and the price depends on it" if model is None else "has no price"
            fix = 'pass the arguments of the call, or model="…"' if model is None else "add it to prices="
            raise ConfigError("model", model, bound, f"{fix}; known are: {known:.200}")
        return price


class Spend(NamedTuple):
    """How much may be spent in a period."""

    currency: str
    quota: Quota


class Spending(NamedTuple):
    """How much money of a limit is spent, and how much is left."""

    name: str
    """The limit: "spend" or "total"."""
    per: str
    """The period: `"day"`, `"rolling:1hour"`."""
    currency: str
    """The currency of the amounts, such as `"USD"`."""
    limit: Decimal
    """The amount per period."""
    used: Decimal
    """The amount spent in this period, including reservations of calls that are not settled yet."""
    remaining: Decimal
    """The amount left."""
    resets_at: float
    """When the period ends, in epoch seconds; for a rolling one, when nothing counts any more."""
    resets_in: float
    """Seconds until `resets_at`."""


def money(units: int) -> Decimal:
    """The amount in units of the currency.

    >>> money(4_998_000_000), money(5_000_000_000)
    (Decimal('49.98'), Decimal('50'))
    """
    return Decimal(amount_text(units, DIGITS).replace(",", ""))


def spend_from(field: str, text: object, tz: str | None) -> Spend:
    """A budget of money: per calendar day, week or month, or in any window of another period.

    >>> quota = spend_from("spend", "5 USD/hour", None).quota
    >>> quota.limit, quota.per
    (500000000, 'rolling:1hour')
    """
    match = _SPEND.fullmatch(text) if isinstance(text, str) and len(text) <= 100 else None
    if match is None:
        raise ConfigError(field, text, "is not an amount of money in a period", _SPEND_FIX)
    amount, currency, per = count_of(match[1]), match[2], match[3]
    if amount > MOST:
        raise ConfigError(field, text, f"is more than {MOST:,} {currency}", "write it for a shorter period")
    if per not in _CALENDAR and ":" not in per:
        per, tz = f"rolling:{per}" if per[0].isdigit() else f"rolling:1{per}", None
    try:
        return Spend(currency, Quota(_units(field, text, amount), per, tz=tz))
    except ConfigError as error:
        raise (error if error.field == "tz" else ConfigError(field, text, error.bound, _SPEND_FIX)) from None


def limits_of_money(
    spend: str | None, total: str | None, prices: PriceSpec | None, tz: str | None
) -> tuple[dict[str, Spend], Prices | None]:
    """The limits of money by their names, and their prices; None if there are no such limits."""
    amounts = {"spend": spend, "total": total}
    limits = {name: spend_from(name, text, tz) for name, text in amounts.items() if text is not None}
    if tz is not None and all(limit.quota.tz is None for limit in limits.values()):
        raise ConfigError("tz", tz, "has no day, week or month of money", 'write spend="50 USD/day"')
    if not limits:
        if prices is not None:
            raise ConfigError("prices", prices, "come without a limit of money", 'write spend="50 USD/day"')
        return limits, None
    if prices is None:
        raise ConfigError("prices", prices, "is missing", _FIX)
    table = prices_from(prices)
    first, *_ = limits.values()
    for name, limit in limits.items():
        for source, currency in (("the prices", table.currency), ("spend=", first.currency)):
            if currency not in (None, limit.currency):
                bound = f"is not in the currency of {source}, {currency}"
                raise ConfigError(name, amounts[name], bound, "give both in one currency")
    return limits, table


def prices_from(given: PriceSpec) -> Prices:
    """The prices in a table, or in a file."""
    table = given if isinstance(given, Mapping) else _loaded(given)
    currency = table.get("currency")
    if currency is not None and not isinstance(currency, str):
        raise ConfigError("prices currency", currency, "is not the name of a currency", _FIX)
    models = {model: _price(model, fields) for model, fields in table.items() if model != "currency"}
    if not models:
        raise ConfigError("prices", given, "has no models", _FIX)
    return Prices(currency, models)


def _price(model: str, table: object) -> Price:
    where = f"prices[{model!r}]"
    if not isinstance(table, Mapping):
        raise ConfigError(where, table, "is not a table of prices", _FIX)
    for name, price in table.items():
        if name not in Price._fields:
            fix = DOTTED if isinstance(price, Mapping) else f"use {', '.join(Price._fields)}"
            raise ConfigError(where, name, "is unknown", fix)
    for name in ("input", "output"):
        if name not in table:
            raise ConfigError(where, dict(table), f"has no price of {name} tokens", _FIX)
    prices = {name: _units(f"{where} {name}", price, _exact(price)) for name, price in table.items()}
    given, answered = prices["input"], prices["output"]
    return Price(**{"cached": given, "written": given, "reasoning": answered, **prices})


def _exact(amount: object) -> Fraction | None:
    """The exact amount; None if this is not an amount."""
    if isinstance(amount, Decimal):
        return Fraction(amount) if amount.is_finite() else None
    if isinstance(amount, str):
        return count_of(amount) if re.fullmatch(COUNT, amount, re.ASCII) else None
    return exactly(amount)


def _units(field: str, value: object, amount: Fraction | None) -> int:
    fix = 'write it in digits, such as "2.50"'
    if amount is None or amount < 0:
        raise ConfigError(field, value, "is not an amount of money", fix)
    units = amount * _UNIT
    if units.denominator != 1:
        raise ConfigError(field, value, f"has more than {DIGITS} digits behind the point", "round it up")
    if units > MAX_COUNT:
        raise ConfigError(field, value, f"is more than {MOST:,}", fix)
    return int(units)


def _loaded(path: object) -> Mapping[str, Any]:
    if not isinstance(path, str | PathLike):
        raise ConfigError("prices", path, "is neither a table nor a path", _FIX)
    name = str(fspath(path))
    try:
        # Editors on Windows begin a file with a byte order mark, which neither parser accepts.
        with open(name, encoding="utf-8-sig") as file:
            text = file.read()
        if name.endswith(".json"):
            table = json.loads(text, parse_float=Decimal)
        else:
            import tomllib  # noqa: PLC0415 - only for a file

            table = tomllib.loads(text, parse_float=Decimal)
    except OSError as error:
        fix = "name a TOML or JSON file"
        raise ConfigError("prices", name, f"cannot be read ({error.strerror})", fix) from None
    except (ValueError, RecursionError) as error:
        bound = f"is not {'JSON' if name.endswith('.json') else 'TOML'} ({error!s:.200})"
        raise ConfigError("prices", name, bound, "mend the file") from None
    if not isinstance(table, dict):
        raise ConfigError("prices", name, "does not hold a table", _FIX)
    return table
