"""Settings: what operators have set for a name on a store, as one process knows it.

Every decision tells the store which version the process knows. If that is not the one in force, the store
answers with the text of the one that is, and the decision is made by that. So all go by an override from
their next decision on, and no call asks for it.

Operators set them from a policy or from the command line: `changed`, and what goes before and after it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from weakref import WeakMethod

from shapekit._runtime.drivers import Driver, Twin
from shapekit.algorithms.inflight import Concurrency
from shapekit.errors import ConfigError
from shapekit.rate import SECOND_US

if TYPE_CHECKING:
    from shapekit.algorithms.overrides import Override, Overrides
    from shapekit.stores.base import Store

__all__ = ["Settings", "Stored", "changed", "in_force", "legible", "placed", "set_by", "without"]


PERMITS = ".permits"
"""What the name of a policy's permits ends with: they go by the settings of the policy."""
_MOST = 1_000

Listener: TypeAlias = "Callable[[str, Overrides, Overrides], object]"


class Stored(NamedTuple):
    """What lies in the store for a name."""

    version: str = ""
    """A new text with each change; empty if there never was one."""
    text: str = ""
    """The overrides, as `written` gives them."""


class _Known(NamedTuple):
    """What a process knows, which changes as a whole."""

    stored: Stored
    overrides: Overrides
    """What is in force."""
    ends_us: int | None
    """When the first of them ends by itself, on the store's clock."""


_NONE = _Known(Stored(), (), None)


class Settings:
    """The overrides of one name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.known = _NONE
        self._listeners: tuple[WeakMethod[Listener], ...] = ()
        self._programs: dict[tuple[Any, Override], Any] = {}

    def hear(self, stored: Stored, now_us: int) -> None:
        """Take in what lies in the store, and that it is so late."""
        before = self.known
        overrides = before.overrides if stored == before.stored else self._read(stored)
        in_force = tuple([one for one in overrides if not one.is_over(now_us)])
        ends = [round(one.until * SECOND_US) for one in in_force if one.until is not None]
        known = _Known(stored, in_force, min(ends, default=None))
        if known != before:
            self.known = known
        if in_force != before.overrides:
            self._programs = {}
            for known_listener in self._listeners:
                if (listener := known_listener()) is not None:
                    listener(self.name, before.overrides, in_force)

    def listen(self, listener: Listener) -> None:
        """Call this method with the name and the overrides before and since, as long as its object lives.

        It is called under whatever lock the caller has, and only notes it.
        """
        living = [known for known in self._listeners if known() is not None]
        self._listeners = (*living, WeakMethod(listener))

    def is_over(self, now_us: int) -> bool:
        """Whether one of the overrides has ended since."""
        return self.known.ends_us is not None and now_us >= self.known.ends_us

    def program(self, program: Any, key: Any) -> Any:
        """The program that decides about a key: the given one, or that with the limits of an override."""
        if not self.known.overrides or key.__class__ is not str:
            return program
        from shapekit.algorithms.overrides import chosen  # noqa: PLC0415 - only where something is set

        override = chosen(self.known.overrides, key)
        if override is None:
            return program
        # By identity: to hash a program takes longer than all the rest.
        place = id(program), override
        found = self._programs.get(place)
        if found is None or found[0] is not program:
            if len(self._programs) >= _MOST:
                self._programs.clear()
            found = self._programs[place] = program, self._effective(program, override)
        return found[1]

    def _effective(self, program: Any, override: Override) -> Any:
        from shapekit.algorithms.overrides import effective  # noqa: PLC0415 - only where something is set

        try:
            return effective(program, override)
        except ConfigError as error:
            self._warn("an override of %r is ignored, and the limit in the code applies: %s", error)
            return program

    def _read(self, stored: Stored) -> Overrides:
        from shapekit.algorithms.overrides import read  # noqa: PLC0415 - only where something is set

        try:
            return read(stored.text)
        except ConfigError as error:
            self._warn("the overrides of %r are ignored, and the limits in the code apply: %s", error)
            return ()

    def _warn(self, words: str, error: ConfigError) -> None:
        import logging  # noqa: PLC0415 - only who has something to say loads it

        logging.getLogger("shapekit.store").warning(words, self.name, error)


def settings_name(name: str, program: Any) -> str:
    """The name whose settings a program goes by."""
    return name.removesuffix(PERMITS) if isinstance(program, Concurrency) else name


# how operators set limits


async def in_force(driver: Driver, store: Store, name: str) -> Overrides:
    """The overrides of a name."""
    return legible(store, await driver.ask(Twin(store.read_overrides, store.aread_overrides), name))


async def changed(
    driver: Driver, store: Store, name: str, change: Callable[[Overrides], Overrides]
) -> tuple[Overrides, Overrides]:
    """Change the overrides of a name in one step; returns those before and since."""
    from shapekit.algorithms.overrides import written  # noqa: PLC0415 - only who sets something asks

    look = Twin(store.read_overrides, store.aread_overrides)
    write = Twin(store.write_overrides, store.awrite_overrides)
    while True:
        known = await driver.ask(look, name)
        before = legible(store, known)
        after = change(before)
        if written(after) == known.text or await driver.ask(write, name, written(after), known):
            return before, after


def legible(store: Store, stored: Stored) -> Overrides:
    """What is said, without what has ended; nothing where it is illegible, as for decisions."""
    from shapekit.algorithms.overrides import read  # noqa: PLC0415 - only where something is set

    try:
        found = read(stored.text)
    except ConfigError:
        return ()
    now = store.clock.now_us()
    return tuple([one for one in found if not one.is_over(now)])


def without(overrides: Overrides, key: str | None) -> Overrides:
    """The overrides of other keys."""
    return tuple([one for one in overrides if one.key != key])


def set_by() -> str:
    """Who runs this process, and where."""
    import getpass  # noqa: PLC0415 - only who sets something asks
    import socket  # noqa: PLC0415 - likewise

    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def placed(override: Override) -> Callable[[Overrides], Overrides]:
    """The change that sets an override, instead of any of the same key."""
    return lambda overrides: (*without(overrides, override.key), override)
