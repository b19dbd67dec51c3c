"""What a run's figures say about its recipe: plain sentences with the numbers and the way out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import final

from paddle_stable.recipe import AmpConfig, ClipConfig, ModelKind
from paddle_stable.recipe_checks import CLIP_RANGES
from paddle_stable.stability.monitor import Monitor, NormQuantiles

ENOUGH_STEPS = 20
"""Rates over fewer steps say nothing."""
HIGH_CLIP_RATE = 0.30
HIGH_SKIP_RATE = 0.05
FAR_ABOVE = 3.0
"""A bound that many times the 95th percentile limits nothing that usually happens; a norm so far up is a spike."""


@final
@dataclass(frozen=True, slots=True)
class NaiveComparison:
    """A dev metric beside what it would be without any learning: the majority class, the last value."""

    metric: str
    value: float
    naive: float
    naive_answer: str
    """The answer that needs no model, in words: "the majority class"."""
    higher_is_better: bool

    @property
    def better(self) -> bool:
        """Whether the model beats the naive answer. NaN beats nothing."""
        return self.value > self.naive if self.higher_is_better else self.value < self.naive


@final
@dataclass(frozen=True, slots=True)
class StartingBound:
    """A bound on the global gradient norm to start from."""

    max_norm: float
    source: str
    """How it was come by, in words."""

    @staticmethod
    def of(p95: float, kind: ModelKind, clip_rate: Callable[[float], float]) -> StartingBound:
        """The 95th percentile of the norms, or the nearest end of the range with which such models train well.

        The percentile stays where that end would limit more than 30 % of the steps: the model or the learning rate is
        then at fault, and such a bound acts as a lower learning rate.

        Args:
            p95: that percentile.
            kind: of the model.
            clip_rate: part of the observed steps that a bound would have limited.
        """
        low, high, models = CLIP_RANGES[kind]
        percentile = float(f"{p95:.3g}")
        end = min(max(percentile, low), high)
        if end == percentile or clip_rate(end) > HIGH_CLIP_RATE:
            return StartingBound(percentile, "the 95th percentile")
        return StartingBound(
            end, f"of {low:g}–{high:g}, where {models} usually train well, the end nearest to the 95th percentile"
        )


@final
@dataclass(frozen=True, slots=True)
class Clipping:
    """What a run was limited by."""

    config: ClipConfig
    """The recipe's `clip` section."""
    bound: float
    """The bound on the global norm that was in force in the end: `clip.schedule` changes it; inf for none."""
    model_kind: ModelKind


def advice(
    monitor: Monitor,
    *,
    clipping: Clipping,
    amp: AmpConfig,
    comparison: NaiveComparison | None = None,
    diverging: bool = False,
) -> list[str]:
    """Sentences for the end of a run, most pressing first; empty when there is nothing to say.

    Args:
        monitor: the run's monitor; rates are those of the whole run, norm quantiles those of its window.
        clipping: what the run was limited by.
        amp: the recipe's `amp` section.
        comparison: the dev metric beside the naive answer, when the run has evaluated.
        diverging: whether the loss ends far above its best: the norms are then those of a divergence.
    """
    return [
        *_about_skips(monitor),
        *_about_loss_scale(monitor, amp),
        *_about_learning(comparison),
        *(_about_divergence() if diverging else _about_clipping(monitor, clipping)),
    ]


def _about_skips(monitor: Monitor) -> Iterator[str]:
    totals = monitor.totals
    # Withheld steps are skipped because the recipe asks for it.
    unwanted = totals.skipped - totals.skips["withheld"]
    if totals.step >= ENOUGH_STEPS and unwanted > HIGH_SKIP_RATE * totals.step:
        yield f"{unwanted / totals.step:.0%} of the steps brought nothing. {monitor.explain_skips()}"


def _about_loss_scale(monitor: Monitor, amp: AmpConfig) -> Iterator[str]:
    scale, skips = monitor.loss_scale, monitor.totals.skips
    # A scale that begins at the floor and never overflows is a choice, not a symptom.
    overflowed = skips["overflow"] + skips["nonfinite"] > 0
    if amp.dtype == "float16" and overflowed and scale is not None and scale <= amp.min_scale:
        yield (
            f"The loss scale is at its floor (amp.min_scale={amp.min_scale:g}): gradients overflow at any scale. "
            "Lower optim.lr, look for activations that grow, or use amp.dtype=bfloat16 or float32."
        )


def _about_learning(comparison: NaiveComparison | None) -> Iterator[str]:
    if comparison is not None and not comparison.better:
        yield (
            f"The dev {comparison.metric} of {comparison.value:.4g} is not better than {comparison.naive_answer} "
            f"({comparison.naive:.4g}): nothing useful was learned. Check labels and data, train longer, and try "
            "another optim.lr, ten times higher or lower."
        )


