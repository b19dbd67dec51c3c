"""Monitor: what the steps of a run add up to: totals, windowed rates, norm quantiles, and what is plotted.

Values that are not finite are counted and enter no statistic.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, final

import numpy as np
import numpy.typing as npt

from paddle_stable.stability.step_report import SkipReason, StepReport, Verdict

Outcome = Literal["applied", "clipped", "skipped", "undone"]
"""What became of a step; "clipped" is an applied one."""


@final
@dataclass(frozen=True, slots=True)
class Totals:
    """Counts over the whole run. `applied + skipped + undone = step` always holds."""

    applied: int = 0
    clipped: int = 0
    """Applied steps in which the clip changed a gradient."""
    skips: Mapping[str, int] = field(default_factory=lambda: {reason.value: 0 for reason in SkipReason})
    """Skipped steps by `SkipReason` value. Withheld ones are among them."""
    undone: int = 0
    """Applied steps that a rollback took back; they are no longer among `applied` and `clipped`."""
    rollbacks: int = 0
    spikes: int = 0
    """Steps whose loss or norm was far beyond its usual level, whether they were limited or skipped."""
    dropped_samples: int = 0
    """Samples left out of applied steps because each was not finite on its own."""
    nonfinite_values: int = 0
    """Losses and gradient norms that were NaN or inf. A withheld step computes neither."""

    @property
    def skipped(self) -> int:
        """Skipped steps, whatever the reason."""
        return sum(self.skips.values())

    @property
    def step(self) -> int:
        """Attempted steps."""
        return self.applied + self.skipped + self.undone

    @property
    def clip_rate(self) -> float:
        """Clipped / applied, in 0…1; 0 before the first applied step."""
        return _ratio(self.clipped, self.applied)

    @property
    def skip_rate(self) -> float:
        """Skipped / attempted, in 0…1; 0 before the first step."""
        return _ratio(self.skipped, self.step)

    def after(self, verdict: Verdict) -> Totals:
        """The totals after one more step."""
        if verdict.skipped is SkipReason.WITHHELD:
            bad = 0
        else:
            bad = sum(not math.isfinite(value) for value in (verdict.loss, verdict.grad_norm))
        counted = replace(
            self, nonfinite_values=self.nonfinite_values + bad, spikes=self.spikes + int(bool(verdict.spike))
        )
        if verdict.skipped is None:
            return replace(
                counted,
                applied=self.applied + 1,
                clipped=self.clipped + int(verdict.clipped),
                dropped_samples=self.dropped_samples + verdict.dropped,
            )
        reason = verdict.skipped.value
        return replace(counted, skips={**self.skips, reason: self.skips[reason] + 1})

    def rolled_back(self, snapshot: Totals) -> Totals:
        """The totals after going back to the parameters that a snapshot had."""
        return replace(
            self,
            applied=snapshot.applied,
            clipped=snapshot.clipped,
            undone=self.undone + self.applied - snapshot.applied,
            rollbacks=self.rollbacks + 1,
        )


@final
@dataclass(frozen=True, slots=True)
class NormQuantiles:
    """Where gradient norms lie: 5 % of them are below `p5`, half below `p50`, and so on."""

    p5: float
    p50: float
    p95: float
    p99: float


@final
@dataclass(frozen=True, slots=True)
class _Seen:
    """One step of the window."""

    outcome: Outcome
    norm: float | None
    """Global gradient norm before clipping; None when it was not finite or the step was not applied."""
    groups: Mapping[str, float]
    """Finite norms by layer group of an applied step."""
    clipped_groups: Mapping[str, bool]
    """Whether each group of `clip.kind: layers` was limited; empty for the other kinds."""

    @staticmethod
    def of(verdict: Verdict) -> _Seen:
        if not verdict.applied:
            return _Seen("skipped", None, {}, {})
        norm = verdict.grad_norm if math.isfinite(verdict.grad_norm) else None
        groups = {name: value for name, value in verdict.group_norms.items() if math.isfinite(value)}
        return _Seen("clipped" if verdict.clipped else "applied", norm, groups, verdict.clipped_groups)


@final
@dataclass(frozen=True, slots=True)
class _Mean:
    """A running mean of finite values."""

    total: float = 0.0
    count: int = 0

    def with_value(self, value: float) -> _Mean:
        return _Mean(self.total + value, self.count + 1) if math.isfinite(value) else self

    @property
    def value(self) -> float | None:
        return self.total / self.count if self.count else None


@final
@dataclass(frozen=True, slots=True)
class _Speed:
    """Time and samples since the last record. Not part of a checkpoint: time is no function of the seed."""

    steps: int = 0
    samples: int = 0
    seconds: float = 0.0
    data_seconds: float = 0.0

    def after(self, report: StepReport) -> _Speed:
        return _Speed(
            self.steps + 1,
            self.samples + report.verdict.samples,
            self.seconds + report.seconds,
            self.data_seconds + report.data_seconds,
        )


@final
class Monitor:
    """Adds up step reports. Everything but the speeds goes through a checkpoint unchanged."""

    def __init__(self, window: int) -> None:
        """Start with no steps. Rates and norm quantiles are those of the newest `window` ones (`stability.window`)."""
        self._window: deque[_Seen] = deque(maxlen=window)
        self._totals = Totals()
        self._loss = _Mean()
        self._norm = _Mean()
        self._clip_scale = _Mean()
        self._speed = _Speed()
        self._lr: float | None = None
        self._loss_scale: float | None = None

    @property
    def totals(self) -> Totals:
        """Counts over the whole run, as a value that later steps do not change."""
        return self._totals

    @property
    def loss_scale(self) -> float | None:
        """Loss scale of the newest step; None before the first."""
        return self._loss_scale

    @property
    def clip_rate(self) -> float:
        """Clipped / applied over the window, in 0…1; 0 without an applied step."""
        outcomes = [seen.outcome for seen in self._window]
        clipped = outcomes.count("clipped")
        return _ratio(clipped, clipped + outcomes.count("applied"))

    @property
    def group_clip_rates(self) -> dict[str, float]:
        """Clipped / applied over the window, in 0…1, for each group of `clip.kind: layers`; {} for the other kinds."""
        seen = [step.clipped_groups for step in self._window if step.clipped_groups]
        names = dict.fromkeys(name for groups in seen for name in groups)
        return {name: _ratio(sum(groups.get(name, False) for groups in seen), len(seen)) for name in names}

    @property
    def skip_rate(self) -> float:
        """Skipped / attempted over the window, in 0…1; 0 before the first step."""
        return _ratio(sum(seen.outcome == "skipped" for seen in self._window), len(self._window))

    def update(self, report: StepReport) -> None:
        """Take one more step in."""
        verdict = report.verdict
        self._totals = self._totals.after(verdict)
        self._window.append(_Seen.of(verdict))
        self._speed = self._speed.after(report)
        self._lr, self._loss_scale = report.lr, verdict.loss_scale
        if verdict.applied:
            self._loss = self._loss.with_value(verdict.loss)
            self._norm = self._norm.with_value(verdict.grad_norm)
            self._clip_scale = self._clip_scale.with_value(verdict.clip_scale)

    def rolled_back(self, snapshot: Totals) -> None:
        """Parameters went back to where `totals` was `snapshot`: the steps applied since then are undone.

        Their norms leave the quantiles, which would otherwise describe the divergence.
        """
        undone = self._totals.applied - snapshot.applied
        self._totals = self._totals.rolled_back(snapshot)
        for index in reversed(range(len(self._window))):
            if undone == 0:
                break
            if self._window[index].outcome in ("applied", "clipped"):
                self._window[index] = _Seen("undone", None, {}, {})
                undone -= 1

    def norm_quantiles(self) -> NormQuantiles | None:
        """Quantiles of the window's finite gradient norms of applied steps, before clipping; None without any."""
        norms = [seen.norm for seen in self._window if seen.norm is not None]
        if not norms:
            return None
        return NormQuantiles(*(float(value) for value in np.quantile(norms, [0.05, 0.50, 0.95, 0.99])))

    def rate_above(self, bound: float) -> float:
        """Part of the window's finite norms of applied steps that are above a bound; 0 without any."""
        norms = [seen.norm for seen in self._window if seen.norm is not None]
        return sum(norm > bound for norm in norms) / max(len(norms), 1)

    def group_norms(self) -> dict[str, npt.NDArray[np.float64]]:
        """Finite gradient norms of the window's applied steps by layer group, before clipping.

        Returns:
            `grad_norm/<layer group>` → float64 array, oldest step first.
        """
        found: dict[str, list[float]] = {}
        for seen in self._window:
            for name, value in seen.groups.items():
                found.setdefault(f"grad_norm/{name}", []).append(value)
        return {tag: np.array(values, dtype=np.float64) for tag, values in found.items()}

    def scalars(self) -> dict[str, float]:
        """Values to plot now, by tag; the next call averages from here on.

        `train/loss`, `stability/grad_norm` and `stability/clip_scale` are means over the steps since the last call
        that were applied and finite, and are missing when there were none. `stability/clip_rate` and
        `stability/skip_rate` are taken over the window, so that a change shows; those of the whole run are in
        `totals`. Counts are running totals. Withheld steps have no count of their own but are in the skip rate.
        """
        counts = self._totals
        values: dict[str, float | None] = {
            "train/loss": self._loss.value,
            "train/lr": self._lr,
            "train/samples_per_second": self._speed.samples / self._speed.seconds if self._speed.seconds else None,
            "train/data_seconds": self._speed.data_seconds / self._speed.steps if self._speed.steps else None,
            "stability/grad_norm": self._norm.value,
            "stability/clip_rate": self.clip_rate,
            "stability/clip_scale": self._clip_scale.value,
            "stability/skip_rate": self.skip_rate,
            "stability/skipped_overflow": counts.skips["overflow"],
            "stability/skipped_nonfinite": counts.skips["nonfinite"],
            "stability/skipped_spike": counts.skips["spike"],
            "stability/spikes": counts.spikes,
            "stability/dropped_samples": counts.dropped_samples,
            "stability/nonfinite_values": counts.nonfinite_values,
            "stability/loss_scale": self._loss_scale,
            "stability/rollbacks": counts.rollbacks,
            **{f"stability/clip_rate/{name}": rate for name, rate in self.group_clip_rates.items()},
        }
        self._loss = self._norm = self._clip_scale = _Mean()
        self._speed = _Speed()
        return {tag: float(value) for tag, value in values.items() if value is not None}

    def explain_skips(self) -> str:
        """One or two sentences: how many steps were skipped and why, and what to do about the most frequent reason."""
        counts = self._totals
        if counts.skipped == 0:
            return f"None of {counts.step} steps was skipped."
        by_reason = {reason: count for reason, count in counts.skips.items() if count}
        listed = ", ".join(f"{count} {reason}" for reason, count in by_reason.items())
        worst = max(by_reason, key=lambda reason: by_reason[reason])
        return f"{counts.skipped} of {counts.step} steps were skipped ({listed}). {_WAY_OUT[worst]}"

    def state(self) -> dict[str, Any]:
        """For a checkpoint; JSON. `from_state` restores it exactly, the speeds left out."""
        return {
            "totals": asdict(self._totals),
            "window": [
                [seen.outcome, seen.norm, dict(seen.groups), dict(seen.clipped_groups)] for seen in self._window
            ],
            "loss": asdict(self._loss),
            "norm": asdict(self._norm),
            "clip_scale": asdict(self._clip_scale),
            "lr": self._lr,
            "loss_scale": self._loss_scale,
        }

    @staticmethod
    def from_state(window: int, state: Mapping[str, Any]) -> Monitor:
        """From a checkpoint. A window shorter than the saved one keeps the newest steps.

        Raises:
            TypeError: when a part is missing or unknown.
        """
        monitor = Monitor(window)
        monitor._restore(**state)
        return monitor

    def _restore(
        self,
        *,
        totals: Mapping[str, Any],
        window: Iterable[Any],
        loss: Mapping[str, Any],
        norm: Mapping[str, Any],
        clip_scale: Mapping[str, Any],
        lr: float | None,
        loss_scale: float | None,
    ) -> None:
        self._totals = Totals(**totals)
        self._window.extend(_Seen(outcome, *rest) for outcome, *rest in window)
        self._loss, self._norm, self._clip_scale = _Mean(**loss), _Mean(**norm), _Mean(**clip_scale)
        self._lr, self._loss_scale = lr, loss_scale


_WAY_OUT: Mapping[str, str] = {
    "overflow": (
        "Overflows are normal while the loss scale settles; when they go on, activations or gradients are too large "
        "for float16: use bfloat16 or float32, or a lower optim.lr."
    ),
    "nonfinite": (
        "The loss or a gradient was NaN or inf: try a lower optim.lr or a longer warm-up, and look for a division, "
        "logarithm or square root without an epsilon and for broken samples in those steps."
    ),
    "spike": "Loss or gradient norm jumped: try a lower optim.lr or a longer warm-up, and look at those samples.",
    "withheld": (
        "They were left out because the recipe's faults ask for it (withhold), or because all of their samples are in "
        "quarantine."
    ),
}
"""What to do about skips, by `SkipReason` value."""


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
