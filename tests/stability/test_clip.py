"""Promise 2: a clipped step equals Paddle's, is right when squares overflow, and is measured once."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import paddle
import pytest

from paddle_stable.distributed import World
from paddle_stable.recipe import AdaptiveClipConfig, AmpConfig, ClipBoundConfig, ClipConfig, ClipGroupConfig
from paddle_stable.stability.clip import REST, ClipPlan, PlannedClip, build_clip
from paddle_stable.stability.gradients import Gradients

METHODS: tuple[Literal["percentile", "zscore"], ...] = ("percentile", "zscore")
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


def plan_of(config: ClipConfig, scale: float, *, applied: int = 0) -> tuple[ClipPlan, Gradients, float]:
    """The plan for random gradients of a size, and their norm."""
    gradients = Gradients(parameters_with_gradients(scale), World.single())
    clip = build_clip(config, gradients.names)
    measured = gradients.measure([paddle.ones([1])], 1, stop_vote=False, clamp=clip.clamp)
    return clip.plan(measured, gradients, applied=applied), gradients, gradients.total(measured.norms)


SCHEDULE = (
    ClipBoundConfig(from_step=10, max_norm=2.0),
    ClipBoundConfig(from_step=20, max_norm=None),
    ClipBoundConfig(from_step=30, max_norm=0.25),
)


@pytest.mark.parametrize(
    ("applied", "bound"),
    [(0, 0.5), (9, 0.5), (10, 2.0), (19, 2.0), (20, None), (29, None), (30, 0.25), (10**6, 0.25)],
)
def test_a_scheduled_bound_is_a_function_of_the_applied_step(applied: int, bound: float | None) -> None:
    plan, _, norm = plan_of(ClipConfig(max_norm=0.5, schedule=SCHEDULE), 1.0, applied=applied)
    assert plan.scale == (1.0 if bound is None else bound / norm)
    assert plan.clips is (bound is not None)


def test_groups_are_limited_each_by_its_own_bound() -> None:
    groups = (ClipGroupConfig(match="1.*", max_norm=100.0), ClipGroupConfig(match="*.bias", max_norm=0.1))
    config = ClipConfig(kind="layers", max_norm=0.5, groups=groups)
    model = parameters_with_gradients(1.0)
    raw = {name: p.grad.numpy().copy() for name, p in model.named_parameters()}
    ours, plan, norm = clipped(model, config)
    left = dict(zip(raw, ours, strict=True))
    assert plan.groups == {"1.*": False, "*.bias": True, REST: True}
    np.testing.assert_allclose(np.linalg.norm(left["0.bias"]), 0.1, rtol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(left["0.weight"]), 0.5, rtol=1e-6)
    assert (left["1.weight"] == raw["1.weight"]).all()
    assert (left["1.bias"] == raw["1.bias"]).all(), "the first match has it, and it may not be clipped anyway"
    after = math.sqrt(sum(float(np.square(left[n]).sum()) for n in ("0.weight", "0.bias", "1.weight")))
    assert plan.scale == pytest.approx(after / norm, rel=1e-6)


def test_a_group_counts_as_one_vector() -> None:
    """A group that holds everything is the global clip."""
    groups = (ClipGroupConfig(match="*", max_norm=0.7),)
    ours, plan, _ = clipped(parameters_with_gradients(1.0), ClipConfig(kind="layers", groups=groups))
    stock, whole, _ = clipped(parameters_with_gradients(1.0), ClipConfig(max_norm=0.7))
    assert plan.groups == {"*": True, REST: False}
    assert plan.scale == pytest.approx(whole.scale, rel=1e-12)
    assert all((a == b).all() for a, b in zip(ours, stock, strict=True))


@pytest.mark.parametrize("method", ["percentile", "zscore"])
def test_an_adaptive_bound_never_exceeds_the_fixed_one(method: Any) -> None:
    config = ClipConfig(kind="adaptive", max_norm=3.0, adaptive=AdaptiveClipConfig(method=method, percentile=50.0))
    gradients = Gradients(parameters_with_gradients(1.0), World.single())
    clip = build_clip(config, gradients.names)
    measured = gradients.measure([paddle.ones([1])], 1, stop_vote=False, clamp=None)
    norm = gradients.total(measured.norms)
    assert clip.plan(measured, gradients, applied=0).scale == 3.0 / norm, "in the warm-up the fixed bound alone"
    for _ in range(30):
        clip.learn(0.5, 0.5)
    assert clip.plan(measured, gradients, applied=30).scale == pytest.approx(0.5 / norm)
    for _ in range(2000):
        clip.learn(50.0, 3.0)
    assert clip.plan(measured, gradients, applied=2030).scale == 3.0 / norm


def test_norms_of_zero_do_not_bind_the_bound_to_zero() -> None:
    config = ClipConfig(kind="adaptive", max_norm=3.0)
    gradients = Gradients(parameters_with_gradients(1.0), World.single())
    clip = build_clip(config, gradients.names)
    for _ in range(30):
        clip.learn(0.0, 0.0)
    measured = gradients.measure([paddle.ones([1])], 1, stop_vote=False, clamp=None)
    assert clip.plan(measured, gradients, applied=30).scale == 3.0 / gradients.total(measured.norms)


def test_what_another_method_has_learned_is_left_alone() -> None:
    clips = {m: build_clip(ClipConfig(kind="adaptive", adaptive=AdaptiveClipConfig(method=m)), ()) for m in METHODS}
    for clip in clips.values():
        for norm in (1.0, 2.0, 3.0):
            clip.learn(norm, norm)
    before = clips["zscore"].state()
    clips["zscore"].load_state(clips["percentile"].state())
    clips["zscore"].load_state(build_clip(ClipConfig(), ()).state())
    assert clips["zscore"].state() == before


KINDS = [
    ClipConfig(max_norm=5.0),
    ClipConfig(kind="norm", max_norm=5.0),
    ClipConfig(kind="value", max_value=1.0),
    ClipConfig(kind="layers", groups=(ClipGroupConfig(match="0.*", max_norm=4.0),), max_norm=2.0),
    ClipConfig(kind="none"),
]


@pytest.mark.parametrize("config", KINDS, ids=lambda config: config.kind)
def test_limiting_a_spike_further_is_one_plan_and_exact(config: ClipConfig) -> None:
    first, _, _ = clipped(parameters_with_gradients(3.0), config)
    plan, gradients, norm = plan_of(config, 3.0)
    limited = plan.limited(gradients, norm, 0.3)
    planned = PlannedClip(gradients, 1.0)
    planned.set_plan(limited)
    result = [g.numpy() for _, g in planned([(p, p.grad) for p in gradients.parameters])]
    clippable = [g for g, may in zip(result, gradients.clippable, strict=True) if may]
    assert limited.clips
    np.testing.assert_allclose(math.sqrt(sum(float(np.square(g).sum()) for g in clippable)), 0.3, rtol=1e-5)
    np.testing.assert_allclose(limited.scale * norm, 0.3, rtol=1e-6)
    for once, twice, may in zip(first, result, gradients.clippable, strict=True):
        np.testing.assert_allclose(twice, once * (limited.scale / plan.scale) if may else once, rtol=1e-4, atol=1e-9)


def test_a_plan_already_within_the_bound_is_left_as_it_is() -> None:
    plan, gradients, norm = plan_of(ClipConfig(max_norm=0.2), 1.0)
    assert plan.limited(gradients, norm, 0.3) is plan
