"""Task: the only thing that a new kind of training implements.

A task is one file in `paddle_stable/tasks/` and one recipe in `configs/`; nothing is registered anywhere.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import paddle

from paddle_stable.data.dataset import Array, Batch, Dataset, Splits
from paddle_stable.recipe import DataConfig, ModelKind, TaskConfig


class Task(ABC):
    """Data, model, loss and metrics of one kind of training. Holds no training state.

    The order of calls: `Config` and `Data` validate the recipe; the constructor; `load_splits`; `build_model`;
    then `loss` in training, `outputs` and `metrics` in evaluation.
    """

    Config: ClassVar[type[TaskConfig]]
    """The recipe's `task` section."""
    Data: ClassVar[type[DataConfig]]
    """The recipe's `data` section."""
    model_kind: ClassVar[ModelKind]
    """Chooses the range of clip bounds that the recipe check advises."""
    metric_names: ClassVar[Mapping[str, bool]]
    """Metrics that `metrics` returns, by name; True where higher is better."""

    @abstractmethod
    def __init__(self, config: Any, data: Any, *, seed: int) -> None:
        """Keep the two validated sections (instances of `Config` and `Data`). Reads nothing from disk yet."""

    @abstractmethod
    def load_splits(self) -> Splits:
        """Read and validate all data files.

        Raises:
            InputError: with everything that is wrong, by file and line.
        """

    @abstractmethod
    def build_model(self) -> paddle.nn.Layer:
        """A fresh model; called after `load_splits`. Initial weights come from Paddle's generator, seeded before."""

    @abstractmethod
    def loss(self, model: paddle.nn.Layer, batch: Batch) -> paddle.Tensor:
        """Loss of a batch as a float32 tensor with one element: the mean over the batch's samples.

        Must not read a tensor on the host (`item()`, `numpy()`, `float()`).
        """

    @abstractmethod
    def outputs(self, model: paddle.nn.Layer, batch: Batch) -> dict[str, Array]:
        """What `metrics` needs of each sample, as host arrays whose first axis is the batch's samples."""

    @abstractmethod
    def metrics(self, outputs: Mapping[str, Array], dataset: Dataset) -> dict[str, float]:
        """Metrics named in `metric_names` over a whole split; `outputs` are in the order of `dataset`'s samples."""

    @abstractmethod
    def pictures(self, outputs: Mapping[str, Array], dataset: Dataset, folder: Path) -> dict[str, Path]:
        """Draw what the outputs over a whole split look like, as PNG files in `folder`: VisualDL tag → file.

        `outputs` are those that `metrics` gets. `{}` for a task without pictures.
        """

    @abstractmethod
    def assets(self) -> Mapping[str, str]:
        """Small text files, by name, that a saved model needs besides its weights: vocabulary, labels, scaling."""

    @staticmethod
    @abstractmethod
    def write_sample_data(folder: Path) -> dict[str, Any]:
        """Write a tiny learnable data set and return the overrides (dotted key → value) that make a recipe use it."""
