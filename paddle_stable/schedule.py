"""The learning rate: a pure function of how many steps were applied."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from paddle_stable.recipe import ScheduleConfig


@final
@dataclass(frozen=True, slots=True)
class Schedule:
    """Linear warm-up, then decay. Has no state, so a skipped step cannot use up learning rate."""

    peak: float
    total: int
    """Steps of the whole run."""
    warmup: int
    kind: str
    min_ratio: float

    @staticmethod
    def of(config: ScheduleConfig, *, peak: float, total: int) -> Schedule:
        """The schedule of a recipe for a run of `total` steps."""
        ratio = config.warmup_ratio or 0.0
        warmup = config.warmup_steps if config.warmup_steps is not None else round(ratio * total)
        return Schedule(peak, total, warmup, config.kind, config.min_lr_ratio)

    def lr(self, applied: int) -> float:
        """Learning rate of the next step after `applied` updates.

        The first warm-up step already moves (1/warmup of the peak, not 0); the last step of a decay to 0 is not 0
        either: with `n` decay steps the rates are peak · (n - i) / n for i = 0 … n-1.
        """
        if applied < self.warmup:
            return self.peak * (applied + 1) / self.warmup
        done = min((applied - self.warmup) / max(self.total - self.warmup, 1), 1.0)
        match self.kind:
            case "constant":
                shape = 1.0
            case "cosine":
                shape = 0.5 * (1.0 + math.cos(math.pi * done))
            case _:
                shape = 1.0 - done
        return self.peak * (self.min_ratio + (1.0 - self.min_ratio) * shape)
