"""What the guard decided, and what one optimizer step did: frozen values that everything else reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any, final


@final
class SkipReason(Enum):
    """Why nothing was updated."""

    OVERFLOW = "overflow"
    """The fp16 loss scale was too high: normal, it has been lowered."""
    NONFINITE = "nonfinite"
    """NaN or inf that lowering the loss scale cannot explain."""
    SPIKE = "spike"
    """Finite, but far beyond what this run usually shows."""
    WITHHELD = "withheld"
    """A fault on demand asked to leave the step out."""


@final
@dataclass(frozen=True, slots=True)
class Verdict:
    """What the guard decided about one step."""

    loss: float
    """Mean over the samples of the whole step, all processes together; NaN or inf when that is what it was."""
    samples: int
    """Samples of the step, all processes together."""
    grad_norm: float
    """Global L2 norm after unscaling and before clipping; NaN or inf when the gradient was."""
    clip_scale: float
    """Norm after clipping divided by the norm before; 1.0 when nothing was clipped."""
    clipped: bool
    """The update was applied and the clip changed a gradient."""
    skipped: SkipReason | None
    """Why nothing was updated, or None when the update was applied."""
    spike: tuple[str, ...] = ()
    """Which of `loss` and `norm` were far beyond their usual level; such a step is limited or skipped."""
    clipped_groups: Mapping[str, bool] = field(default_factory=dict)
    """Whether each group of `clip.kind: layers` was limited; empty for other kinds, and where nothing was applied."""
    group_norms: Mapping[str, float] = field(default_factory=dict)
    """L2 norm before clipping of every layer group."""
    loss_scale: float = 1.0
    """Loss scale that this step used; 1.0 without float16."""
    dropped: int = 0
    """Samples of the step that were left out of the update because each was not finite on its own."""
    stop_requested: bool = False
    """Some process was asked to stop by a signal: all stop after this step."""

    @property
    def applied(self) -> bool:
        """Whether the parameters were updated."""
        return self.skipped is None


@final
@dataclass(frozen=True, slots=True)
class StepReport:
    """One attempted optimizer step, complete."""

    step: int
    """Number of this attempt, from 1; never goes back. The checkpoint after it carries the same number."""
    epoch: float
    """Epochs begun before the step, with the fraction of the current one: 1.25 is a quarter into the second."""
    verdict: Verdict
    lr: float
    """Learning rate of this step."""
    seconds: float
    """Wall-clock time of the whole step."""
    data_seconds: float
    """The part of it spent waiting for data."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint or an incident's folder keeps; JSON, but for numbers that are not finite."""
        saved = asdict(self)
        skipped = self.verdict.skipped
        saved["verdict"] |= {"skipped": skipped and skipped.value, "spike": list(self.verdict.spike)}
        return saved

    @classmethod
    def from_state(cls, saved: Mapping[str, Any]) -> StepReport:
        """Take one back; numbers that are not finite may have become the texts "nan", "inf" and "-inf"."""
        verdict = dict(saved["verdict"])
        for name in ("loss", "grad_norm", "clip_scale", "loss_scale"):
            verdict[name] = float(verdict[name])
        verdict["skipped"] = None if verdict["skipped"] is None else SkipReason(verdict["skipped"])
        verdict["spike"] = tuple(verdict["spike"])
        verdict["group_norms"] = {group: float(norm) for group, norm in verdict["group_norms"].items()}
        return cls(**{**saved, "verdict": Verdict(**verdict)})
