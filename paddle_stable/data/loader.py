"""Producing batches: for training from any position on, for evaluation in fixed whole batches."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import tee
from typing import final

import numpy as np
import paddle

from paddle_stable.data.dataset import Array, Batch, Dataset
from paddle_stable.data.windows import IndexArray, WindowPlan
from paddle_stable.data.workers import Job, Share, Workers, prepare
from paddle_stable.distributed import World
from paddle_stable.errors import InputError

_EVALUATION_SEED = 0
"""Whatever is random in an evaluation sample is the same in every run and every evaluation."""


@final
@dataclass(frozen=True, slots=True, order=True)
class Position:
    """The next window: all that has to be saved to go on with the very next batch."""

    epoch: int = 0
    window: int = 0
    """Number of the window in the epoch, from 0."""

    def state(self) -> dict[str, int]:
        """Plain numbers by name, for JSON."""
        return asdict(self)

    @staticmethod
    def from_state(saved: Mapping[str, int]) -> Position:
        """The position that `state` described.

        Raises:
            ValueError: when it is not two whole numbers >= 0 named `epoch` and `window`.
        """
        if set(saved) != {"epoch", "window"} or not all(type(n) is int and n >= 0 for n in saved.values()):
            raise ValueError(f"a loader position is an epoch and a window, whole numbers >= 0, got {dict(saved)}")
        return Position(**saved)


@final
@dataclass(frozen=True, slots=True)
class Window:
    """What one optimizer step is made of."""

    epoch: int
    index: int
    """Number of the window in the epoch, from 0."""
    samples: tuple[int, ...]
    """Positions in the dataset of all samples of the step, all processes together. Empty when all are left out."""
    parts: tuple[Batch, ...]
    """Micro-batches of this process, in order; every process has the same number of them."""


@final
class Loader:
    """Endless training windows over one dataset, from its beginning or from any position that `skip_to` is given.

    Every batch is a function of (dataset, plan, rank, position): neither the number of workers nor the way to the
    position changes a bit of it.

    Args:
        dataset: the training split.
        plan: the order of its samples.
        world: the processes; only the rank matters here, nothing is communicated.
        seed: anything random in a sample is a function of (seed, epoch, sample).
        workers: processes that prepare batches ahead; 0 prepares them in this process when they are asked for.

    Raises:
        ValueError: when the plan is for another number of samples or of processes.
    """

    def __init__(self, dataset: Dataset, plan: WindowPlan, *, world: World, seed: int, workers: int = 0) -> None:
        if len(dataset) != plan.count:
            raise ValueError(f"the plan is for {plan.count} samples, the dataset has {len(dataset)}")
        if world.size != plan.world_size:
            raise ValueError(f"the plan is for {plan.world_size} processes, there are {world.size}")
        self._share = Share(dataset, plan, world.rank, seed)
        self._plan = plan
        self._workers = workers
        self._position = Position()

    @property
    def position(self) -> Position:
        """The next window to be handed out; after a step, this is what a checkpoint saves."""
        return self._position

    @property
    def steps_per_epoch(self) -> int:
        """Windows in one epoch."""
        return self._plan.steps_per_epoch

    def plan_facts(self) -> dict[str, int]:
        """What the order of samples depends on besides the data: a position means something with these only."""
        plan = self._plan
        return {"samples": plan.count, "samples a step": plan.window_size, "seed": plan.seed}

    @cached_property
    def data_digest(self) -> str:
        """Of the training split: the same as long as nobody edits its files."""
        return self._share.dataset.digest()

    def skip_to(self, position: Position) -> None:
        """Go on from another window, also in the middle of `steps()`.

        Raises:
            InputError: when the position is not in the plan.
        """
        self._position = self._checked(position)

    def leave_out(self, samples: frozenset[int]) -> None:
        """From the next window on these samples are in none, also in the middle of `steps()`.

        The others stay in the windows they were in. All processes have to leave out the same.
        """
        self._plan = replace(self._plan, left_out=samples)
        self._share = replace(self._share, plan=self._plan)

    def without(self, window: Window, samples: Collection[int]) -> Window:
        """A window dealt anew without some of its samples, this process's parts prepared in this process.

        Raises:
            ValueError: when none is left.
            SampleError: when a sample cannot be prepared.
        """
        kept = np.array([index for index in window.samples if index not in samples], dtype=np.int64)
        parts = self._plan.deal(kept, self._share.rank)
        share = self._share
        return replace(
            window,
            samples=tuple(kept.tolist()),
            parts=tuple(
                _batch(
                    prepare(share.dataset, part.indices, seed=share.seed, epoch=window.epoch), part.indices, part.weight
                )
                for part in parts
            ),
        )

    def steps(self) -> Generator[Window, None, None]:
        """Window after window, epoch after epoch, without end. One such iteration at a time.

        The position moves on as a window is handed out. Worker processes live until it is closed or given up.

        Raises:
            SampleError: when a sample cannot be prepared; the position is then that of its window.
            WorkerDied: when a worker process is gone.
        """
        while True:
            plan = self._plan
            with closing(self._windows_from(self._position)) as windows:
                for window in windows:
                    following = self._after(window.epoch, window.index)
                    self._position = following
                    yield window
                    # skip_to or leave_out was called: what was prepared ahead is of no use.
                    if self._position != following or self._plan is not plan:
                        break

    def _windows_from(self, start: Position) -> Generator[Window, None, None]:
        planned, ahead = tee(self._planned_from(start))
        with closing(self._arrays(job for _, _, jobs in ahead for job in jobs)) as arrays:
            for position, samples, jobs in planned:
                parts = tuple(_batch(next(arrays), job.part.indices, job.part.weight) for job in jobs)
                yield Window(position.epoch, position.window, samples, parts)

    def _arrays(self, jobs: Iterator[Job]) -> Generator[dict[str, Array], None, None]:
        if self._workers:
            with Workers(self._share, self._workers) as workers:
                yield from workers.prepared(jobs)
        else:
            for job in jobs:
                yield prepare(self._share.dataset, job.part.indices, seed=self._share.seed, epoch=job.epoch)

    def _planned_from(self, start: Position) -> Iterator[tuple[Position, tuple[int, ...], list[Job]]]:
        """Place, all samples and this rank's jobs of window after window."""
        position = start
        while True:
            epoch = position.epoch
            windows = self._plan.epoch_windows(epoch)
            while position.epoch == epoch:
                window = windows[position.window]
                parts = self._plan.deal(window, self._share.rank) if len(window) else []
                jobs = [Job(epoch, position.window, turn, part) for turn, part in enumerate(parts)]
                yield position, tuple(window.tolist()), jobs
                position = self._after(epoch, position.window)

    def _after(self, epoch: int, window: int) -> Position:
        return Position(epoch, window + 1) if window + 1 < self._plan.steps_per_epoch else Position(epoch + 1, 0)

    def _checked(self, position: Position) -> Position:
        """The same position, with an epoch's end written as the next one's beginning."""
        steps = self._plan.steps_per_epoch
        if position.epoch < 0 or not 0 <= position.window <= steps:
            raise InputError.single(
                "loader position",
                f"expected epoch >= 0 and window 0 to {steps} ({self._plan.count} samples, {self._plan.window_size} a "
                f"step), got epoch {position.epoch}, window {position.window}. It was saved with other data, another "
                "batch size or another number of processes: use those again, or start afresh.",
            )
        return position if position.window < steps else Position(position.epoch + 1, 0)


