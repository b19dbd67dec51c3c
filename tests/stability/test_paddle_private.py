"""Fails loudly when a new Paddle changes what we call without its documentation."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

from paddle_stable.stability.paddle_private import job_store, squared_norm


@pytest.mark.parametrize("shape", [[1], [7], [33, 5], [3, 4, 5, 6], [1000, 1000]])
def test_squared_norm_is_the_sum_of_squares(shape: list[int]) -> None:
    values = np.random.default_rng(0).normal(size=shape).astype("float32")
    result = squared_norm(paddle.to_tensor(values))
    assert result.shape == [1]
    assert result.dtype == paddle.float32
    assert float(result.item()) == pytest.approx(float((values.astype("float64") ** 2).sum()), rel=1e-6)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 1e30])
def test_squared_norm_of_what_float32_cannot_hold_is_not_finite(bad: float) -> None:
    assert not np.isfinite(squared_norm(paddle.to_tensor([1.0, bad])).numpy()).any()


def test_the_store_of_a_job_is_where_it_was() -> None:
    """What is done with it, two launched processes show (tests/test_distributed.py); there is none without a job."""
    with pytest.raises((RuntimeError, ValueError)):
        job_store()
