"""Redis keys: the text of any key as one that Redis Cluster places where it belongs.

A key of `name` is `prefix:{name:key}`: each lives in a slot of its own. Where the parts of a composite
have keys of their own, they are `prefix:{name}:part:key`: together in one slot, so that one script may
change them all. In a name `%`, `:`, `{` and `}` are written as `%25` and so on; a key may be any text.
What is longer than 256 bytes is cut to its beginning and a hash of it all, and is longer still, so
that no short key can be the same.
"""

from __future__ import annotations

from hashlib import sha256

from shapekit.stores.encoding import plain_bytes, plain_text, shown

LONGEST = 256
_ESCAPED = {ord(mark): f"%{ord(mark):02X}" for mark in "%:{}"}


class Keyspace:
    """The keys under one prefix."""

    def __init__(self, prefix: str) -> None:
        self._states = plain_bytes(f"{prefix}:{{")
        self._programs = plain_bytes(f"{prefix}:program:")

    def of_name(self, name: str) -> bytes:
        """What all keys of a name begin with that have one state each."""
        return self._states + _escaped(name) + b":"

    def of_part(self, name: str, part: str, key: str) -> bytes:
        """Where the state of one part of a composite is, if each has a key of its own."""
        return self._states + _escaped(name) + plain_bytes(f"}}:{part}:") + bounded(key)

    def of_programs(self, name: str) -> bytes:
        """Where the descriptions of what runs under `name` are."""
        return self._programs + _escaped(name)

    @property
    def pattern(self) -> bytes:
        """What every state's key matches, for SCAN."""
        return (
            b"".join(b"\\" + bytes([byte]) if byte in b"\\*?[]" else bytes([byte]) for byte in self._states)
            + b"*"
        )

    def shown(self, key: bytes) -> str:
        """A state's key as `name:key`, or `name:part:key`."""
        return shown(*self.place(key))

    def place(self, key: bytes) -> tuple[str, str, str]:
        """The name, the part, if each has a key of its own, and the key behind a state's key."""
        text = plain_text(key.removeprefix(self._states))
        colon, brace = text.find(":"), text.find("}")
        if 0 <= colon < brace:
            return _plain(text[:colon]), "", text[colon + 1 : -1]
        part, _, own = text[brace + 2 :].partition(":")
        return _plain(text[:brace]), part, own


def bounded(key: str) -> bytes:
    """The text of a key, or where it is too long, what stands for it."""
    text = plain_bytes(key)
    if len(text) <= LONGEST:
        return text
    end = LONGEST - 64
    while text[end] & 0xC0 == 0x80:
        end -= 1
    return text[:end] + b"#" * 8 + sha256(text).hexdigest().encode()


def _escaped(name: str) -> bytes:
    return plain_bytes(name.translate(_ESCAPED))


def _plain(escaped: str) -> str:
    for code, text in reversed(_ESCAPED.items()):
        escaped = escaped.replace(text, chr(code))
    return escaped
