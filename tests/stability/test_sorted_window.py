"""The window's statistics are those of their definitions, whatever has passed through it."""

from __future__ import annotations

import numpy as np
import pytest

from paddle_stable.stability.sorted_window import SortedWindow


@pytest.mark.parametrize("count", [1, 2, 3, 4, 17, 60])
def test_statistics_are_those_of_the_newest_values(count: int) -> None:
    rng = np.random.default_rng(count)
    window, seen = SortedWindow(20), []
    for value in rng.integers(0, 9, size=count).tolist():  # small numbers, so that many are equal
        window.admit(float(value))
        seen = [*seen, float(value)][-20:]
        assert (window.values, len(window), window.largest) == (seen, len(seen), max(seen))
        assert window.median() == np.median(seen)
        assert [window.quantile(part) for part in (0.0, 0.1, 0.8, 1.0)] == pytest.approx(
            np.quantile(seen, [0.0, 0.1, 0.8, 1.0])
        )


@pytest.mark.parametrize("count", [1, 2, 3, 4, 17, 60])
def test_the_median_deviation_is_the_upper_one_of_the_middle_distances(count: int) -> None:
    rng = np.random.default_rng(count)
    window = SortedWindow(100)
    window.replace(rng.normal(size=count))
    for middle in (window.median(), -3.0, 0.1, 3.0):
        distances = sorted(abs(value - middle) for value in window.values)
        assert window.median_deviation(middle) == distances[count // 2]


def test_too_many_values_leave_the_newest() -> None:
    window = SortedWindow(3)
    window.replace([5.0, 1.0, 4.0, 2.0])
    assert window.values == [1.0, 4.0, 2.0]
