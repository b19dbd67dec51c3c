"""State that a forward pass changes by itself, such as BatchNorm's running mean and variance."""

from __future__ import annotations

from typing import final

import paddle

from paddle_stable.distributed import World


@final
class RunningStatistics:
    """Remembers what forward passes move, so that a skipped step can put it back.

    In Paddle BatchNorm's statistics are not buffers but parameters that are not trainable, so they are found as the
    state entries with `stop_gradient`; `named_buffers()` of a BatchNorm is empty.
    """

    def __init__(self, model: paddle.nn.Layer) -> None:
        """Find the statistics. Call before parameters are frozen: frozen ones look the same but never move."""
        found = {name: t for name, t in model.state_dict().items() if t.stop_gradient}
        self.names = tuple(found)
        self._tensors = tuple(found.values())
        self._saved: tuple[paddle.Tensor, ...] = ()

    def remember(self) -> None:
        """Copy them on the device; called before the first forward of a step."""
        self._saved = tuple(tensor.detach().clone() for tensor in self._tensors)

    def put_back(self) -> None:
        """Undo what forward passes have done since `remember`."""
        with paddle.no_grad():
            for tensor, saved in zip(self._tensors, self._saved, strict=True):
                paddle.assign(saved, output=tensor)

    def average(self, world: World) -> None:
        """Make them the same on every process, with one collective: BatchNorm sees other samples on each.

        Done after every applied step, so that neither the moment of an evaluation nor that of a checkpoint has any
        influence on them.
        """
        moving = [t for t in self._tensors if t.dtype == paddle.float32]
        if world.size == 1 or not moving:
            return
        with paddle.no_grad():
            packed = paddle.concat([t.flatten() for t in moving])
            world.sum_(packed)
            packed.scale_(1.0 / world.size)
            for tensor, part in zip(moving, packed.split([t.size for t in moving]), strict=True):
                paddle.assign(part.reshape(tensor.shape), output=tensor)
