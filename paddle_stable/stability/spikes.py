"""Spike detection that neither a spike nor a NaN can poison: robust statistics of the logarithm of past values.

A value is a spike when its logarithm lies more than k robust standard deviations above the median of a window, and the
value itself at least `ratio` times above it. Spikes are not admitted to the window; a level that stays is taken over.
Norms of real runs scatter widely around their median and yet have a sharp upper end, so that the deviation is also
taken from the upper end alone, and the lower of the two limits counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from paddle_stable.recipe import SpikeConfig
from paddle_stable.stability.new_level import NewLevel
from paddle_stable.stability.sorted_window import SortedWindow

MAD_TO_DEVIATION = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""
TAIL_FROM = 40
"""Values that have been seen before the upper end of their distribution is looked at."""
TAIL = (0.80, 0.97)
"""The part of the distribution that its upper end is judged by."""
TAIL_NORMAL = (0.8416, 1.8808)
"""Where these quantiles lie in a normal distribution of deviation 1."""
TAIL_ROOM = 1.3
"""What is judged by the upper end is a spike only beyond the window's largest value times this: few values, or a level
that has begun to rise, make an end that looks sharper than it is."""


@final
class SpikeDetector:
    """Watches one positive quantity. Decisions depend on the values it was given and on nothing else."""

    def __init__(self, config: SpikeConfig) -> None:
        """Start without a past."""
        self._config = config
        self._limit_factor = config.k * MAD_TO_DEVIATION
        self._least_excess = math.log(config.ratio)
        self._admitted = SortedWindow(config.window)
        """Logarithms."""
        self._new_level = NewLevel(config.rebaseline_after)

    @property
    def usual(self) -> float | None:
        """Median of the window; None before the first value."""
        return math.exp(self._admitted.median()) if len(self._admitted) else None

    def is_spike(self, value: float) -> bool:
        """Whether this would be a spike. Values that are not finite or not positive are none. Changes nothing.

        Nor is the value with which the new level is taken over.
        """
        return self._is_beyond(value) and not self._new_level.completed_by_another()

    def take(self, value: float) -> None:
        """Learn from a value: admit it, or remember that it was beyond the limit. One that is not usable is ignored."""
        if not _usable(value):
            return
        logarithm, beyond = math.log(value), self._is_beyond(value)
        if beyond and self._new_level.completed_by_another():
            self._admitted.replace([*self._new_level.values, logarithm])
            self._new_level.clear()
            return
        self._new_level.note(logarithm, beyond=beyond)
        if not beyond:
            self._admitted.admit(logarithm)

    def state(self) -> dict[str, Any]:
        """For a checkpoint; JSON."""
        return {"admitted": self._admitted.values, "new_level": self._new_level.state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """From a checkpoint. A window shorter than the saved one keeps the newest values."""
        self._admitted.replace(state["admitted"])
        self._new_level.load_state(state["new_level"])

    def _is_beyond(self, value: float) -> bool:
        seen = self._admitted
        if not _usable(value) or len(seen) < self._config.warmup_steps:
            return False
        middle = seen.median()
        limit = middle + self._limit_factor * seen.median_deviation(middle)
        if len(seen) >= TAIL_FROM:
            low, high = (seen.quantile(part) for part in TAIL)
            deviation = (high - low) / (TAIL_NORMAL[1] - TAIL_NORMAL[0])
            tail_limit = high + (self._config.k - TAIL_NORMAL[1]) * deviation
            limit = min(limit, max(tail_limit, seen.largest + math.log(TAIL_ROOM)))
        return math.log(value) > max(limit, middle + self._least_excess)


@final
@dataclass(frozen=True, slots=True)
class Spike:
    """What the watch says about one step."""

    flagged: tuple[str, ...]
    """Which of `loss` and `norm` were far beyond their usual level."""
    usual_norm: float
    """Median of the gradient norms of usual steps."""


@final
class SpikeWatch:
    """The detectors of a run. Fed with values that are the same on every process, they decide alike."""

    def __init__(self, config: SpikeConfig) -> None:
        """Start without a past."""
        self._config = config
        self._detectors = {"loss": SpikeDetector(config), "norm": SpikeDetector(config)}

    @property
    def skips(self) -> bool:
        """Whether a spike is left out, rather than limited."""
        return self._config.action in ("skip", "rollback")

    @property
    def rolls_back(self) -> bool:
        """Whether the run is to return to its last good state after a spike."""
        return self._config.action == "rollback"

    def judge(self, *, loss: float, norm: float) -> Spike | None:
        """Look at an ordinary, finite step and learn from it; a spike, or None.

        Of a step that will be skipped only the spikes are remembered, so that the values of steps that were never
        applied have no part in what is usual.
        """
        if self._config.action == "none":
            return None
        values = {"loss": loss, "norm": norm}
        beyond = [name for name, detector in self._detectors.items() if detector.is_spike(values[name])]
        flagged = tuple(name for name in beyond if name in self._config.watch)
        usual = self._detectors["norm"].usual
        for name, detector in self._detectors.items():
            if not (flagged and self.skips) or name in beyond:
                detector.take(values[name])
        return Spike(flagged, usual if usual is not None else norm) if flagged else None

    def state(self) -> dict[str, Any]:
        """For a checkpoint; JSON."""
        return {name: detector.state() for name, detector in self._detectors.items()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """From a checkpoint."""
        for name, detector in self._detectors.items():
            detector.load_state(state[name])


def _usable(value: float) -> bool:
    return math.isfinite(value) and value > 0.0
