"""`stability.bad_samples: drop`, quarantine, and `spike.action: rollback`, in whole runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddle_stable.build import build_trainer, prepare
from paddle_stable.distributed import World
from paddle_stable.recipe_io import load_recipe
from paddle_stable.stability.quarantine import FILE

from .conftest import ROOT, Train, curve, final_digest, open_trainer, sample_values
from .test_recovery import assert_usable, trained
from .test_resume import finish, stop_at

POISON: list[dict[str, Any]] = [{"step": 4, "kind": "nan_input"}]
SHORT: dict[str, Any] = {"stability.quarantine.after": None, "run.steps": 4, "run.eval_every": 4, "task.dropout": 0.2}
"""All within the first epoch of five steps, so that a sample comes once at most."""


def run(folder: Path, faults: list[dict[str, Any]], **values: Any) -> Any:
    return trained(folder, faults, **{**SHORT, **{name.replace("__", "."): value for name, value in values.items()}})


def test_a_step_without_its_bad_sample_is_that_of_a_run_that_never_had_it(tmp_path: Path) -> None:
    settings = {"stability__bad_samples": "drop", "stability__quarantine__after": 1}
    dropped = run(tmp_path / "dropped", POISON, **settings)
    listed = tmp_path / "dropped" / "run" / FILE
    same_data = str(tmp_path / "dropped" / "data" / "series.csv")
    never = run(tmp_path / "never", [], stability__quarantine__file=str(listed), data__file=same_data)
    clean = run(tmp_path / "clean", [])
    assert (dropped.progress.applied, dropped.progress.skipped) == (4, 0)
    assert dropped.monitor.totals.dropped_samples == 1
    digests = [final_digest(trainer.store.folder.parent) for trainer in (dropped, never, clean)]
    assert digests[0] == digests[1]
    assert digests[0] != digests[2]


def test_skip_leaves_out_the_whole_step(tmp_path: Path) -> None:
    trainer = run(tmp_path, POISON)
    assert (trainer.progress.applied, trainer.progress.skipped) == (3, 1)
    assert trainer.monitor.totals.dropped_samples == 0


@pytest.mark.parametrize("kind", ["nan_loss", "nan_grad"])
def test_what_no_sample_did_is_skipped(kind: str, tmp_path: Path) -> None:
    trainer = run(tmp_path, [{"step": 4, "kind": kind}], stability__bad_samples="drop")
    assert (trainer.progress.applied, trainer.progress.skipped) == (3, 1)


def test_a_step_whose_remaining_samples_are_not_finite_either_is_skipped(tmp_path: Path) -> None:
    faults = [*POISON, {"step": 4, "kind": "nan_grad"}]
    trainer = run(tmp_path, faults, stability__bad_samples="drop")
    assert (trainer.progress.applied, trainer.progress.skipped) == (3, 1)
    assert trainer.monitor.totals.dropped_samples == 0


def bad_file(folder: Path) -> dict[str, Any]:
    """Made-up data with one value missing in the training range, kept as it is."""
    values = sample_values(folder / "with a hole")
    path = Path(values["data.file"])
    lines = path.read_text(encoding="utf8").splitlines()
    row = lines[60].split(",")
    lines[60] = ",".join([*row[:-1], ""])
    path.write_text("\n".join(lines) + "\n", encoding="utf8")
    return {**values, "data.policy.missing": "keep", "data.policy.undefined": "keep"}


def test_a_missing_value_in_the_file_costs_its_windows_and_nothing_else(tmp_path: Path) -> None:
    values = {**bad_file(tmp_path), "stability.bad_samples": "drop", "stability.quarantine.after": 1}
    trainer = trained(tmp_path, [], **values)
    assert_usable(trainer)
    assert trainer.progress.skipped == 0
    lines = (tmp_path / "run" / FILE).read_text(encoding="utf8").splitlines()
    assert trainer.monitor.totals.dropped_samples == len(lines) > 1  # once each: then they are in quarantine
    assert all(json.loads(line)["line"] <= 61 for line in lines)


@pytest.mark.parametrize("stop", [5, 13])
def test_a_run_that_drops_and_quarantines_resumes_exactly(stop: int, tmp_path: Path) -> None:
    values = {"stability.bad_samples": "drop", "stability.quarantine.after": 2, "run.steps": 20, "run.eval_every": 10}
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    for folder in (whole, parted):
        folder.mkdir()
    uninterrupted = open_trainer(whole, {**bad_file(whole), **values})
    finish(uninterrupted)
    stop_at(open_trainer(parted, {**bad_file(parted), **values}), stop)
    finish(open_trainer(parted, {**bad_file(parted), **values}, resume="auto"))
    assert final_digest(parted / "run") == final_digest(whole / "run")
    assert curve(parted / "run") == curve(whole / "run")
    lines = [(folder / "run" / FILE).read_text(encoding="utf8").replace(str(folder), "") for folder in (whole, parted)]
    assert lines[0] == lines[1] != ""


def test_processes_drop_the_sample_of_one_and_stay_alike(train: Train, tmp_path: Path) -> None:
    faults = [{"step": 3, "kind": "nan_input", "rank": 1}]
    done = train(
        run__steps=5, run__eval_every=5, run__log_every=1, data__batch_size=16, task__dropout=0.0,
        faults=faults, ranks=2, stability__bad_samples="drop", stability__quarantine__after=1,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout
    values = dict(curve_by_tag(tmp_path / "run"))
    assert values["stability/dropped_samples"] == 1.0
    assert values["stability/skip_rate"] == 0.0
    listed = tmp_path / "run" / FILE
    one = train(
        run__steps=5, run__eval_every=5, run__log_every=1, data__batch_size=32, task__dropout=0.0,
        stability__quarantine__file=str(listed), run__output_dir=str(tmp_path / "one"),
    )  # fmt: skip
    assert one.returncode == 0, one.stderr + one.stdout
    losses = [[v for tag, _, v in curve(tmp_path / name) if tag == "train/loss"] for name in ("run", "one")]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)


def curve_by_tag(folder: Path) -> list[tuple[str, float]]:
    return [(tag, value) for tag, _, value in curve(folder)]


@pytest.mark.parametrize("kind", ["huge_grad", "loss_spike"])
def test_a_spike_can_lead_back_to_the_last_good_state(kind: str, tmp_path: Path) -> None:
    values = {"stability.spike.action": "rollback", "stability.spike.rebaseline_after": 3}
    trainer = trained(tmp_path, [{"step": 20, "kind": kind}], **values)
    assert_usable(trainer)
    assert (trainer.recovery.rollbacks, trainer.monitor.totals.skips["spike"]) == (1, 1)
    assert trainer.progress.undone > 0


def test_without_a_rollback_left_a_spike_is_skipped(tmp_path: Path) -> None:
    faults = [{"step": step, "kind": "loss_spike"} for step in (20, 30, 40)]
    values = {"stability.spike.action": "rollback", "stability.spike.rebaseline_after": 3}
    trainer = trained(tmp_path, faults, **values, **{"stability.recovery.max_rollbacks": 1})
    assert_usable(trainer)
    assert (trainer.recovery.rollbacks, trainer.monitor.totals.skips["spike"]) == (1, 3)


def test_in_half_precision_only_the_bad_samples_are_dropped(tmp_path: Path) -> None:
    """A sample alone has the share of the gradient that it had in the step: with more it would overflow too."""
    half = {"amp__dtype": "float16", "amp__emulate": True, "amp__init_scale": 2.0**19}
    trainer = run(tmp_path, [{"step": 2, "kind": "nan_input"}], **half, stability__bad_samples="drop")
    assert (trainer.monitor.totals.skipped, trainer.monitor.totals.dropped_samples) == (0, 1)


def test_a_row_of_an_embedding_that_is_not_finite_leads_back_and_blames_no_sample(tmp_path: Path) -> None:
    """Only the samples with that token are not finite; without them the step would be done, and the NaN stay."""
    recipe = str(ROOT / "configs" / "ernie_cls.yaml")
    values = {
        **load_recipe(recipe).task_class.write_sample_data(tmp_path / "data"),
        "run.output_dir": str(tmp_path / "run"),
        "stability.bad_samples": "drop",
        "stability.quarantine.after": 1,
        "forensics.enabled": False,
        "faults": [{"step": 4, "kind": "nan_embedding", "parameter": "*word_embeddings*", "row": 12}],
    }
    world = World.single()
    trainer = build_trainer(prepare(load_recipe(recipe, smoke=True, set_values=values), world), world, folder=tmp_path)
    finish(trainer)
    assert trainer.recovery.rollbacks == 1
    assert (trainer.quarantine.left_out, trainer.monitor.totals.dropped_samples) == (frozenset(), 0)
    assert trainer.monitor.totals.skips["nonfinite"] == 1


def test_a_bad_sample_is_put_into_quarantine_also_where_it_is_the_whole_step(tmp_path: Path) -> None:
    settings = {"stability__bad_samples": "drop", "stability__quarantine__after": 1, "data__batch_size": 1}
    trainer = run(tmp_path, POISON, **settings)
    assert len(trainer.quarantine.left_out) == 1
    assert (trainer.progress.applied, trainer.progress.skipped) == (3, 1)


def test_parameters_that_are_not_finite_put_no_sample_into_quarantine(tmp_path: Path) -> None:
    faults = [{"step": 3, "kind": "nan_parameter"}]
    trainer = run(tmp_path, faults, stability__bad_samples="drop", stability__quarantine__after=1)
    assert trainer.quarantine.left_out == frozenset()
