from __future__ import annotations

import paddle
from paddle import nn

from paddle_stable.stability.running_statistics import RunningStatistics


def test_batch_norm_statistics_are_found_although_they_are_no_buffers() -> None:
    model = nn.Sequential(nn.Conv2D(3, 4, 3), nn.BatchNorm2D(4))
    assert not list(model.named_buffers())
    assert RunningStatistics(model).names == ("1._mean", "1._variance")


def test_what_a_forward_moved_is_put_back_bit_for_bit() -> None:
    model = nn.Sequential(nn.BatchNorm1D(4))
    statistics = RunningStatistics(model)
    before = model[0]._mean.numpy().copy()
    statistics.remember()
    model(paddle.rand([8, 4]))
    assert (model[0]._mean.numpy() != before).any()
    statistics.put_back()
    assert (model[0]._mean.numpy() == before).all()


def test_a_model_without_statistics_costs_nothing() -> None:
    statistics = RunningStatistics(nn.Linear(2, 2))
    assert statistics.names == ()
    statistics.remember()
    statistics.put_back()
