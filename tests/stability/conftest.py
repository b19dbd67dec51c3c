"""A small network with everything that can go wrong in it: BatchNorm, LayerNorm, and a parameter outside the clip."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle
import pytest
from paddle import nn

from paddle_stable.digest import digest
from paddle_stable.distributed import World
from paddle_stable.optim import build_optimizer
from paddle_stable.recipe import AmpConfig, ClipConfig, OptimConfig, SpikeConfig, StabilityConfig
from paddle_stable.stability.amp import Precision, build_precision
from paddle_stable.stability.clip import PlannedClip, build_clip
from paddle_stable.stability.gradients import Gradients
from paddle_stable.stability.guard import StepGuard
from paddle_stable.stability.running_statistics import RunningStatistics
from paddle_stable.stability.spikes import SpikeWatch
from paddle_stable.stability.step_report import Verdict
from paddle_stable.training_state import model_arrays, optimizer_arrays


class SmallNet(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.batch_norm = nn.BatchNorm1D(8)
        self.second = nn.Linear(8, 8, weight_attr=paddle.ParamAttr(need_clip=False))
        self.layer_norm = nn.LayerNorm(8)
        self.last = nn.Linear(8, 1)

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        return self.last(self.layer_norm(paddle.tanh(self.second(self.batch_norm(self.first(x))))))


@dataclass
class SmallRun:
    """A guarded optimizer without a trainer around it."""

    model: nn.Layer
    optimizer: paddle.optimizer.Optimizer
    guard: StepGuard
    gradients: Gradients
    precision: Precision
    applied: int = 0

    def step(self, seed: int, spoil: Callable[[nn.Layer], Any] | None = None, loss_factor: float = 1.0) -> Verdict:
        generator = np.random.default_rng(seed)
        x = paddle.to_tensor(generator.normal(size=(16, 4)).astype("float32"))
        self.guard.begin()
        loss = (self.model(x) ** 2).mean() * loss_factor
        self.precision.backward(loss)
        if spoil is not None:
            spoil(self.model)
        verdict = self.guard.step(self.optimizer, [loss], samples=16, applied=self.applied)
        self.applied += verdict.applied
        return verdict

    def digest(self) -> str:
        """Everything that learns: parameters, moments, beta powers, running statistics, learning rate."""
        arrays = {**model_arrays(self.model), **optimizer_arrays(self.optimizer, self.model)}
        return f"{digest(arrays)} lr={self.optimizer.get_lr()}"


@pytest.fixture
def small_run() -> Callable[..., SmallRun]:
    def build(
        clip: ClipConfig | None = None,
        amp: AmpConfig | None = None,
        *,
        guard: bool = True,
        spike: SpikeConfig | None = None,
        lr: float = 1e-2,
    ) -> SmallRun:
        clip, amp = clip or ClipConfig(), amp or AmpConfig()
        paddle.seed(0)
        with paddle.utils.unique_name.guard():
            model = SmallNet()
        world = World.single()
        statistics = RunningStatistics(model)
        gradients = Gradients(model, world)
        planned = PlannedClip(gradients, clip.max_norm)
        precision = build_precision(amp, model)
        step_guard = StepGuard(
            StabilityConfig(guard=guard),
            spikes=SpikeWatch(spike or SpikeConfig()),
            gradients=gradients,
            clip=build_clip(clip, gradients.names),
            planned_clip=planned,
            precision=precision,
            statistics=statistics,
            world=world,
        )
        return SmallRun(model, build_optimizer(model, OptimConfig(lr=lr), planned), step_guard, gradients, precision)

    return build
