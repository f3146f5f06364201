"""Tags: short fingerprints of descriptions, to tell whether a state was written by the same program."""

from __future__ import annotations

from hashlib import blake2b


def tag(description: str) -> int:
    """A number of 32 bits that stands for a description: the same on every host and in every version."""
    return int.from_bytes(blake2b(description.encode(), digest_size=4).digest())
