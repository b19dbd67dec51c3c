"""Samples with an identity: what a task's data has to offer to the loader, the guard and the reports."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt
import paddle

Array = npt.NDArray[Any]
Sample = Mapping[str, Array]


@final
@dataclass(frozen=True, slots=True)
class SampleOrigin:
    """Where a sample comes from, so that a person can open the file and look."""

    file: str
    line: int
    """1-based line; 0 for a file that is one sample (an image)."""
    excerpt: str
    """The first few words, the row range, the image size: short enough for one line."""

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        return f"{where} ({self.excerpt})" if self.excerpt else where


class Dataset(ABC):
    """One split, already validated: every sample can be produced. Random access, no state."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def sample(self, index: int, rng: np.random.Generator) -> Sample:
        """The arrays of one sample. Anything random in it is drawn from `rng`, a function of (seed, epoch, sample)."""

    @abstractmethod
    def origin(self, index: int) -> SampleOrigin:
        """Where the sample comes from."""

    @abstractmethod
    def lengths(self) -> npt.NDArray[np.int64] | None:
        """Length of every sample, for batches of similar length; None when all are alike."""

    @abstractmethod
    def digest(self) -> str:
        """Tells this split from one of other files: of all that its samples are made from, not of how they are made.

        Saved with a run, which may not go on as if nothing had happened when somebody has edited its data.
        """

    @abstractmethod
    def collate(self, samples: Sequence[Sample]) -> dict[str, Array]:
        """Stack samples, padded where needed, into arrays whose first axis is the sample."""


@final
@dataclass(frozen=True, slots=True)
class NaiveAnswer:
    """What a dev metric is worth without any learning."""

    metric: str
    value: float
    words: str
    """The answer that needs no model: "always the majority class", "the last value"."""


@final
@dataclass(frozen=True)
class Splits:
    """What a task has loaded."""

    train: Dataset
    dev: Dataset
    test: Dataset | None = None
    warnings: tuple[str, ...] = ()
    """Findings that do not stop the run (counts of repeats, overlaps, skipped samples), each a sentence."""
    facts: Mapping[str, float | str] | None = None
    """What the data says of itself, for the summary: classes, majority share, naive forecasts."""
    naive: NaiveAnswer | None = None
    """What the model has to be better than on the dev set; None when there is no such thing."""
    full_check: Callable[[], Sequence[str]] | None = None
    """Reads all that loading has only glanced at (every image), for `--check`; returns sentences to be printed.

    Raises `InputError` with everything that is wrong. None where loading has read everything.
    """


@final
@dataclass(frozen=True)
class Batch:
    """What goes through the model at once."""

    tensors: Mapping[str, paddle.Tensor]
    indices: tuple[int, ...]
    """Positions of the samples in their dataset, in the order of the tensors' first axis."""
    weight: float = 1.0
    """This batch's samples divided by the samples of the whole step, all processes and micro-batches together.

    0 for a stand-in that only keeps a process without samples in step with the others.
    """

    def __getitem__(self, name: str) -> paddle.Tensor:
        return self.tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    @property
    def size(self) -> int:
        """Number of samples."""
        return len(self.indices)

    def rows(self, begin: int, end: int) -> Batch:
        """The samples from `begin` to before `end` alone, with their share of the weight.

        With more, their gradients would be larger than they were in the step, and could overflow a half precision.
        """
        tensors = {name: tensor[begin:end] for name, tensor in self.tensors.items()}
        return Batch(tensors, self.indices[begin:end], self.weight * (end - begin) / self.size)
