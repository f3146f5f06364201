"""What these tests share with those of waiting."""

from ..queue.conftest import by_hand, clock, stage

__all__ = ["by_hand", "clock", "stage"]
