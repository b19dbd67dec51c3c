"""Probes name the layer in which the first non-finite value arose, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import pytest
from paddle import nn

from paddle_stable.stability.probes import LOSS, NETWORK, FirstBad, Probes, Range, followed, probed


class Net(nn.Layer):
    """Two branches over one input, arithmetic between the layers, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.head = nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(4, 1)
        self.between: Callable[[paddle.Tensor], paddle.Tensor] = lambda x: x

    def forward(self, x: paddle.Tensor, *, mask: paddle.Tensor | None = None) -> paddle.Tensor:
        joined = self.left(x) + self.right(x)
        return self.head(self.between(joined if mask is None else joined + mask))


def spoil(net: Net, name: str) -> None:
    weight = dict(net.named_parameters())[name]
    weight.set_value(np.full(weight.shape, np.nan, dtype="float32"))


def look(net: nn.Layer, x: paddle.Tensor, loss: Any = None, **named: Any) -> tuple[FirstBad | None, FirstBad | None]:
    """First bad tensor of the forward pass, and of the backward pass."""
    with probed(net) as probes:
        value = (net(x, **named) ** 2).mean() if loss is None else loss(net(x, **named))
        value.backward()
        probes.keep_parameter_gradients()
        finite = bool(paddle.isfinite(value))
        suspects = probes.forward_suspects(loss_is_finite=finite)
        return (suspects[0] if suspects else None), probes.first_bad_backward()


@pytest.fixture
def net() -> Net:
    paddle.seed(3)
    return Net()


@pytest.fixture
def x() -> paddle.Tensor:
    x = paddle.to_tensor(np.random.default_rng(1).normal(size=(5, 3)).astype("float32"))
    x.stop_gradient = False
    return x


def test_a_sound_pass_has_no_first_bad_tensor(net: Net, x: paddle.Tensor) -> None:
    assert look(net, x) == (None, None)


@pytest.mark.parametrize("layer", ["left", "right", "head"])
def test_a_layer_with_spoilt_weights_is_named(net: Net, x: paddle.Tensor, layer: str) -> None:
    spoil(net, f"{layer}.weight")
    first, _ = look(net, x)
    assert first is not None
    assert (first.layer, first.kind, first.direction, first.tensor) == (layer, "Linear", "forward", "output")
    assert first.inputs[0].is_finite
    assert not first.outputs[0].is_finite
    assert first.parameters["weight"].nan == (4 if layer == "head" else 12)
    assert not first.from_batch


def test_arithmetic_between_layers_is_that_of_the_layer_around_them(net: Net, x: paddle.Tensor) -> None:
    net.between = lambda t: paddle.log(t * 0.0)
    first, _ = look(net, x)
    assert first is not None
    assert (first.layer, first.tensor) == (NETWORK, "an intermediate value on the way into `head`")


def test_a_batch_that_is_bad_is_not_the_layer_s_doing(net: Net) -> None:
    x = paddle.to_tensor(np.array([[1.0, np.inf, 0.0]], dtype="float32"))
    first, _ = look(net, x)
    assert first is not None
    assert (first.layer, first.from_batch) == ("left", True)


def test_a_harmless_infinity_in_an_argument_by_keyword_is_seen_and_not_blamed(net: Net, x: paddle.Tensor) -> None:
    net.between = nn.functional.softmax
    mask = paddle.to_tensor(np.array([[0.0, 0.0, -np.inf, 0.0]], dtype="float32"))
    with probed(net) as probes:
        net(x, mask=mask)
        assert probes.calls[0].inputs[1].inf == 1
        assert probes.forward_suspects(loss_is_finite=True) == []


class Masked(nn.Layer):
    """What it is given may be -inf: softmax takes that away."""

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        return nn.functional.softmax(x)


