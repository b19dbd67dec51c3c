"""The newest values of a quantity, in the order of their size as well: quantiles in every training step."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable
from typing import final


@final
class SortedWindow:
    """Holds at most so many values; the oldest makes room."""

    def __init__(self, length: int) -> None:
        """Empty.

        Args:
            length: values that it holds at most.
        """
        self._length = length
        self._values: deque[float] = deque()
        """Oldest first."""
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._sorted)

    @property
    def values(self) -> list[float]:
        """Oldest first."""
        return list(self._values)

    @property
    def largest(self) -> float:
        """Of a window that is not empty."""
        return self._sorted[-1]

    def admit(self, value: float) -> None:
        """Take the newest value in. It has to be a number: NaN has no place in an order."""
        self._values.append(value)
        insort(self._sorted, value)
        if len(self._values) > self._length:
            del self._sorted[bisect_left(self._sorted, self._values.popleft())]

    def replace(self, values: Iterable[float]) -> None:
        """Hold these instead, oldest first; of too many the newest."""
        self._values.clear()
        self._sorted.clear()
        for value in values:
            self.admit(float(value))

    def quantile(self, part: float) -> float:
        """Of a window that is not empty; between neighbours by linear interpolation."""
        place = part * (len(self._sorted) - 1)
        below = int(place)
        above = min(below + 1, len(self._sorted) - 1)
        return self._sorted[below] + (place - below) * (self._sorted[above] - self._sorted[below])

    def median(self) -> float:
        """Of a window that is not empty."""
        half = len(self._sorted) // 2
        return self._sorted[half] if len(self._sorted) % 2 else (self._sorted[half - 1] + self._sorted[half]) / 2

    def median_deviation(self, middle: float) -> float:
        """Median of the distances to `middle` (the upper one of two), of a window that is not empty.

        The nearest half of an ordered list is a run of neighbours; its beginning is searched for by halving.
        """
        ordered, count = self._sorted, len(self._sorted) // 2 + 1
        low, high = 0, len(ordered) - count
        while low < high:
            start = (low + high) // 2
            if middle - ordered[start] > ordered[start + count] - middle:
                low = start + 1
            else:
                high = start
        return max(middle - ordered[low], ordered[low + count - 1] - middle)
