"""The one place that calls what Paddle does not document, with the reason why.

`tests/stability/test_paddle_private.py` fails loudly when a new Paddle changes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import paddle
from paddle import _C_ops
from paddle.base import core


def squared_norm(tensor: paddle.Tensor) -> paddle.Tensor:
    """Sum of squares of all elements, shape [1], on the tensor's device.

    The kernel behind Paddle's own `ClipGradByGlobalNorm`. The public ways (`(g * g).sum()`, `paddle.linalg.norm`)
    were measured to be thirty times slower on a CPU, and `paddle.dot` to be wrong in the fourth digit for a
    million elements.
    """
    return _C_ops.squared_l2_norm(tensor)


def create_accumulators(optimizer: paddle.optimizer.AdamW, parameters: Sequence[paddle.Tensor]) -> None:
    """Give parameters the moments, beta powers and master weights that the optimizer's first step would give them.

    The public `set_state_dict` of an optimizer that has not stepped only parks the values, under names it will invent
    later: what the first steps do not fetch (a parameter without a gradient) is missing from `state_dict()` and is
    lost with the next checkpoint, and a parameter that is not in the parked values fails an assertion.
    """
    optimizer._create_accumulators(paddle.static.default_main_program().global_block(), parameters)


def forget_accumulators(optimizer: paddle.optimizer.AdamW, parameters: Sequence[paddle.Tensor]) -> None:
    """Make the optimizer as if these parameters had never had a gradient.

    There is no public way back: `set_state_dict` refuses values that lack one of its accumulators.
    """
    for parameter in parameters:
        master = optimizer._master_weights.pop(parameter.name, parameter)
        for by_name in optimizer._accumulators.values():
            by_name.pop(master.name, None)
        optimizer._already_create_accumulator.discard(parameter.name)


def job_store() -> Any:
    """The key-value store through which the processes of a job have found each other: `add`, `set`, `get`, `wait`.

    Public functions reach it only when a group is made. It is the one connection that waits as long as it takes: a
    gloo operation gives up after thirty seconds, a number that Paddle has no way to change.
    """
    return core.create_or_get_global_tcp_store()
