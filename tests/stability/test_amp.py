"""The loss scale against a written-out oracle, and emulated half precision end to end."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import paddle
import pytest
from paddle.amp import grad_scaler

from paddle_stable.recipe import AmpConfig, ClipConfig
from paddle_stable.stability.amp import DevicePrecision, LossScale, build_precision, rounded_layers
from paddle_stable.stability.step_report import SkipReason

PATTERNS = {
    "all": itertools.repeat(True),
    "none": itertools.repeat(False),
    "alternating": itertools.cycle([True, False]),
    "some": itertools.cycle([False, False, True, True, False, True, False, False, False, False, False]),
}


def oracle(pattern: list[bool], init: float, growth: int, hysteresis: int, floor: float, ceiling: float) -> list[float]:
    """The rule again, written as a plain count over the whole history instead of as state."""
    scales, scale = [], init
    quiet, bad = 0, 0
    for overflow in pattern:
        scales.append(scale)
        if overflow:
            quiet, bad = 0, bad + 1
            if bad == hysteresis:
                scale, bad = max(scale / 2, floor), 0
        else:
            bad, quiet = 0, quiet + 1
            if quiet == growth:
                scale, quiet = min(scale * 2, ceiling), 0
    return scales


@pytest.mark.parametrize("name", sorted(PATTERNS))
@pytest.mark.parametrize("hysteresis", [1, 2, 3])
def test_the_scale_follows_the_oracle(name: str, hysteresis: int) -> None:
    config = AmpConfig(
        dtype="float16", emulate=True, init_scale=1024.0, growth_interval=3, hysteresis=hysteresis, min_scale=4.0,
        max_scale=8192.0,
    )  # fmt: skip
    pattern = list(itertools.islice(PATTERNS[name], 60))
    state, scales = LossScale(config.init_scale), []
    for overflow in pattern:
        scales.append(state.scale)
        state = state.after(overflow=overflow, config=config)
    assert scales == oracle(pattern, 1024.0, 3, hysteresis, 4.0, 8192.0)


def test_literal_scales_of_the_usual_rule() -> None:
    config = AmpConfig(dtype="float16", emulate=True, init_scale=16.0, growth_interval=2, min_scale=2.0)
    state, scales = LossScale(16.0), []
    for overflow in [True, True, True, True, True, False, False, False, False]:
        state = state.after(overflow=overflow, config=config)
        scales.append(state.scale)
    assert scales == [8.0, 4.0, 2.0, 2.0, 2.0, 2.0, 4.0, 4.0, 8.0]


def emulated(**changes: Any) -> AmpConfig:
    return AmpConfig(dtype="float16", emulate=True, **changes)


def test_overflow_lowers_the_scale_and_changes_nothing_else(small_run: Any) -> None:
    run = small_run(amp=emulated(init_scale=2.0**24))
    before = run.digest()
    verdicts = []
    while not (verdict := run.step(0, loss_factor=1000.0)).applied:
        verdicts.append(verdict)
        assert run.digest() == before
    assert verdicts
    assert all(v.skipped is SkipReason.OVERFLOW for v in verdicts)
    assert [v.loss_scale for v in verdicts] == [2.0 ** (24 - i) for i in range(len(verdicts))]
    assert run.digest() != before


def test_overflow_at_the_floor_is_nonfinite(small_run: Any) -> None:
    run = small_run(amp=emulated(init_scale=8.0, min_scale=4.0))
    reasons = [run.step(0, loss_factor=1e10).skipped for _ in range(4)]
    assert reasons == [SkipReason.OVERFLOW, *[SkipReason.NONFINITE] * 3]
    assert run.precision.scaling.value == 4.0


def test_an_activation_overflow_is_not_blamed_on_the_scale(small_run: Any) -> None:
    run = small_run(amp=emulated())
    with paddle.no_grad():
        run.model.last.bias.set_value(paddle.full([1], 70000.0))
    assert run.step(0).skipped is SkipReason.NONFINITE
    assert run.precision.scaling.value == 65536.0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_emulation_rounds_activations_and_gradients_like_ieee_half(dtype: str) -> None:
    layer = paddle.nn.Sequential(paddle.nn.Linear(3, 3))
    precision = build_precision(AmpConfig(dtype=dtype, emulate=True, init_scale=1.0, min_scale=1.0), layer)
    x = paddle.to_tensor([[0.1, 0.2, 0.3]])
    plain = paddle.nn.functional.linear(x, layer[0].weight, layer[0].bias)
    np.testing.assert_array_equal(layer(x).numpy(), plain.astype(dtype).astype("float32").numpy())
    with precision.switched_off():
        np.testing.assert_array_equal(layer(x).numpy(), plain.numpy())


@pytest.mark.parametrize("kind", [paddle.nn.LSTM, paddle.nn.GRU, paddle.nn.SimpleRNN])
def test_recurrent_layers_are_rounded_as_a_whole(kind: type[paddle.nn.Layer]) -> None:
    """Their kernel never calls the cells, on which a hook would round nothing."""
    model = paddle.nn.Sequential(kind(3, 4, num_layers=2), paddle.nn.Identity())
    assert list(rounded_layers(model)) == ["0", "1"]
    x = paddle.rand([2, 5, 3])
    plain = model[0](x)[0].numpy()
    build_precision(emulated(emulate_layers=("0",)), model)
    outputs, states = model[0](x)
    np.testing.assert_array_equal(outputs.numpy(), plain.astype("float16").astype("float32"))
    for state in states if isinstance(states, tuple) else (states,):
        assert (state.numpy() == state.numpy().astype("float16").astype("float32")).all()
    (outputs.sum() * 1e-9).backward()
    assert float(model[0].weight_hh_l1.grad.abs().max()) == 0.0  # its gradient is rounded to zero on the way back


def test_a_cell_that_is_called_by_itself_is_rounded() -> None:
    model = paddle.nn.Sequential(paddle.nn.RNN(paddle.nn.GRUCell(3, 4)))
    assert list(rounded_layers(model)) == ["0.cell"]


def test_small_gradients_vanish_in_half_precision_and_scaling_saves_them() -> None:
    def gradient(scale: float) -> float:
        layer = paddle.nn.Sequential(paddle.nn.Linear(1, 1))
        precision = build_precision(emulated(init_scale=scale), layer)
        precision.backward(layer(paddle.ones([1, 1])).sum() * 1e-9)
        precision.unscale(paddle.optimizer.SGD(parameters=layer.parameters()), list(layer.parameters()))
        return float(layer[0].weight.grad.item())

    assert gradient(1.0) == 0.0
    assert gradient(65536.0) == pytest.approx(1e-9, rel=1e-2)


def test_only_the_listed_layers_are_rounded(small_run: Any) -> None:
    run = small_run(amp=emulated(emulate_layers=("last",)))
    seen = []
    hook = run.model.first.register_forward_post_hook(lambda layer, inputs, output: seen.append(output))
    output = run.model(paddle.rand([16, 4]))
    hook.remove()
    assert (output.numpy() == output.numpy().astype("float16").astype("float32")).all()
    assert (seen[0].numpy() != seen[0].numpy().astype("float16").astype("float32")).any()


@pytest.fixture(params=["float32", "float16", "bfloat16"])
def precision_pair(request: pytest.FixtureRequest) -> tuple[Any, ...]:
    config = AmpConfig(dtype=request.param, emulate=request.param != "float32")
    return tuple(build_precision(config, paddle.nn.Sequential(paddle.nn.Linear(1, 1))).scaling for _ in range(2))


def test_the_state_round_trips(precision_pair: tuple[Any, ...]) -> None:
    first, second = precision_pair
    for overflow in (True, False, False):
        first.update(overflow=overflow)
    second.load_state(first.state())
    assert second.state() == first.state()
    assert second.value == first.value


@pytest.fixture
def gpu_like_precision(monkeypatch: pytest.MonkeyPatch) -> DevicePrecision:
    """float16 through Paddle's own GradScaler, which is made to believe that the CPU is a GPU."""
    gpu = SimpleNamespace(_expected_place=SimpleNamespace(is_gpu_place=lambda: True))
    # Entering an autocast is what tells the GradScaler the format; here it is told, and the layers stay float32.
    monkeypatch.setattr(grad_scaler.amp_global_state(), "amp_dtype", "float16")
    with monkeypatch.context() as patch:
        patch.setattr(grad_scaler, "_dygraph_tracer", lambda: gpu)
        return DevicePrecision(AmpConfig(dtype="float16", init_scale=1024.0, growth_interval=2, min_scale=256.0))


