"""A task without training behind it, and a recipe for it: what the tests of recipes read and corrupt."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, PositiveInt, model_validator

from paddle_stable.recipe import DataConfig, ModelKind, Section, TaskConfig
from paddle_stable.task import Task

TARGET = f"{__name__}.SampleTask"


class LayerConfig(Section):
    """One layer of the sample's model."""

    width: PositiveInt
    """Units."""
    name: str = ""


class SampleConfig(TaskConfig):
    """The sample's model."""

    width: PositiveInt = 16
    """Units in every layer."""
    heads: PositiveInt = 4
    scale: float | None = None
    mixed: int | float | None = None
    label: str = "none"
    folder: Path = Path("somewhere")
    activation: Literal["relu", "gelu"] = "relu"
    layers: tuple[LayerConfig, ...] = ()
    names: dict[str, int] = Field(default={})

    @model_validator(mode="after")
    def _heads_divide_width(self) -> SampleConfig:
        if self.width % self.heads:
            raise ValueError(f"heads: must divide width ({self.width}), got {self.heads}")
        return self


class SampleData(DataConfig):
    """The sample's data."""

    train: str
    """File of training texts."""


class SampleTask(Task):
    """Chosen by `task.target` with trust; never trained."""

    Config: ClassVar[type[TaskConfig]] = SampleConfig
    Data: ClassVar[type[DataConfig]] = SampleData
    model_kind: ClassVar[ModelKind] = "transformer"
    metric_names: ClassVar[Mapping[str, bool]] = {"accuracy": True, "loss": False}


class BareTask(Task):
    """Lacks its sections."""


# What a task does is no matter of recipes: these two count as complete although they do nothing.
SampleTask.__abstractmethods__ = frozenset()
BareTask.__abstractmethods__ = frozenset()

RECIPE = f"""\
# yaml-language-server: $schema=recipe.schema.json
run:
  output_dir: runs/sample
  steps: 100
  best_metric: accuracy

task:
  target: {TARGET}
  width: 16

data:
  train: data/train.txt
  batch_size: 8

optim:
  lr: 1e-3
  betas: [0.9, 0.99]
  groups:
    - match: "*.bias"
      lr_scale: 2.0
    - {{match: head.*, freeze: true}}

schedule:
  kind: cosine
  warmup_steps: 10

clip:
  max_norm: 1.0

faults:
  - {{step: 3, kind: nan_loss}}

smoke:
  run.steps: 4
  schedule:
    warmup_steps: 2
  optim.groups.0.lr_scale: 1.0
"""
"""A valid recipe that uses every shape of value there is; tests replace lines of it."""


def write_recipe(folder: Path, text: str = RECIPE) -> str:
    """Put a recipe into a folder; returns its path."""
    path = folder / "recipe.yaml"
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return str(path)


def line_of(text: str, start: str) -> int:
    """1-based number of the one line that starts with `start`, white space left out."""
    (number,) = [number for number, line in enumerate(text.splitlines(), 1) if line.strip().startswith(start)]
    return number


def replaced(old: str, new: str, text: str = RECIPE) -> str:
    """The recipe with one passage replaced, which must be there."""
    assert text.count(old) == 1, old
    return text.replace(old, new)
