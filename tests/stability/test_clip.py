"""Promise 2: a clipped step equals Paddle's, is right when squares overflow, and is measured once."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import paddle
import pytest

from paddle_stable.distributed import World
from paddle_stable.recipe import AmpConfig, ClipConfig
from paddle_stable.stability.clip import ClipPlan, PlannedClip, build_clip
from paddle_stable.stability.gradients import Gradients

STOCK = {
    "global_norm": paddle.nn.ClipGradByGlobalNorm,
    "norm": paddle.nn.ClipGradByNorm,
    "value": paddle.nn.ClipGradByValue,
}


def parameters_with_gradients(scale: float, seed: int = 0) -> paddle.nn.Layer:
    """Two layers, one parameter outside the clip, with random gradients of the given size."""
    generator = np.random.default_rng(seed)
    model = paddle.nn.Sequential(
        paddle.nn.Linear(30, 20), paddle.nn.Linear(20, 10, bias_attr=paddle.ParamAttr(need_clip=False))
    )
    for parameter in model.parameters():
        gradient = generator.normal(size=parameter.shape).astype("float32") * np.float32(scale)
        parameter.grad = paddle.to_tensor(gradient)
    return model


def clipped(model: paddle.nn.Layer, config: ClipConfig) -> tuple[list[np.ndarray], ClipPlan, float]:
    """The gradients after our clip, the plan, and the norm before."""
    gradients = Gradients(model, World.single())
    clip = build_clip(config, gradients.names)
    measured = gradients.measure([paddle.ones([1])], 1, stop_vote=False, clamp=clip.clamp)
    plan = clip.plan(measured, gradients, applied=0)
    planned = PlannedClip(gradients, 1.0)
    planned.set_plan(plan)
    result = planned([(p, p.grad) for p in gradients.parameters])
    return [g.numpy() for _, g in result], plan, gradients.total(measured.norms)


@pytest.mark.parametrize("kind", ["global_norm", "norm", "value"])
@pytest.mark.parametrize("scale", [1e-3, 0.05, 1.0, 300.0])
@pytest.mark.parametrize("bound", [0.5, 5.0])
def test_equals_paddles_own_clip(kind: str, scale: float, bound: float) -> None:
    model = parameters_with_gradients(scale)
    stock = [g.numpy() for _, g in STOCK[kind](bound)([(p, p.grad) for p in model.parameters()])]
    ours, _, _ = clipped(parameters_with_gradients(scale), ClipConfig(kind=kind, max_norm=bound, max_value=bound))
    for a, b in zip(ours, stock, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_equals_torchs_formula_where_the_norm_is_large() -> None:
    """Gradient [6, 8, 24] (norm 26), bound 2: torch.nn.utils.clip_grad_norm_ gives c / (norm + 1e-6)."""
    layer = paddle.nn.Linear(3, 1, bias_attr=False)
    layer.weight.grad = paddle.to_tensor([[6.0], [8.0], [24.0]])
    ours, _, norm = clipped(layer, ClipConfig(max_norm=2.0))
    assert norm == 26.0
    np.testing.assert_allclose(ours[0].ravel(), [0.46153844, 0.61538458, 1.84615374], rtol=1e-6)


@pytest.mark.parametrize("huge", [1e30, -3e38, 1e20])
def test_a_finite_gradient_whose_square_overflows_is_clipped_in_the_right_direction(huge: float) -> None:
    model = parameters_with_gradients(1.0)
    model[0].weight.grad[0, 0] = huge
    ours, plan, norm = clipped(model, ClipConfig(max_norm=1.0))
    assert norm == pytest.approx(abs(huge), rel=1e-6)
    assert plan.scale == pytest.approx(1.0 / abs(huge), rel=1e-6)
    assert ours[0][0, 0] == pytest.approx(math.copysign(1.0, huge), rel=1e-5)
    assert all(np.isfinite(g).all() for g in ours)


def test_a_gradient_within_the_bound_is_not_touched() -> None:
    model = parameters_with_gradients(1e-4)
    before = [p.grad.numpy().copy() for p in model.parameters()]
    for kind in ("global_norm", "norm", "value"):
        ours, plan, _ = clipped(model, ClipConfig(kind=kind))
        assert not plan.clips
        assert plan.scale == 1.0
        assert all((a == b).all() for a, b in zip(ours, before, strict=True))


@pytest.mark.parametrize("kind", ["global_norm", "norm", "value"])
def test_clip_scale_is_the_norm_after_over_the_norm_before(kind: str) -> None:
    model = parameters_with_gradients(3.0)
    ours, plan, norm = clipped(model, ClipConfig(kind=kind))
    clippable = [g for g, p in zip(ours, model.parameters(), strict=True) if p.need_clip]
    after = math.sqrt(sum(float((g.astype("float64") ** 2).sum()) for g in clippable))
    assert plan.clips
    assert plan.scale == pytest.approx(after / norm, rel=1e-6)


def test_a_zero_gradient_has_no_effect() -> None:
    model = parameters_with_gradients(0.0)
    for kind in ("global_norm", "norm", "value", "none"):
        ours, plan, norm = clipped(model, ClipConfig(kind=kind))
        assert norm == 0.0
        assert plan.scale == 1.0
        assert all((g == 0.0).all() for g in ours)


@pytest.mark.parametrize("exponent", [0, 1, 5, 10, 16, 24])
def test_norm_and_clip_do_not_depend_on_the_loss_scale(small_run: Any, exponent: int) -> None:
    reference = small_run(ClipConfig(max_norm=0.1)).step(3, loss_factor=50.0)
    # No layer is rounded here, so that the scale itself is the only difference.
    amp = AmpConfig(dtype="float16", emulate=True, emulate_layers=("no such layer",), init_scale=2.0**exponent)
    scaled = small_run(ClipConfig(max_norm=0.1), amp).step(3, loss_factor=50.0)
    assert scaled.loss_scale == 2.0**exponent
    assert scaled.clipped
    assert scaled.grad_norm == pytest.approx(reference.grad_norm, rel=1e-5)
    assert scaled.clip_scale == pytest.approx(reference.clip_scale, rel=1e-5)
