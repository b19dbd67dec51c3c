from __future__ import annotations

import math

import numpy as np
import paddle
import pytest

from paddle_stable.distributed import World
from paddle_stable.stability.gradients import Gradients, layer_group


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("ernie.encoder.layers.3.self_attn.q_proj.weight", "ernie.encoder.layers.3"),
        ("ernie.embeddings.word_embeddings.weight", "ernie.embeddings"),
        ("classifier.bias", "classifier"),
        ("weight", "weight"),
    ],
)
def test_parameters_are_reported_by_layer(name: str, group: str) -> None:
    assert layer_group(name) == group


def measured(values: dict[str, np.ndarray]) -> tuple[Gradients, np.ndarray]:
    layer = paddle.nn.Linear(2, 2)
    for name, value in values.items():
        getattr(layer, name).grad = paddle.to_tensor(value.astype("float32"))
    gradients = Gradients(layer, World.single())
    return gradients, gradients.measure([paddle.ones([1])], 1, stop_vote=False, clamp=None).norms


def test_norms_are_those_of_float64() -> None:
    weight, bias = np.random.default_rng(0).normal(size=(2, 2)), np.array([3.0, 4.0])
    gradients, norms = measured({"weight": weight, "bias": bias})
    assert gradients.names == ("weight", "bias")
    np.testing.assert_allclose(norms, [np.linalg.norm(weight), 5.0], rtol=1e-6)
    assert gradients.total(norms) == pytest.approx(math.hypot(*norms))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_only_the_gradient_that_is_not_finite_is_said_to_be(bad: float) -> None:
    _, norms = measured({"weight": np.array([[1e25, bad], [0.0, 1.0]]), "bias": np.array([1e30, 0.0])})
    assert math.isnan(norms[0])
    assert norms[1] == pytest.approx(1e30, rel=1e-6)


def test_a_parameter_without_a_gradient_counts_as_zero() -> None:
    _, norms = measured({"bias": np.array([1e30, 0.0])})
    assert norms[0] == 0.0
    assert norms[1] == pytest.approx(1e30, rel=1e-6)


def test_frozen_parameters_are_left_out() -> None:
    layer = paddle.nn.Linear(2, 2)
    layer.weight.stop_gradient = True
    assert Gradients(layer, World.single()).names == ("bias",)


def test_loss_samples_and_votes_arrive_with_the_same_read() -> None:
    layer = paddle.nn.Linear(2, 2)
    layer.weight.grad = paddle.ones([2, 2])
    parts = [paddle.to_tensor(0.25), paddle.to_tensor([0.5])]
    result = Gradients(layer, World.single()).measure(parts, 24, stop_vote=True, clamp=0.5)
    assert (result.loss, result.samples, result.stop_votes, result.flagged) == (0.75, 24, 1, False)
    assert result.clamped_norms is not None
    np.testing.assert_allclose(result.clamped_norms, [1.0, 0.0])
