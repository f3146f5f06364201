"""Checked by mypy and pyright, never run: a user's own clock, made of public names alone."""

import threading

from shapekit import AsyncAlarm, Clock, Shaper


class Slow(Clock):
    """A subclass has all four methods."""

    def now_us(self) -> int:
        return 0

    def wall_us(self) -> int:
        return 0

    def sleep(self, seconds: float, alarm: threading.Event) -> None:
        alarm.wait(seconds * 2)

    async def asleep(self, seconds: float, alarm: AsyncAlarm) -> None:
        await alarm.wait(seconds * 2)


class Deaf(Clock):
    """This one lacks some."""

    def now_us(self) -> int:
        return 0


class Alike:
    """No subclass, and a clock all the same."""

    now_us = wall_us = lambda self: 0

    def sleep(self, seconds: float, alarm: threading.Event) -> None:
        alarm.wait(seconds)

    async def asleep(self, seconds: float, alarm: AsyncAlarm) -> None:
        await alarm.wait(seconds)


Shaper("1/s", clock=Slow())
Deaf()  # type: ignore[abstract]  # pyright: ignore[reportAbstractUsage]
Shaper("1/s", clock="now")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
