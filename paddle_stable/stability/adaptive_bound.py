"""Bounds on the gradient norm that follow the norms of the run: plain Python over numbers already on the host."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, final

from paddle_stable.recipe import AdaptiveClipConfig
from paddle_stable.stability.new_level import NewLevel
from paddle_stable.stability.sorted_window import SortedWindow


class AdaptiveBound(ABC):
    """A bound that learns from the norms of applied steps. Values that are not finite teach it nothing."""

    method: ClassVar[str]
    """`clip.adaptive.method`."""

    @abstractmethod
    def bound(self, norm: float) -> float:
        """The bound for a step of this norm; inf while there is too little to go by. Changes nothing."""

    @abstractmethod
    def learn(self, norm: float, clipped: float) -> None:
        """Take in an applied step: its finite norm, and what was left of it after the clip."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """For a checkpoint; JSON."""

    @abstractmethod
    def load_state(self, state: Mapping[str, Any]) -> None:
        """From a checkpoint."""


def build_bound(config: AdaptiveClipConfig) -> AdaptiveBound:
    """The bound that the recipe asks for."""
    match config.method:
        case "percentile":
            return PercentileBound(config)
        case "zscore":
            return ZScoreBound(config)


@final
class PercentileBound(AdaptiveBound):
    """AutoClip: a percentile of past norms (Seetharaman et al. 2020, arXiv 2007.14469), of a window of them.

    Norms count as they were before the clip: a spike is one among many and hardly moves a percentile, and a level that
    stays is followed.
    """

    method: ClassVar[str] = "percentile"

    def __init__(self, config: AdaptiveClipConfig) -> None:
        self._config = config
        self._norms = SortedWindow(config.window)

    def bound(self, norm: float) -> float:
        """The percentile of the window, between neighbours by linear interpolation."""
        if len(self._norms) < self._config.warmup_steps:
            return math.inf
        return self._norms.quantile(self._config.percentile / 100.0)

    def learn(self, norm: float, clipped: float) -> None:
        """Admit the norm, and drop the oldest when the window is full."""
        if math.isfinite(norm):
            self._norms.admit(norm)

    def state(self) -> dict[str, Any]:
        """For a checkpoint; JSON."""
        return {"norms": self._norms.values}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """From a checkpoint. A window shorter than the saved one keeps the newest norms."""
        self._norms.replace(state["norms"])


@final
class ZScoreBound(AdaptiveBound):
    """ZClip: limits norms that lie many deviations above a running mean (Kumar et al. 2025, arXiv 2504.02507).

    Beyond the threshold z_t, a norm of z deviations is limited to mean + z_t²/z deviations: the farther out, the
    harder. The statistics are fed with what the clip leaves, so that a spike cannot move them; a level that stays is
    taken over, or they would refuse it for ever.
    """

    method: ClassVar[str] = "zscore"

    def __init__(self, config: AdaptiveClipConfig) -> None:
        self._config = config
        self._warming: list[float] = []
        """Clipped norms of the warm-up; empty once there are statistics."""
        self._mean = 0.0
        self._variance = 0.0
        self._ready = False
        self._new_level = NewLevel(config.rebaseline_after)

    def bound(self, norm: float) -> float:
        """The norm itself up to the threshold, less and less beyond."""
        if not self._is_beyond(norm) or self._new_level.completed_by_another():
            return math.inf
        deviation, threshold = math.sqrt(self._variance), self._config.z_threshold
        # z_t²/z deviations, with z = (norm - mean) / deviation; 0 for a deviation of 0.
        return self._mean + threshold**2 * deviation * (deviation / (norm - self._mean))

    def learn(self, norm: float, clipped: float) -> None:
        """Feed the running statistics."""
        if not (math.isfinite(norm) and math.isfinite(clipped)):
            return
        if not self._ready:
            self._warming.append(clipped)
            if len(self._warming) >= self._config.warmup_steps:
                self._restart(self._warming)
            return
        beyond = self._is_beyond(norm)
        if beyond and self._new_level.completed_by_another():
            self._restart([*self._new_level.values, norm])
            return
        self._new_level.note(norm, beyond=beyond)
        decay = self._config.decay
        self._mean = decay * self._mean + (1.0 - decay) * clipped
        self._variance = decay * self._variance + (1.0 - decay) * (clipped - self._mean) ** 2

    def state(self) -> dict[str, Any]:
        """For a checkpoint; JSON."""
        return {
            "warming": list(self._warming),
            "mean": self._mean,
            "variance": self._variance,
            "ready": self._ready,
            "new_level": self._new_level.state(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """From a checkpoint."""
        self._warming = [float(value) for value in state["warming"]]
        self._mean, self._variance = float(state["mean"]), float(state["variance"])
        self._ready = bool(state["ready"])
        self._new_level.load_state(state["new_level"])

    def _is_beyond(self, norm: float) -> bool:
        return self._ready and norm - self._mean > self._config.z_threshold * math.sqrt(self._variance)

    def _restart(self, norms: Sequence[float]) -> None:
        self._mean = math.fsum(norms) / len(norms)
        self._variance = math.fsum((norm - self._mean) ** 2 for norm in norms) / len(norms)
        self._ready = True
        self._warming = []
        self._new_level.clear()
