"""Value: an immutable object that is what its fields are.

Equal fields make equal values; values hash, show their fields and pickle. What a class keeps beside its
fields is derived from them. (A dataclass does the same; making a dozen of them takes longer than
importing all the rest.)
"""

from __future__ import annotations

from typing import Any, ClassVar, Never


class Value:
    """The base: subclasses name their `fields`, list all attributes in `__slots__`, and call `_fill` once."""

    __slots__ = ()
    fields: ClassVar[tuple[str, ...]] = ()

    def _fill(self, **attributes: Any) -> None:
        for name, value in attributes.items():
            object.__setattr__(self, name, value)

    def _values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.fields)

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__ or not isinstance(other, Value):
            return NotImplemented
        return self is other or self._values() == other._values()

    def __hash__(self) -> int:
        return hash((self.__class__, self._values()))

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.fields)
        return f"{self.__class__.__qualname__}({shown})"

    def __setattr__(self, name: str, value: object) -> Never:
        raise AttributeError(f"{self.__class__.__name__} is immutable: make another one")

    def __delattr__(self, name: str) -> Never:
        raise AttributeError(f"{self.__class__.__name__} is immutable: make another one")

    def __setstate__(self, state: tuple[None, dict[str, Any]]) -> None:
        self._fill(**state[1])