def test_the_grad_scaler_is_driven_by_our_policy(gpu_like_precision: DevicePrecision) -> None:
    precision, layer = gpu_like_precision, paddle.nn.Linear(2, 1, bias_attr=False)
    optimizer = paddle.optimizer.SGD(parameters=layer.parameters())
    scaled, unscaled = [], []
    for overflow in (False, False, True, True, True, True, False):
        for _ in range(2):  # two micro-batches
            precision.backward(layer(paddle.ones([1, 2])).sum())
        scaled.append(float(layer.weight.grad[0].item()))
        precision.unscale(optimizer, list(layer.parameters()))
        unscaled.append(float(layer.weight.grad[0].item()))
        optimizer.clear_grad()
        precision.scaling.update(overflow=overflow)
    assert scaled == [2048.0, 2048.0, 4096.0, 2048.0, 1024.0, 512.0, 512.0]
    assert unscaled == [2.0] * 7


def test_a_resumed_scale_reaches_the_grad_scaler(gpu_like_precision: DevicePrecision) -> None:
    precision, layer = gpu_like_precision, paddle.nn.Linear(1, 1, bias_attr=False)
    precision.scaling.load_state({"dtype": "float16", "scale": 8.0, "finite_steps": 1, "overflows": 0})
    precision.backward(layer(paddle.ones([1, 1])).sum())
    assert float(layer.weight.grad.item()) == 8.0
    precision.scaling.update(overflow=False)
    assert precision.scaling.value == 16.0


def test_a_grad_scaler_that_has_switched_itself_off_is_noticed(
    gpu_like_precision: DevicePrecision, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grad_scaler.amp_global_state(), "amp_dtype", "bfloat16")
    with (
        pytest.warns(UserWarning, match="dynamic loss scaling"),
        pytest.raises(RuntimeError, match="switched itself off"),
    ):
        gpu_like_precision.backward(paddle.ones([1]))


def test_clip_rate_is_the_same_in_emulated_half_precision(small_run: Any) -> None:
    plain, half = small_run(ClipConfig(max_norm=0.2)), small_run(ClipConfig(max_norm=0.2), emulated(init_scale=128.0))
    for seed in range(5):
        a, b = plain.step(seed), half.step(seed)
        assert a.clipped == b.clipped
        assert a.grad_norm == pytest.approx(b.grad_norm, rel=0.05)
