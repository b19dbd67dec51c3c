"""Gradient clips that measure once: plain functions of norms already on the host, and the optimizer's end of it.

A clip decides (`Clip.plan`), `PlannedClip` carries the decision out inside `optimizer.step()`. Nothing is measured
twice, and a gradient within its bound is not touched at all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import paddle

from paddle_stable.recipe import ClipConfig
from paddle_stable.stability.gradients import Gradients, Measurement


@final
@dataclass(frozen=True)
class ClipPlan:
    """What the optimizer has to do to the gradients before it uses them."""

    factors: tuple[float, ...]
    """One factor a parameter, in the order of `Gradients.parameters`."""
    scale: float
    """Global norm after the clip divided by the one before."""
    clamp: float | None = None
    """Bound on every element, or None."""

    @property
    def clips(self) -> bool:
        """Whether any gradient changes."""
        return self.clamp is not None or any(factor != 1.0 for factor in self.factors)


class Clip(ABC):
    """Decides from measured norms how far gradients are scaled down."""

    clamp: float | None = None
    """Element bound for which the measurement has to bring `clamped_norms`; None for clips by norm."""

    @abstractmethod
    def plan(self, measured: Measurement, gradients: Gradients) -> ClipPlan:
        """What to do with finite gradients of these norms. No tensor is touched or read."""


@final
class NoClip(Clip):
    """Observes only."""

    def plan(self, measured: Measurement, gradients: Gradients) -> ClipPlan:
        """Leave everything as it is."""
        return ClipPlan((1.0,) * len(gradients.names), scale=1.0)


@final
class GlobalNormClip(Clip):
    """One factor for all: `g · c / max(‖g‖, c)` over all parameters (Pascanu et al. 2013, in Paddle's form)."""

    def __init__(self, max_norm: float) -> None:
        self._max_norm = max_norm

    def plan(self, measured: Measurement, gradients: Gradients) -> ClipPlan:
        """Scale all gradients by the same factor, so that the direction of the step stays."""
        factor = _factor(gradients.total(measured.norms), self._max_norm)
        return ClipPlan(tuple(factor if may else 1.0 for may in gradients.clippable), scale=factor)


@final
class NormClip(Clip):
    """Every parameter by its own norm: `g_i · c / max(‖g_i‖, c)`, as Paddle's `ClipGradByNorm`."""

    def __init__(self, max_norm: float) -> None:
        self._max_norm = max_norm

    def plan(self, measured: Measurement, gradients: Gradients) -> ClipPlan:
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

    def plan(self, measured: Measurement, gradients: Gradients) -> ClipPlan:
        """Limit the elements when that changes anything."""
        assert measured.clamped_norms is not None
        before, after = gradients.total(measured.norms), gradients.total(measured.clamped_norms)
        changed = bool((measured.clamped_norms[gradients.clippable] < measured.norms[gradients.clippable]).any())
        ones = (1.0,) * len(gradients.names)
        return ClipPlan(ones, scale=_ratio(after, before), clamp=self.clamp if changed else None)


def build_clip(config: ClipConfig) -> Clip:
    """The clip that the recipe asks for."""
    match config.kind:
        case "global_norm":
            return GlobalNormClip(config.max_norm)
        case "norm":
            return NormClip(config.max_norm)
        case "value":
            return ValueClip(config.max_value)
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


def _factor(norm: float, bound: float) -> float:
    return bound / max(norm, bound)


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
