"""The processes that train together, and the few things they tell each other."""

from __future__ import annotations

import faulthandler
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import final

import numpy as np
import numpy.typing as npt
import paddle
import paddle.distributed as dist

from paddle_stable.data.dataset import Array
from paddle_stable.stability.paddle_private import job_store
from paddle_stable.stop_signal import StopSignal
from paddle_stable.terminal import complain

_STDERR = 2


class PeerLost(Exception):
    """Another process is gone in the middle of a conversation. It knows why; this one does not."""


@final
@dataclass(frozen=True, slots=True)
class World:
    """This process among those that train together. A process alone answers without communicating.

    All processes have to make the same calls in the same order: one that stays away lets the others wait. One that is
    gone makes these calls raise `PeerLost` (gloo ends the process instead when it notices in a backward pass).
    """

    rank: int
    """This process's number, from 0."""
    size: int
    """Number of processes."""

    @staticmethod
    def single() -> World:
        """A process alone."""
        return World(0, 1)

    @staticmethod
    def from_environment(timeout: float | None = None) -> World:
        """The processes that `python -m paddle.distributed.launch` has started, connected; alone without it.

        Call it after `paddle.set_device`: on the CPU the processes talk through gloo, on a device through its own
        library.

        Args:
            timeout: seconds after which a process that is still waiting for another one prints where it waits and
                leaves with 1; None: it waits for ever.

        Raises:
            PeerLost: when Paddle gives up.
        """
        if not is_one_of_several():
            return World.single()
        if paddle.get_device() == "cpu":
            os.environ.setdefault("PADDLE_DISTRI_BACKEND", "gloo")  # Paddle's GPU build would choose NCCL
        with _joining(timeout):
            dist.init_parallel_env()
        return World(dist.get_rank(), dist.get_world_size())

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and prints."""
        return self.rank == 0

    @property
    def gradient_scale(self) -> float:
        """Factor that every loss takes besides its batch's weight.

        `DataParallel` averages gradients over the processes, while the weights of all processes' batches add up to 1:
        `loss * batch.weight * world.gradient_scale` gives the gradient of the mean over all samples of the step.
        """
        return float(self.size)

    def wrap(self, model: paddle.nn.Layer) -> paddle.nn.Layer:
        """The model as it is called in training; the model itself when alone.

        Takes rank 0's parameters, frozen ones, BatchNorm statistics and persistable buffers over to all processes.
        Every step has to use the same parameters: one that a step leaves out would let the others wait.
        """
        return model if self.size == 1 else paddle.DataParallel(model)

    @contextmanager
    def sync_gradients(self, model: paddle.nn.Layer, *, enabled: bool) -> Iterator[None]:
        """Forward and backward inside average gradients over the processes only when `enabled`.

        Enabled on the last micro-batch of a step, it averages what the earlier ones have accumulated too.

        Args:
            model: what `wrap` returned.
            enabled: whether this is the last micro-batch of the step.
        """
        if enabled or self.size == 1:
            yield
        else:
            with model.no_sync():
                yield

    def sum_(self, tensor: paddle.Tensor) -> None:
        """Add up a tensor over all processes, in place. All get the same bits."""
        if self.size > 1 and tensor.size > 0:  # gloo refuses a tensor without elements
            with _talking():
                dist.all_reduce(tensor)

    def gather_arrays(self, arrays: Sequence[Array]) -> list[list[Array]]:
        """The arrays of every process, by rank. Their number, shapes and types may differ between processes.

        As patient as `meet`: what is gathered may have taken one process longer than the others.

        Raises:
            ValueError: when an array holds Python objects.
        """
        if any(array.dtype.hasobject for array in arrays):
            raise ValueError("arrays of Python objects cannot be gathered, only numbers and text")
        if self.size == 1:
            return [list(arrays)]
        self.meet()
        packed = _packed(arrays)
        lengths = [int(length[0]) for length in self._gather(np.array([packed.size], dtype=np.int64))]
        padded = np.zeros(max(*lengths, 1), dtype=np.uint8)  # gloo gathers blocks of one size, never empty ones
        padded[: packed.size] = packed
        return [_unpacked(block[:length]) for block, length in zip(self._gather(padded), lengths, strict=True)]

    def agree_max(self, flag: int) -> int:
        """The largest of all processes' flags: every process then takes the same decision. As patient as `meet`."""
        if self.size == 1:
            return flag
        self.meet()
        agreed = paddle.to_tensor([flag], dtype="int64")
        with _talking():
            dist.all_reduce(agreed, op=dist.ReduceOp.MAX)
            return int(agreed.item())

    def meet(self) -> None:
        """Wait until all processes have come here, also where one of them had much to do alone.

        gloo's own operations, `barrier` among them, fail after thirty seconds: too few for a large checkpoint, a report
        on an incident, or a first look at the data.
        """
        if self.size == 1:
            return
        with _talking():
            store = job_store()
            arrivals = store.add("paddle_stable/arrivals", 1)
            meeting = -(-arrivals // self.size)
            if arrivals % self.size == 0:
                store.set(f"paddle_stable/met/{meeting}", "1")
            else:
                store.wait(f"paddle_stable/met/{meeting}")

    def close(self) -> None:
        """Leave the group; no process may communicate afterwards."""
        if self.size > 1:
            dist.destroy_process_group()

    def _gather(self, block: Array) -> list[Array]:
        """One block of the same shape and type from every process, by rank."""
        blocks: list[paddle.Tensor] = []
        with _talking():
            dist.all_gather(blocks, paddle.to_tensor(block))
            return [received.numpy() for received in blocks]


def is_one_of_several() -> bool:
    """Whether a launcher has started other processes beside this one."""
    return int(os.environ.get("PADDLE_TRAINERS_NUM", "1")) > 1


def let_first_process_leave(stop: StopSignal, seconds: float = 30.0) -> None:
    """Stay until the launcher tells this process to stop, unless it is the first one of its machine.

    For ends to which all processes come. The launcher passes on the exit code of its first process; it stops that
    one with a signal when another leaves before it, and then there is no exit code to pass on, which looks like a
    process that was killed. Longer than `seconds` nobody is waited for: the first may have come to another end.
    """
    if int(os.environ.get("PADDLE_RANK_IN_NODE", "0")) == 0:
        return
    give_up = time.monotonic() + seconds
    while stop.received is None and time.monotonic() < give_up:
        time.sleep(0.1)
    stop.stay_deaf()


@contextmanager
def _joining(timeout: float | None) -> Iterator[None]:
    """Not without a word, and not for ever: one that has ended on another machine will not come.

    Paddle waits in native code that keeps the interpreter's lock, so that no Python thread could speak or act.
    """
    complain(f"waiting for all {os.environ['PADDLE_TRAINERS_NUM']} processes of this run")
    if timeout is not None:
        faulthandler.dump_traceback_later(timeout, exit=True, file=_STDERR)
    try:
        yield
    except RuntimeError as error:
        raise PeerLost(f"not all processes of this run have come together: {error}") from error
    finally:
        faulthandler.cancel_dump_traceback_later()


@contextmanager
def _talking() -> Iterator[None]:
    """What fails inside is the connection: Paddle hands its errors on as RuntimeError, its store's as ValueError."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise PeerLost(f"the connection to another process of this run is lost: {error}") from error


def _packed(arrays: Sequence[Array]) -> npt.NDArray[np.uint8]:
    """Arrays one after the other in NumPy's own file format, which keeps shape and type."""
    stream = BytesIO()
    for array in arrays:
        np.save(stream, array, allow_pickle=False)
    return np.frombuffer(stream.getvalue(), dtype=np.uint8)


def _unpacked(packed: npt.NDArray[np.uint8]) -> list[Array]:
    stream = BytesIO(packed.tobytes())
    arrays = []
    while stream.tell() < packed.size:
        arrays.append(np.load(stream, allow_pickle=False))
    return arrays
