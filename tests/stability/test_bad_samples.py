"""The samples that are not finite on their own are found, whatever their number and place, and nothing moves."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import paddle
import pytest

from paddle_stable.data.dataset import Batch

from .incident_sample import everything_that_learns, open_run, spoiled


@pytest.mark.parametrize("rows", [[], [0], [15], [3, 4], [0, 7, 15], list(range(16))], ids=str)
def test_just_the_bad_samples_are_found(rows: list[int], tmp_path: Path) -> None:
    trainer = open_run(tmp_path)
    window = next(trainer.loader.steps())
    indices = window.parts[0].indices
    for row in rows:
        window = spoiled(window, row=row)
    before = everything_that_learns(trainer)
    assert trainer.bad_samples.find(1, window.parts) == {indices[row] for row in rows}
    assert everything_that_learns(trainer) == before


def test_they_are_found_in_every_micro_batch(tmp_path: Path) -> None:
    trainer = open_run(tmp_path, run__accumulate=2)
    window = next(trainer.loader.steps())
    parts = (window.parts[0], spoiled(window, row=5).parts[0])
    assert trainer.bad_samples.find(1, parts) == {parts[1].indices[5]}


def test_a_finite_spike_is_not_the_work_of_bad_samples(tmp_path: Path) -> None:
    trainer = open_run(tmp_path)
    window = spoiled(next(trainer.loader.steps()), value=1e6)
    assert trainer.bad_samples.find(1, window.parts) == frozenset()


def test_a_stand_in_that_is_no_part_of_the_step_is_not_looked_at(tmp_path: Path) -> None:
    trainer = open_run(tmp_path)
    [part] = spoiled(next(trainer.loader.steps()), row=5).parts
    assert trainer.bad_samples.find(1, [replace(part, weight=0.0)]) == frozenset()


def test_a_network_that_cannot_take_one_sample_alone_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = open_run(tmp_path)
    loss = trainer.task.loss

    def wants_two(model: paddle.nn.Layer, batch: Batch) -> paddle.Tensor:
        assert batch.size > 1
        return loss(model, batch)

    monkeypatch.setattr(trainer.task, "loss", wants_two)
    logging.getLogger("paddle_stable").propagate = True
    window = spoiled(next(trainer.loader.steps()), row=5)
    assert trainer.bad_samples.find(1, window.parts) == frozenset()
    assert "step 1: its samples could not be computed alone: AssertionError" in caplog.text
