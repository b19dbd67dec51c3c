"""StepGuard: one look at the accumulated gradient, one decision, and then a step or nothing at all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

import paddle

from paddle_stable.distributed import World
from paddle_stable.recipe import StabilityConfig
from paddle_stable.stability.amp import Precision
from paddle_stable.stability.clip import Clip, PlannedClip
from paddle_stable.stability.gradients import Gradients, Measurement
from paddle_stable.stability.running_statistics import RunningStatistics
from paddle_stable.stability.spikes import Spike, SpikeWatch
from paddle_stable.stability.step_report import SkipReason, Verdict


@final
class StepGuard:
    """Decides whether an optimizer step is done. When it is not, nothing that learns has moved."""

    def __init__(
        self,
        config: StabilityConfig,
        *,
        gradients: Gradients,
        clip: Clip,
        planned_clip: PlannedClip,
        spikes: SpikeWatch,
        precision: Precision,
        statistics: RunningStatistics,
        world: World,
    ) -> None:
        """Put the parts together; `planned_clip` is the `grad_clip` that the optimizer was built with."""
        self.clip = clip
        self.spikes = spikes
        self._config = config
        self._gradients = gradients
        self._planned_clip = planned_clip
        self._precision = precision
        self._statistics = statistics
        self._world = world
        self._checked_sparse = False

    def begin(self) -> None:
        """Call before the first forward of a step."""
        self._statistics.remember()

    def step(
        self,
        optimizer: paddle.optimizer.Optimizer,
        losses: Sequence[paddle.Tensor],
        *,
        samples: int,
        applied: int,
        stop_vote: bool = False,
    ) -> Verdict:
        """Unscale, measure once, read once, then step or touch nothing. Gradients are cleared either way.

        Args:
            optimizer: the optimizer whose `grad_clip` is this guard's `PlannedClip`.
            losses: this process's losses of the step, already multiplied by their weights; one element each.
            samples: this process's samples.
            applied: updates so far, those that a rollback took back not counted.
            stop_vote: whether this process wants to stop; the verdict tells every process of it.
        """
        if not self._checked_sparse:
            self._gradients.refuse_sparse()
            self._checked_sparse = True
        scale = self._precision.scaling.value
        self._precision.unscale(optimizer, self._gradients.parameters)
        measured = self._gradients.measure(losses, samples, stop_vote=stop_vote, clamp=self.clip.clamp)
        norm = self._gradients.total(measured.norms)
        skipped = self._reason_to_skip(measured)
        spike = self._spike(measured.loss, norm) if skipped is None else None
        if spike is not None and self.spikes.skips:
            skipped = SkipReason.SPIKE
        plan = self.clip.plan(measured, self._gradients, applied=applied)
        if skipped is None:
            if spike is not None:
                plan = plan.limited(self._gradients, norm, spike.usual_norm)
            self._planned_clip.set_plan(plan)
            optimizer.step()
            self._statistics.average(self._world)
            self.clip.learn(norm, norm * plan.scale)
        else:
            self._statistics.put_back()
        optimizer.clear_grad(set_to_zero=False)
        if skipped in (None, SkipReason.OVERFLOW):
            self._precision.scaling.update(overflow=skipped is SkipReason.OVERFLOW)
        return Verdict(
            loss=measured.loss,
            samples=measured.samples,
            grad_norm=norm,
            clip_scale=plan.scale if skipped is None else 1.0,
            clipped=skipped is None and plan.clips,
            skipped=skipped,
            spike=spike.flagged if spike is not None else (),
            clipped_groups=plan.groups if skipped is None else {},
            group_norms=self._gradients.by_group(measured.norms),
            loss_scale=scale,
            stop_requested=measured.stop_votes > 0,
        )

    def withhold(self) -> Verdict:
        """The verdict on a step that was not even computed."""
        return Verdict(
            loss=math.nan,
            samples=0,
            grad_norm=math.nan,
            clip_scale=1.0,
            clipped=False,
            skipped=SkipReason.WITHHELD,
            loss_scale=self._precision.scaling.value,
        )

    def _spike(self, loss: float, norm: float) -> Spike | None:
        # Both numbers come out of the one reduced measurement, so that all processes see the same spikes.
        return self.spikes.judge(loss=loss, norm=norm) if self._config.guard else None

    def _reason_to_skip(self, measured: Measurement) -> SkipReason | None:
        if not self._config.guard or measured.is_finite():
            return None
        # A non-finite loss comes from the forward pass, where the loss scale has no part in it.
        if not measured.flagged and self._precision.scaling.may_be_lowered():
            return SkipReason.OVERFLOW
        return SkipReason.NONFINITE
