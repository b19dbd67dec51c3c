"""A data set whose rows differ in length, a loader of it, and batches as values that can be compared bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, final

import numpy as np
import numpy.typing as npt

from paddle_stable.data.dataset import Array, Batch, Dataset, Sample, SampleOrigin
from paddle_stable.data.loader import Loader, Window
from paddle_stable.data.windows import WindowPlan
from paddle_stable.distributed import World

COUNT = 29
SEED = 7
STEPS = 5  # windows of 6 in an epoch, the last one with 5 samples


@final
class Ragged(Dataset):
    """Rows of different lengths, with noise that is random in every sample; `spoil` is called first with the index."""

    def __init__(self, spoil: Callable[[int], object] | None = None, bad_batch: bool = False) -> None:
        self._lengths = np.random.default_rng(3).integers(1, 40, size=COUNT)
        self._spoil = spoil
        self._bad_batch = bad_batch

    def __len__(self) -> int:
        return COUNT

    def sample(self, index: int, rng: np.random.Generator) -> Sample:
        if self._spoil is not None:
            self._spoil(index)
        length = int(self._lengths[index])
        return {
            "row": (np.arange(length) + 100 * index).astype(np.float32),
            "noise": rng.normal(size=2),
            "flag": np.array(index % 2 == 0),
            "label": np.array(index, dtype=np.int64),
        }

    def origin(self, index: int) -> SampleOrigin:
        return SampleOrigin("rows.txt", index + 1, f"row {index}")

    def lengths(self) -> npt.NDArray[np.int64]:
        return self._lengths

    def digest(self) -> str:
        return ""

    def collate(self, samples: Sequence[Sample]) -> dict[str, Array]:
        if self._bad_batch:
            raise TypeError("cannot be stacked")
        longest = max(len(sample["row"]) for sample in samples)
        rows = [np.pad(sample["row"], (0, longest - len(sample["row"]))) for sample in samples]
        others = {name: np.stack([sample[name] for sample in samples]) for name in ("noise", "flag", "label")}
        return {"row": np.stack(rows), **others}


def loader_of(
    *, rank: int = 0, size: int = 1, workers: int = 0, dataset: Dataset | None = None, accumulate: int = 2
) -> Loader:
    dataset = Ragged() if dataset is None else dataset
    plan = WindowPlan(dataset.lengths(), len(dataset), 6 // accumulate // size, accumulate, size, SEED)
    return Loader(dataset, plan, world=World(rank, size), seed=SEED, workers=workers)


def bits(batch: Batch) -> tuple[Any, ...]:
    """Everything about a batch, comparable bit for bit."""
    arrays = {name: tensor.numpy() for name, tensor in batch.tensors.items()}
    content = tuple((name, str(a.dtype), a.shape, a.tobytes()) for name, a in arrays.items())
    return batch.indices, batch.weight, content


def window_bits(window: Window) -> tuple[Any, ...]:
    return window.epoch, window.index, window.samples, tuple(bits(part) for part in window.parts)


def first(windows: Iterable[Window], count: int) -> list[tuple[Any, ...]]:
    return [window_bits(window) for window in islice(windows, count)]