def evaluation_batches(dataset: Dataset, batch_size: int, world: World) -> Iterator[Batch]:
    """This process's evaluation batches: whole ones, every `world.size`-th of them.

    Which samples share a batch is a function of the dataset and the batch size only (samples of similar length do), so
    that what a model makes of each batch is the same, bit for bit, for any number of processes.

    Raises:
        ValueError: when the batch size is below 1.
        SampleError: when a sample cannot be prepared.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    lengths = dataset.lengths()
    order: IndexArray = np.arange(len(dataset)) if lengths is None else np.argsort(lengths, kind="stable")
    for begin in range(world.rank * batch_size, len(order), world.size * batch_size):
        indices = tuple(order[begin : begin + batch_size].tolist())
        yield _batch(prepare(dataset, indices, seed=_EVALUATION_SEED, epoch=0), indices, 1.0)


def in_sample_order(
    mine: Sequence[tuple[Sequence[int], Mapping[str, Array]]], count: int, world: World
) -> dict[str, Array]:
    """Outputs of all processes for a whole split, gathered and put into the order of its samples.

    All processes have to call it, and all get the same arrays: those of a single process, bit for bit.

    Args:
        mine: what this process has computed: samples of a batch and its outputs, host arrays whose first axis is the
            batch's samples.
        count: samples in the split.
        world: the processes.

    Raises:
        ValueError: when outputs do not have one row a sample, or their rows differ in shape or type.
    """
    names = sorted(mine[0][1]) if mine else []
    flat = [array for indices, outputs in mine for array in (np.array(indices), *(outputs[name] for name in names))]
    gathered = world.gather_arrays([np.array(names, dtype=np.str_), *flat])
    names = next((arrays[0].tolist() for arrays in gathered if len(arrays) > 1), [])
    batches = [array for arrays in gathered for array in arrays[1:]]
    columns = [batches[column :: len(names) + 1] for column in range(len(names) + 1)]
    places = np.concatenate(columns[0]) if batches else np.zeros(0, dtype=np.int64)
    if not np.array_equal(np.sort(places), np.arange(count)):
        raise ValueError(f"expected outputs for each of {count} samples once, got {len(places)} for other samples")
    return {name: _scattered(name, columns[0], rows) for name, rows in zip(names, columns[1:], strict=True)}


def _scattered(name: str, places: Sequence[IndexArray], outputs: Sequence[Array]) -> Array:
    """Rows of the batches at the places of their samples."""
    like = outputs[0]
    for indices, output in zip(places, outputs, strict=True):
        if output.shape[:1] != indices.shape:
            raise ValueError(
                f"output '{name}': expected one row for each of {len(indices)} samples, got {output.shape}"
            )
        alike = output.dtype == like.dtype or output.dtype.kind == like.dtype.kind == "U"  # texts differ in width
        if output.shape[1:] != like.shape[1:] or not alike:
            raise ValueError(
                f"output '{name}': the rows of all batches need the same shape and type, got {like.dtype}"
                f"{list(like.shape[1:])} and {output.dtype}{list(output.shape[1:])}"
            )
    rows = np.concatenate(outputs)
    result = np.empty_like(rows)
    result[np.concatenate(places)] = rows
    return result


def _batch(arrays: Mapping[str, Array], indices: tuple[int, ...], weight: float) -> Batch:
    """Arrays as tensors on the current device."""
    return Batch({name: paddle.to_tensor(array) for name, array in arrays.items()}, indices, weight)
