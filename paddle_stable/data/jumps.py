"""One-step changes far beyond the usual: wrong units for a few rows, and changes of level such as share splits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from paddle_stable.data.series_table import Floats

MIN_Z = 15.0
"""Robust z of a jump. Crashes of a stock index reach 12 (S&P 500, 2008) and the VIX on its worst day 13."""
MIN_FACTOR = 1.5
"""A jump at least multiplies or divides by this: a share split at least halves, a wrong unit is a power of ten."""
COMES_BACK_WITHIN = 5
"""Rows after which a change counts as a new level."""


@final
@dataclass(frozen=True, slots=True)
class Jump:
    """The value leaves what is usual at `row`."""

    row: int
    factor: float
    """Value divided by the last usual one."""
    z: float
    """Robust z of the log change: its magnitude over 1.4826 MAD of the training rows' log changes."""
    rows: tuple[int, ...]
    """Rows with a value until it is back, beginning with `row`; none when it stays at the new level."""

    def __str__(self) -> str:
        size = f"x{self.factor:.3g} in one step, {self.z:.0f} times the usual"
        if self.rows:
            return f"{size}, back after {len(self.rows)} row{'s' if len(self.rows) > 1 else ''}: like a wrong unit"
        return f"{size}, and stays there: like a share split or a change of unit (adjust earlier values)"


def find_jumps(values: Floats, train_rows: int) -> list[Jump]:
    """Jumps of one column [rows], NaN where there is no value.

    Only positive values have log changes: a column with more than a few others has no jumps that could be found
    without knowing its unit. What is usual comes from the first `train_rows` rows, and what is found there does not
    depend on the rows behind them: one that jumps away there and comes back later has stayed away.
    """
    rows = np.flatnonzero(np.isfinite(values) & (values > 0))
    train_end = int(np.searchsorted(rows, train_rows))
    if len(rows) < 3 or train_end < 0.999 * np.isfinite(values[:train_rows]).sum():
        return []
    logs = np.log(values[rows])
    changes = np.abs(np.diff(logs))
    usual = _usual(changes[rows[1:] < train_rows])
    if usual == 0.0:
        return []
    limit = max(MIN_Z * usual, math.log(MIN_FACTOR))
    jumps = []
    last = 0
    """Position of the last row at a usual level."""
    for position in np.flatnonzero(changes > limit) + 1:
        if position <= last:  # inside an excursion that has come back, or the way back
            continue
        level = logs[position - 1]
        change = float(logs[position] - level)
        seen = logs[:train_end] if position < train_end else logs
        after = np.abs(seen[position + 1 : position + 1 + COMES_BACK_WITHIN] - level) <= abs(change) / 4
        back = int(np.argmax(after)) + 1 if after.any() else 0
        away = tuple(rows[position : position + back].tolist())
        jumps.append(Jump(int(rows[position]), math.exp(change), abs(change) / usual, away))
        last = position + back
    return jumps


def _usual(changes: Floats) -> float:
    """Robust standard deviation of the changes that are not zero: many series stand still on many days."""
    moves = changes[changes > 0]
    return float(1.4826 * np.median(moves)) if len(moves) else 0.0