def _about_divergence() -> Iterator[str]:
    yield "Training has diverged: lower optim.lr, or lengthen the warm-up. No bound follows from such a run's norms."


def _about_clipping(monitor: Monitor, clipping: Clipping) -> Iterator[str]:
    clip = clipping.config
    quantiles = monitor.norm_quantiles()
    totals = monitor.totals
    # Norms of 0 say that nothing is trained, and make no bound.
    if totals.applied < ENOUGH_STEPS or quantiles is None or quantiles.p95 <= 0.0:
        return
    start = StartingBound.of(quantiles.p95, clipping.model_kind, monitor.rate_above)
    if clip.kind == "none":
        yield (
            f"Gradients were observed and not clipped. Their norm: {_shown(quantiles)}. "
            f"A bound to start from: clip.kind=global_norm clip.max_norm={start.max_norm:g}, {start.source}."
        )
    elif clip.kind == "adaptive" and clip.adaptive.method == "percentile":
        return  # clips as many steps as its percentile says, by construction
    elif totals.clipped == 0:
        yield from _about_never_clipping(totals.applied, clipping, quantiles, start)
    elif totals.clip_rate > HIGH_CLIP_RATE:
        clipped = f"{totals.clipped} of {totals.applied} applied steps ({totals.clip_rate:.0%}) were clipped"
        why = _about_often_clipping(clipping, monitor.group_clip_rates)
        yield f"{clipped} {why} Norms before the clip: {_shown(quantiles)}."


def _about_often_clipping(clipping: Clipping, group_rates: Mapping[str, float]) -> str:
    clip = clipping.config
    if clip.kind == "layers":
        rates = ", ".join(f"{name} {rate:.0%}" for name, rate in group_rates.items())
        return (
            f"(clip.kind=layers; by group lately: {rates}). One group beyond its bound is enough for that: raise the "
            "bound of a group that is nearly always limited, or look for what makes its gradients large."
        )
    if clip.kind in ("global_norm", "adaptive"):
        return (
            f"({_in_force(clipping)}). When that many are, the model or the learning rate is at fault, not "
            "the threshold: lower optim.lr, lengthen the warm-up, or look at the model's initialisation and "
            "normalisation."
        )
    bound = f"clip.max_value={clip.max_value:g}" if clip.kind == "value" else f"clip.max_norm={clip.max_norm:g}"
    part = "one element" if clip.kind == "value" else "one parameter"
    return (
        f"(clip.kind={clip.kind}, {bound}). {part.capitalize()} beyond the bound is enough for that, so the rate alone "
        "is no alarm: look at stability/clip_scale, the part of the norm that is left. When it is often below 0.5, "
        "lower optim.lr, or use clip.kind=global_norm, which keeps the direction of the step."
    )


def _in_force(clipping: Clipping) -> str:
    changed = clipping.config.kind == "global_norm" and clipping.bound != clipping.config.max_norm
    said = f"clip.max_norm={clipping.config.max_norm:g}"
    return f"{said}, and {clipping.bound:g} in the end by clip.schedule" if changed else said


def _about_never_clipping(
    applied: int, clipping: Clipping, quantiles: NormQuantiles, start: StartingBound
) -> Iterator[str]:
    clip = clipping.config
    # Silent about a bound close above the usual norms: that is a good one in a run without outliers.
    if clip.kind == "value":
        yield (
            f"No gradient element reached clip.max_value={clip.max_value:g} in {applied} applied steps: the clip did "
            f"nothing. Lower the bound, or use clip.kind=global_norm. Norms: {_shown(quantiles)}."
        )
    elif clip.kind == "norm":
        yield (
            f"No parameter's gradient reached clip.max_norm={clip.max_norm:g} in {applied} applied steps: the clip did "
            f"nothing. A parameter's norm is below the global one ({_shown(quantiles)}): lower the bound."
        )
    elif clip.kind == "layers":
        yield (
            f"No group reached its bound in {applied} applied steps: the clip did nothing. A group's norm is below the "
            f"global one ({_shown(quantiles)}): lower the bounds of clip.groups and clip.max_norm."
        )
    elif math.isfinite(clipping.bound) and clipping.bound > max(FAR_ABOVE * quantiles.p95, start.max_norm):
        yield (
            f"None of {applied} applied steps was clipped: {_in_force(clipping)}, is far above the usual norms "
            f"({_shown(quantiles)}) and limits only disasters. To limit outliers too: clip.max_norm="
            f"{start.max_norm:g}, {start.source}."
        )


def _shown(quantiles: NormQuantiles) -> str:
    return f"half below {quantiles.p50:.3g}, 95 % below {quantiles.p95:.3g}, 99 % below {quantiles.p99:.3g}"
