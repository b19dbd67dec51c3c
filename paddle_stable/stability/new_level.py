"""Telling a spike, which is over soon, from a new level, which stays."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import final

SPAN = 1.25
"""A level is new with a value beyond the limit when `after` - 1 of that many times `after` values before it were too.

Were they counted in a row only, a level of which one value in ten falls below the limit would be refused for hundreds
of steps.
"""


@final
class NewLevel:
    """Remembers the newest values and which of them were beyond the limit of the day."""

    def __init__(self, after: int) -> None:
        """`after`: values beyond the limit that make a new level."""
        self._after = after
        self._newest: deque[tuple[float, bool]] = deque(maxlen=int(after * SPAN))

    @property
    def values(self) -> list[float]:
        """Those that were beyond the limit, oldest first."""
        return [value for value, beyond in self._newest if beyond]

    def completed_by_another(self) -> bool:
        """Whether one more value beyond the limit makes the new level."""
        return len(self.values) + 1 >= self._after

    def note(self, value: float, *, beyond: bool) -> None:
        """Remember one more value."""
        self._newest.append((value, beyond))

    def clear(self) -> None:
        """Forget, because the level has been taken."""
        self._newest.clear()

    def state(self) -> list[list[float | bool]]:
        """For a checkpoint; JSON."""
        return [list(entry) for entry in self._newest]

    def load_state(self, state: Iterable[Iterable[float | bool]]) -> None:
        """From a checkpoint. Where fewer values are remembered than were saved, the newest are kept."""
        self._newest.clear()
        self._newest.extend((float(value), bool(beyond)) for value, beyond in state)
