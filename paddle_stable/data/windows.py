"""Which samples make up each optimizer step, and who computes which of them. Pure planning: no sample is read here.

A *window* is all samples of one optimizer step. Its size is batch size x accumulation x processes, and which samples
it holds depends on that product only: 2 processes with batches of b, 1 with batches of 2b and 1 with 2 accumulated
batches of b take the same steps over the same samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt

from paddle_stable.seeding import epoch_generator

IndexArray = npt.NDArray[np.int64]

_WINDOWS_IN_A_CHUNK = 50
"""Lengths are sorted inside chunks of about that many windows: enough for windows of similar length, few enough that
an epoch is not a sorted list."""


@final
@dataclass(frozen=True, slots=True)
class Part:
    """One micro-batch of one process."""

    indices: tuple[int, ...]
    """Positions of the samples in the dataset; at most the batch size of them, at least one."""
    weight: float
    """Its samples divided by the window's; over all parts of all processes they add up to 1. 0 for a stand-in."""


@final
@dataclass(frozen=True, eq=False)
class WindowPlan:
    """The order of all samples, for every epoch.

    Raises:
        ValueError: when a number is out of range or `lengths` does not have one entry a sample.
    """

    lengths: npt.NDArray[np.int64] | None
    """Length of every sample, shape [count], for windows of similar length; None when all are alike."""
    count: int
    """Number of samples."""
    batch_size: int
    """Samples in one micro-batch of one process."""
    accumulate: int
    """Micro-batches of one process in one optimizer step."""
    world_size: int
    """Processes."""
    seed: int
    """The run's seed."""
    left_out: frozenset[int] = frozenset()
    """Samples that are in no window. The others keep their places, so that a window can be short or even empty."""

    def __post_init__(self) -> None:
        for name in ("count", "batch_size", "accumulate", "world_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.lengths is not None and self.lengths.shape != (self.count,):
            raise ValueError(f"lengths must have the shape ({self.count},), got {self.lengths.shape}")

    @property
    def window_size(self) -> int:
        """Samples of one optimizer step, all processes and micro-batches together."""
        return self.batch_size * self.accumulate * self.world_size

    @property
    def steps_per_epoch(self) -> int:
        """Windows in one epoch, the short last one included."""
        return -(-self.count // self.window_size)

    def epoch_windows(self, epoch: int) -> list[IndexArray]:
        """All windows of one epoch: every sample exactly once, the remaining ones in a short last window.

        A function of (seed, epoch, window size), the lengths and `left_out` only.
        """
        # Sorting raw Philox words gives the same order in every NumPy release; Generator.permutation does not promise.
        words = epoch_generator(self.seed, epoch).bit_generator.random_raw(2 * self.count)
        order: IndexArray = np.argsort(words[: self.count], kind="stable")
        whole = self.count // self.window_size
        # The short window is cut off before sorting: it would always hold the longest samples otherwise.
        remaining = order[whole * self.window_size :]
        windows = order[: whole * self.window_size].reshape(whole, self.window_size)
        windows = self._bucketed(windows)[np.argsort(words[self.count : self.count + whole], kind="stable")]
        every = [*windows, *([remaining] if len(remaining) else [])]
        left_out = np.array(sorted(self.left_out), dtype=np.int64)
        return [window[~np.isin(window, left_out)] for window in every] if len(left_out) else every

    def deal(self, window: IndexArray, rank: int) -> list[Part]:
        """This process's micro-batches of a window, in order.

        Every rank gets the same number of them, so that all synchronise in step; in a short window they are smaller.
        Samples of similar length share a micro-batch, and micro-batches of similar length are computed by all ranks
        at the same time. A rank for which no sample is left repeats one of the window with weight 0.

        Raises:
            ValueError: when the rank is not in [0, world_size) or the window is empty or larger than `window_size`.
        """
        if not 0 <= rank < self.world_size:
            raise ValueError(f"rank must be in [0, {self.world_size}), got {rank}")
        if not 1 <= len(window) <= self.window_size:
            raise ValueError(f"a window has 1 to {self.window_size} samples, got {len(window)}")
        ordered = self._by_length(window)
        rounds = -(-len(window) // (self.batch_size * self.world_size))
        parts = []
        for slot in self._slots(rank, rounds):
            begin, end = (-(-len(window) * edge // (rounds * self.world_size)) for edge in (slot, slot + 1))
            if begin == end:
                parts.append(Part((int(ordered[0]),), 0.0))
            else:
                parts.append(Part(tuple(ordered[begin:end].tolist()), (end - begin) / len(window)))
        return parts

    def _slots(self, rank: int, rounds: int) -> Iterator[int]:
        """Places of this rank's micro-batches in the window; back and forth, so that no rank always gets the longer."""
        for turn in range(rounds):
            yield turn * self.world_size + (rank if turn % 2 == 0 else self.world_size - 1 - rank)

    def _bucketed(self, windows: IndexArray) -> IndexArray:
        """The same samples in windows of similar length, [windows, window size] to [windows, window size]."""
        if self.lengths is None or not len(windows):
            return windows
        chunks = np.array_split(windows, -(-len(windows) // _WINDOWS_IN_A_CHUNK))
        return np.concatenate([self._by_length(chunk.ravel()).reshape(chunk.shape) for chunk in chunks])

    def _by_length(self, samples: IndexArray) -> IndexArray:
        """Shortest first, equal lengths in the order given."""
        if self.lengths is None:
            return samples
        by_length: IndexArray = samples[np.argsort(self.lengths[samples], kind="stable")]
        return by_length
