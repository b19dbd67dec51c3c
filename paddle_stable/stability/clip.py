"""Gradient clips that measure once: plain functions of norms already on the host, and the optimizer's end of it.

A clip decides (`Clip.plan`), `PlannedClip` carries the decision out inside `optimizer.step()`. Nothing is measured
twice, and a gradient within its bound is not touched at all.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, final

import numpy as np
import paddle

from paddle_stable.recipe import AdaptiveClipConfig, ClipBoundConfig, ClipConfig, ClipGroupConfig
from paddle_stable.stability.adaptive_bound import AdaptiveBound, build_bound
from paddle_stable.stability.gradients import Gradients, Measurement

REST = "rest"
"""Name of the group of all parameters that no pattern of `clip.groups` matches."""


@final
@dataclass(frozen=True)
class ClipPlan:
    """What the optimizer has to do to the gradients before it uses them."""

    factors: tuple[float, ...]
    """One factor a parameter, in the order of `Gradients.parameters`."""
    scale: float
    """Global norm after the clip divided by the one before."""
    clamp: float | None = None
    """Bound on every element after the factor, or None."""
    groups: Mapping[str, bool] = field(default_factory=dict)
    """Whether each group of `clip.kind: layers` is limited; empty for the other kinds."""

    @property
    def clips(self) -> bool:
        """Whether any gradient changes."""
        return self.clamp is not None or any(factor != 1.0 for factor in self.factors)

    def limited(self, gradients: Gradients, norm: float, bound: float) -> ClipPlan:
        """The plan that leaves a global norm of at most `bound`, in the same one pass over the gradients.

        Args:
            gradients: those that the plan is for.
            norm: their global norm before any clip.
            bound: on the global norm after it.
        """
        after = self.scale * norm
        if after <= bound:
            return self
        factor = bound / after
        factors = zip(self.factors, gradients.clippable, strict=True)
        return replace(
            self,
            factors=tuple(planned * factor if may else planned for planned, may in factors),
            scale=self.scale * factor,
            # Limiting f·g to f·c is f times g limited to c.
            clamp=self.clamp * factor if self.clamp is not None else None,
        )


class Clip(ABC):
    """Decides from measured norms how far gradients are scaled down."""

    clamp: float | None = None
    """Element bound for which the measurement has to bring `clamped_norms`; None for clips by norm."""
    adaptive: AdaptiveBound | None = None
    """What learns from the steps of the run; None where the bound is fixed."""

    @abstractmethod
    def plan(self, measured: Measurement, gradients: Gradients, *, applied: int) -> ClipPlan:
        """What to do with gradients of these norms, after `applied` updates. Changes nothing, touches no tensor."""

    def learn(self, norm: float, clipped: float) -> None:
        """Take in an applied step: its global norm before and after the clip."""
        if self.adaptive is not None:
            self.adaptive.learn(norm, clipped)

    def state(self) -> dict[str, Any]:
        """For a checkpoint; JSON. Empty where the bound is fixed."""
        return {} if self.adaptive is None else {"method": self.adaptive.method, **self.adaptive.state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """From a checkpoint. What another kind of clip has learned is of no use: this one begins with its warm-up."""
        if self.adaptive is not None and state.get("method") == self.adaptive.method:
            self.adaptive.load_state(state)


@final
class NoClip(Clip):
    """Observes only."""

    def plan(self, measured: Measurement, gradients: Gradients, *, applied: int) -> ClipPlan:
        """Leave everything as it is."""
        return ClipPlan((1.0,) * len(gradients.names), scale=1.0)


@final
class GlobalNormClip(Clip):
    """One factor for all: `g · c / max(‖g‖, c)` over all parameters (Pascanu et al. 2013, in Paddle's form)."""

    def __init__(self, max_norm: float, schedule: Sequence[ClipBoundConfig] = ()) -> None:
        self._max_norm = max_norm
        self._schedule = schedule

    def bound(self, applied: int) -> float:
        """The bound of the next step after `applied` updates; inf for none."""
        bound: float | None = self._max_norm
        for later in self._schedule:
            if applied >= later.from_step:
                bound = later.max_norm
        return math.inf if bound is None else bound

    def plan(self, measured: Measurement, gradients: Gradients, *, applied: int) -> ClipPlan:
        """Scale all gradients by the same factor, so that the direction of the step stays."""
        return _one_factor(gradients.total(measured.norms), self.bound(applied), gradients)


@final
class AdaptiveClip(Clip):
    """One factor for all, under a bound that follows the norms of the run and never exceeds a fixed one."""

    def __init__(self, max_norm: float, config: AdaptiveClipConfig) -> None:
        self._max_norm = max_norm
        self._bound = self.adaptive = build_bound(config)

    def plan(self, measured: Measurement, gradients: Gradients, *, applied: int) -> ClipPlan:
        """Scale all gradients by the same factor, so that the direction of the step stays."""
        norm = gradients.total(measured.norms)
        learned = self._bound.bound(norm)
        # Norms of 0 at the beginning (a last layer that starts at 0) must not keep everything at 0.
        return _one_factor(norm, min(learned, self._max_norm) if learned > 0.0 else self._max_norm, gradients)


@final
class LayersClip(Clip):
    """Groups of parameters, each with a factor and a bound of its own; the others are one group more."""

    def __init__(self, max_norm: float, groups: Sequence[ClipGroupConfig], names: Sequence[str]) -> None:
        """`names`: of the parameters, in the order of `Gradients.names`. The first group that matches a name has it."""
        self._bounds = {**{group.match: group.max_norm for group in groups}, REST: max_norm}
        labels = np.array([clip_group(name, groups) for name in names])
        self._members = {label: labels == label for label in self._bounds}

    def plan(self, measured: Measurement, gradients: Gradients, *, applied: int) -> ClipPlan:
        """Scale each group to its bound; the direction of the whole step may change."""
        factors = np.ones(len(gradients.names))
        limited = {}
        for label, bound in self._bounds.items():
            members = self._members[label] & gradients.clippable
            factor = _factor(float(np.sqrt(np.square(measured.norms[members]).sum())), bound)
            factors[members] = factor
            limited[label] = factor != 1.0
        after = gradients.total(measured.norms * factors)
        scale = _ratio(after, gradients.total(measured.norms))
        return ClipPlan(tuple(float(factor) for factor in factors), scale=scale, groups=limited)


def clip_group(name: str, groups: Sequence[ClipGroupConfig]) -> str:
    """The pattern of the group that a parameter belongs to, or `rest`."""
    return next((group.match for group in groups if fnmatchcase(name, group.match)), REST)


@final
class NormClip(Clip):
    """Every parameter by its own norm: `g_i · c / max(‖g_i‖, c)`, as Paddle's `ClipGradByNorm`."""

    def __init__(self, max_norm: float) -> None:
        self._max_norm = max_norm

    def plan(self, measured: Measurement, gradients: Gradients, *, applied: int) -> ClipPlan:
        """Scale each gradient to its bound; the direction of the whole step may change."""
        factors = tuple(
            _factor(float(norm), self._max_norm) if may else 1.0
            for norm, may in zip(measured.norms, gradients.clippable, strict=True)
        )
        after = gradients.total(measured.norms * np.array(factors))
        return ClipPlan(factors, scale=_ratio(after, gradients.total(measured.norms)))


@final
class ValueClip(Clip):
    """Every element limited to ±bound, as Paddle's `ClipGradByValue`."""

    def __init__(self, max_value: float) -> None:
        self.clamp = max_value

    def plan(self, measured: Measurement, gradients: Gradients, *, applied: int) -> ClipPlan:
        """Limit the elements when that changes anything."""
        assert measured.clamped_norms is not None
        before, after = gradients.total(measured.norms), gradients.total(measured.clamped_norms)
        changed = bool((measured.clamped_norms[gradients.clippable] < measured.norms[gradients.clippable]).any())
        ones = (1.0,) * len(gradients.names)
        return ClipPlan(ones, scale=_ratio(after, before), clamp=self.clamp if changed else None)


def build_clip(config: ClipConfig, names: Sequence[str]) -> Clip:
    """The clip that the recipe asks for, over parameters of these names (`Gradients.names`)."""
    match config.kind:
        case "global_norm":
            return GlobalNormClip(config.max_norm, config.schedule)
        case "norm":
            return NormClip(config.max_norm)
        case "value":
            return ValueClip(config.max_value)
        case "adaptive":
            return AdaptiveClip(config.max_norm, config.adaptive)
        case "layers":
            return LayersClip(config.max_norm, config.groups, names)
        case "none":
            return NoClip()


@final
class PlannedClip(paddle.nn.ClipGradByGlobalNorm):
    """The optimizer's `grad_clip`: carries out the plan that the guard has made for this step."""

    def __init__(self, gradients: Gradients, max_norm: float) -> None:
        super().__init__(clip_norm=max_norm)
        self._index = {p.name: i for i, p in enumerate(gradients.parameters)}
        self._clippable = gradients.clippable
        self._plan: ClipPlan | None = None

    def set_plan(self, plan: ClipPlan) -> None:
        """The plan for the next `optimizer.step()`, and for that one only."""
        self._plan = plan

    def __call__(
        self, params_grads: Sequence[tuple[paddle.Tensor, paddle.Tensor]]
    ) -> list[tuple[paddle.Tensor, paddle.Tensor]]:
        """Scale gradients in place.

        Raises:
            RuntimeError: when the optimizer was stepped by somebody else than the guard.
        """
        if self._plan is None:
            raise RuntimeError("optimizer.step() was called without the guard's plan: use StepGuard.step()")
        plan, self._plan = self._plan, None
        with paddle.no_grad():
            for parameter, gradient in params_grads:
                index = self._index[parameter.name]
                _scale_in_place(gradient, plan.factors[index])
                if plan.clamp is not None and self._clippable[index]:
                    gradient.clip_(-plan.clamp, plan.clamp)
        return list(params_grads)


def _one_factor(norm: float, bound: float, gradients: Gradients) -> ClipPlan:
    factor = _factor(norm, bound)
    return ClipPlan(tuple(factor if may else 1.0 for may in gradients.clippable), scale=factor)


def _factor(norm: float, bound: float) -> float:
    return 1.0 if norm <= bound else bound / norm


def _ratio(after: float, before: float) -> float:
    return after / before if before > 0.0 else 1.0


def _scale_in_place(gradient: paddle.Tensor, factor: float) -> None:
    if factor == 1.0:
        return
    if factor < 1e-30:
        # The factor itself may be below what float32 can hold: apply its square root twice.
        gradient.scale_(factor**0.5)
        gradient.scale_(factor**0.5)
    else:
        gradient.scale_(factor)
