"""Processes that are about to train something else than the first one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from paddle_stable.agreement import refuse_disagreement
from paddle_stable.build import Prepared, prepare
from paddle_stable.data.dataset import Array
from paddle_stable.distributed import World
from paddle_stable.errors import InputError
from paddle_stable.recipe_io import load_recipe
from tests.integration.conftest import RECIPE, sample_values


def prepared(folder: Path, **values: Any) -> Prepared:
    """What a process has read; its run has the same folder whatever else differs."""
    set_values = {**sample_values(folder), "run.output_dir": "run", **values}
    return prepare(load_recipe(str(RECIPE), smoke=True, set_values=set_values), World.single())


def world_of(processes: Sequence[Prepared]) -> World:
    """Two processes that answer one after the other: what the first says is what the second hears."""
    said: list[list[Array]] = []

    def gather_arrays(arrays: Sequence[Array]) -> list[list[Array]]:
        said.append(list(arrays))
        return said

    return cast(World, SimpleNamespace(size=len(processes), rank=0, gather_arrays=gather_arrays))


def disagreement(processes: Sequence[Prepared]) -> list[str]:
    world = world_of(processes)
    try:
        for process in processes:
            refuse_disagreement(process, world)
    except InputError as error:
        return [str(problem) for problem in error.problems]
    return []


def test_equal_processes_agree_and_one_alone_always_does(tmp_path: Path) -> None:
    one = prepared(tmp_path)
    assert disagreement([one, one]) == []
    refuse_disagreement(one, World.single())


def test_another_recipe_is_named_by_its_keys(tmp_path: Path) -> None:
    first, other = prepared(tmp_path), prepared(tmp_path, **{"optim.lr": 0.125, "run.seed": 3})
    lr = first.recipe.optim.lr
    assert disagreement([first, other]) == [
        f"rank 1  run.seed: must be the same for all processes, rank 0 has {first.recipe.run.seed}, rank 1 has 3",
        f"rank 1  optim.lr: must be the same for all processes, rank 0 has {lr}, rank 1 has 0.125",
    ]


@pytest.mark.parametrize("split", ["train", "dev"])
def test_other_data_are_named_by_their_split(tmp_path: Path, split: str) -> None:
    first = prepared(tmp_path)
    exchanged = {"train": first.splits.dev, "dev": first.splits.train}[split]
    other = replace(first, splits=replace(first.splits, **{split: exchanged}))
    [said] = disagreement([first, other])
    name = {"train": "training", "dev": "dev"}[split]
    assert said.startswith(f"rank 1  the {name} data: must be the same for all processes")


@pytest.mark.parametrize("without", [0, 1])
def test_a_split_that_only_one_process_has_is_named(tmp_path: Path, without: int) -> None:
    processes = [prepared(tmp_path)] * 2
    processes[without] = replace(processes[0], splits=replace(processes[0].splits, test=None))
    [said] = disagreement(processes)
    assert said.startswith("rank 1  the test data: must be the same for all processes")


def test_other_samples_in_quarantine_are_seen(tmp_path: Path) -> None:
    first = prepared(tmp_path)
    [said] = disagreement([first, replace(first, left_out=frozenset({3}))])
    assert said.startswith("rank 1  stability.quarantine.file")
