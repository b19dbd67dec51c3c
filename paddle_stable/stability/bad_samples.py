"""Which samples of a step cannot be trained on: those whose own loss or gradient is not finite."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import final

import numpy as np

from paddle_stable.data.dataset import Batch
from paddle_stable.distributed import World
from paddle_stable.stability.replay import Replay

_log = logging.getLogger(__name__)


@final
class BadSamples:
    """Finds them by halving: a micro-batch whose loss and gradients are finite holds none.

    k bad ones among n cost about k log2(n) passes over ever smaller parts, instead of n over one sample each.
    """

    def __init__(self, replay: Replay, world: World) -> None:
        """Nothing is computed before it is asked for."""
        self._replay = replay
        self._world = world

    def find(self, step: int, parts: Sequence[Batch]) -> frozenset[int]:
        """The bad samples of a step on all processes, by their position in the dataset.

        All processes have to call it, while the parameters are still those of the step; nothing that learns moves.
        Empty when every sample is finite on its own: then it is not the work of samples.

        Args:
            step: number of the attempted step.
            parts: this process's micro-batches of it.
        """
        try:
            mine = [index for part in parts if part.weight > 0.0 for index in self._within(step, part)]
        except Exception as error:  # noqa: BLE001 - a look at samples must not end the run, nor let others wait
            _log.warning("step %d: its samples could not be computed alone: %s: %s", step, type(error).__name__, error)
            mine = []
        everywhere = self._world.gather_arrays([np.array(mine, dtype=np.int64)])
        return frozenset(int(index) for (indices,) in everywhere for index in indices)

    def _within(self, step: int, part: Batch) -> list[int]:
        if self._replay.run(step, [part]).is_finite:
            return []
        if part.size == 1:
            return list(part.indices)
        middle = part.size // 2
        return [
            *self._within(step, part.rows(0, middle)),
            *self._within(step, part.rows(middle, part.size)),
        ]
