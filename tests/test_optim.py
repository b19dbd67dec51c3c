from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle import nn

from paddle_stable.distributed import World
from paddle_stable.errors import InputError
from paddle_stable.optim import apply_groups, build_optimizer
from paddle_stable.recipe import GroupConfig, OptimConfig
from paddle_stable.stability.clip import ClipPlan, PlannedClip
from paddle_stable.stability.gradients import Gradients


def network() -> nn.Layer:
    paddle.seed(0)
    return nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.Linear(3, 1))


def one_step(model: nn.Layer, config: OptimConfig) -> dict[str, np.ndarray]:
    """How far each parameter moves in one step in which all gradients are zero but those of the last layer."""
    apply_groups(model, config.groups, "recipe.yaml")
    gradients = Gradients(model, World.single())
    planned = PlannedClip(gradients, 1.0)
    optimizer = build_optimizer(model, config, planned)
    before = {n: p.numpy().copy() for n, p in model.named_parameters()}
    for name, parameter in model.named_parameters():
        if not parameter.stop_gradient:
            parameter.grad = paddle.ones_like(parameter) if name.startswith("2.") else paddle.zeros_like(parameter)
    planned.set_plan(ClipPlan((1.0,) * len(gradients.names), scale=1.0))
    optimizer.step()
    return {n: p.numpy() - before[n] for n, p in model.named_parameters()}


def test_weight_decay_spares_biases_and_normalisation() -> None:
    model = network()
    weight = model[0].weight.numpy().copy()
    moved = one_step(model, OptimConfig(lr=0.1, weight_decay=0.5))
    np.testing.assert_allclose(moved["0.weight"], -0.1 * 0.5 * weight, rtol=1e-4)
    for name in ("0.bias", "1.weight", "1.bias"):
        assert (moved[name] == 0.0).all()


def test_groups_scale_the_learning_rate_and_freeze() -> None:
    groups = (
        GroupConfig(match="2.bias", lr_scale=0.5),
        GroupConfig(match="2.*"),
        GroupConfig(match="0.*", freeze=True),
    )
    moved = one_step(network(), OptimConfig(lr=0.1, weight_decay=0.0, groups=groups))
    np.testing.assert_allclose(moved["2.weight"], -0.1, rtol=1e-4)
    np.testing.assert_allclose(moved["2.bias"], -0.05, rtol=1e-4)
    assert (moved["0.weight"] == 0.0).all()


def test_a_pattern_without_a_match_is_an_error_that_shows_names() -> None:
    with pytest.raises(InputError, match=r"optim\.groups\.1\.match: 'encoder\.\*'.*0\.weight"):
        apply_groups(network(), (GroupConfig(match="0.*"), GroupConfig(match="encoder.*")), "recipe.yaml")


def test_freezing_everything_is_an_error() -> None:
    with pytest.raises(InputError, match="nothing to train"):
        apply_groups(network(), (GroupConfig(match="*", freeze=True),), "recipe.yaml")