def test_an_infinity_that_ends_in_its_layer_is_not_the_origin_of_a_later_nan(net: Net, x: paddle.Tensor) -> None:
    net.left, net.right = nn.Sequential(net.left, Masked()), nn.Sequential(net.right, Masked())
    spoil(net, "head.weight")
    mask = paddle.to_tensor(np.array([[0.0, 0.0, -np.inf]], dtype="float32"))

    class Around(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.mask, self.net = Masked(), net

        def forward(self, x: paddle.Tensor) -> paddle.Tensor:
            return self.net(x + self.mask(x + mask))

    first, _ = look(Around(), x)
    assert first is not None
    assert (first.layer, first.tensor) == ("net.head", "output")


@pytest.mark.parametrize(("value", "suspects"), [
    (-np.inf, [NETWORK, "head"]),  # a mask, or the origin
    (np.nan, [NETWORK]),
])  # fmt: skip
def test_an_infinity_that_is_passed_on_leaves_the_next_layer_suspect_too(
    net: Net, x: paddle.Tensor, value: float, suspects: list[str]
) -> None:
    net.between = lambda t: t + paddle.full([4], value)
    with probed(net) as probes:
        net(x)
    found = probes.forward_suspects(loss_is_finite=False)
    assert [suspect.layer for suspect in found] == suspects
    assert (found[0].call, found[0].before_call) == (0, 3)


@pytest.mark.parametrize("layer", ["left", "right"])
def test_the_backward_pass_of_one_of_two_layers_over_one_input_is_told_apart(
    net: Net, x: paddle.Tensor, layer: str
) -> None:
    """The gradient of what they share is the sum of both: each has to be seen by itself."""
    inner = getattr(net, layer)

    class Rooted(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: paddle.Tensor) -> paddle.Tensor:
            return self.inner(paddle.sqrt(x * 0.0))

    setattr(net, layer, Rooted())
    forward, backward = look(net, x)
    assert forward is None
    assert backward is not None
    assert (backward.layer, backward.direction) == (layer, "backward")
    assert backward.outputs[0].nan + backward.outputs[0].inf > 0
    assert all(r.is_finite for r in backward.inputs)


def test_a_loss_whose_slope_is_not_finite_is_named(net: Net, x: paddle.Tensor) -> None:
    _, backward = look(net, x, loss=lambda y: paddle.sqrt(y * 0.0).mean())
    assert backward is not None
    assert (backward.layer, backward.direction) == (LOSS, "backward")


def hooks_on(model: nn.Layer) -> int:
    return sum(len(x._forward_pre_hooks) + len(x._forward_post_hooks) for x in model.sublayers(include_self=True))


def following(model: nn.Layer) -> Any:
    return followed(model, lambda call: None)


def test_the_call_at_work_is_told_whenever_it_changes(net: Net, x: paddle.Tensor) -> None:
    told: list[int | None] = []
    with followed(net, told.append):
        net(x)
    assert told == [0, 1, 0, 2, 0, 3, 0, None]


@pytest.mark.parametrize("probing", [probed, following])
def test_probes_are_gone_afterwards_also_after_an_error(net: Net, probing: Callable[[nn.Layer], Any]) -> None:
    seen = []

    def fail() -> None:
        with probing(net) as probes:
            seen.append((type(probes), hooks_on(net) > 0))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert seen == [(Probes, True)]
    assert hooks_on(net) == 0


def test_values_and_gradients_are_those_without_probes(net: Net, x: paddle.Tensor) -> None:
    def outcome() -> list[Any]:
        value = (net(x) ** 2).mean()
        value.backward()
        found = [value.numpy().tolist(), x.grad.numpy().tolist()]
        found += [p.grad.numpy().tolist() for p in net.parameters()]
        for tensor in (x, *net.parameters()):
            tensor.clear_gradient(False)
        return found

    plain = outcome()
    with probed(net):
        assert outcome() == plain


def test_growth_along_the_sequence_is_measured() -> None:
    network = nn.SimpleRNN(2, 2, activation="relu")
    network.weight_hh_l0.set_value(paddle.eye(2) * 2.0)
    network.weight_ih_l0.set_value(paddle.eye(2))
    with probed(network) as probes:
        network(paddle.ones([1, 20, 2]))
    assert 2**17 < probes.calls[0].growth < 2**19
    with probed(nn.LSTM(2, 2)) as probes:
        assert probes.calls == []


def test_a_range_counts_what_is_not_finite() -> None:
    found = Range.of(paddle.to_tensor(np.array([1.0, np.nan, -np.inf, np.inf, -3.0], dtype="float32")))
    assert (found.low, found.high, found.nan, found.inf) == (-3.0, 1.0, 1, 2)
    assert str(found) == "-3 … 1, 1 NaN, 2 inf, float32 [5]"
    assert str(Range.of(paddle.to_tensor([np.nan]))).startswith("nothing finite, 1 NaN")
    assert Range.of(paddle.ones([2], dtype="bfloat16")).magnitude == 1.0
