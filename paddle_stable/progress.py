"""How far a run has come: the counters that move even when a step is skipped."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, final

from paddle_stable.stability.step_report import SkipReason, Verdict


@final
@dataclass(frozen=True, slots=True)
class Progress:
    """Counters of attempted steps; `applied + skipped + undone = step` always holds."""

    step: int = 0
    """Steps attempted so far; never goes back."""
    applied: int = 0
    skipped: int = 0
    undone: int = 0
    """Applied steps that a rollback took back."""
    unusable_in_a_row: int = 0
    """Skips since the last applied step, overflows above the floor and withheld steps not counted."""

    def after(self, verdict: Verdict) -> Progress:
        """The counters after one more attempt."""
        if verdict.applied:
            return replace(self, step=self.step + 1, applied=self.applied + 1, unusable_in_a_row=0)
        unusable = verdict.skipped in (SkipReason.NONFINITE, SkipReason.SPIKE)
        return replace(
            self,
            step=self.step + 1,
            skipped=self.skipped + 1,
            unusable_in_a_row=self.unusable_in_a_row + 1 if unusable else self.unusable_in_a_row,
        )

    def rolled_back(self, applied: int) -> Progress:
        """The counters after going back to the parameters that `applied` updates had led to."""
        return replace(self, applied=applied, undone=self.undone + self.applied - applied, unusable_in_a_row=0)

    def state(self) -> dict[str, int]:
        """For a checkpoint."""
        return asdict(self)

    @staticmethod
    def from_state(state: dict[str, int]) -> Progress:
        """From a checkpoint."""
        return Progress(**state)


@final
@dataclass(frozen=True, slots=True)
class Best:
    """The best evaluation so far, and how many came after it without being better."""

    metric: str
    higher_is_better: bool
    value: float | None = None
    step: int = 0
    evaluations_since: int = 0

    def after(self, step: int, value: float) -> Best:
        """The best after one more evaluation. A non-finite value is never the best."""
        if math.isfinite(value) and (self.value is None or self._better(value, self.value)):
            return replace(self, value=value, step=step, evaluations_since=0)
        return replace(self, evaluations_since=self.evaluations_since + 1)

    def _better(self, new: float, old: float) -> bool:
        return new > old if self.higher_is_better else new < old

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return asdict(self)

    @staticmethod
    def from_state(state: dict[str, Any]) -> Best:
        """From a checkpoint."""
        return Best(**state)
