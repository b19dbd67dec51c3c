from __future__ import annotations

import math

import numpy as np
import paddle
import pytest

from paddle_stable.recipe import FaultConfig
from paddle_stable.stability.faults import Faults


def network_with_gradients() -> paddle.nn.Layer:
    model = paddle.nn.Sequential(paddle.nn.Linear(2, 2), paddle.nn.Linear(2, 1))
    model(paddle.ones([3, 2])).sum().backward()
    return model


def test_nan_loss_hits_its_step_and_its_rank_only() -> None:
    faults = Faults((FaultConfig(step=5, kind="nan_loss", rank=1),), rank=1)
    loss = paddle.to_tensor(2.0)
    assert math.isnan(float(faults.spoil_loss(5, loss)))
    assert float(faults.spoil_loss(4, loss)) == 2.0
    assert float(Faults((FaultConfig(step=5, kind="nan_loss", rank=1),), rank=0).spoil_loss(5, loss)) == 2.0


@pytest.mark.parametrize(("pattern", "expected"), [("*", "0.weight"), ("1.*", "1.weight"), ("*.bias", "0.bias")])
def test_inf_grad_puts_one_inf_into_the_first_matching_parameter(pattern: str, expected: str) -> None:
    model = network_with_gradients()
    Faults((FaultConfig(step=1, kind="inf_grad", parameter=pattern),), rank=0).spoil_gradients(1, model)
    infinite = {n: int(np.isinf(p.grad.numpy()).sum()) for n, p in model.named_parameters()}
    assert infinite == {n: int(n == expected) for n in infinite}


def test_withhold_is_on_every_rank() -> None:
    for rank in (0, 1):
        faults = Faults((FaultConfig(step=3, kind="withhold"),), rank=rank)
        assert [faults.withholds(step) for step in (2, 3, 4)] == [False, True, False]


def test_without_faults_nothing_is_touched() -> None:
    faults, model = Faults((), rank=0), network_with_gradients()
    before = [p.grad.numpy().copy() for p in model.parameters()]
    loss = paddle.to_tensor(1.0)
    assert faults.spoil_loss(1, loss) is loss
    faults.spoil_gradients(1, model)
    assert not faults.withholds(1)
    assert all((p.grad.numpy() == b).all() for p, b in zip(model.parameters(), before, strict=True))
