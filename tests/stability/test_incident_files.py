"""An incident's folder holds what a new process needs, appears whole, and is refused when it is not."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from paddle_stable.digest import digest
from paddle_stable.errors import InputError
from paddle_stable.stability import incident_files
from paddle_stable.stability.incident_files import incident_folder, read_incident, steps_with_incident
from paddle_stable.training_state import model_arrays

from .incident_sample import open_run, spoiled, take_steps


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of an incident, and the digest of the weights at the time."""
    path = tmp_path_factory.mktemp("run")
    trainer = open_run(path, run__accumulate=2)
    windows = trainer.loader.steps()
    take_steps(trainer, windows, 3)
    trainer.train_step(iter([spoiled(next(windows))]))
    return path / "run/incidents/step-000004", digest(model_arrays(trainer.model))


def test_everything_comes_back_bit_for_bit(written: tuple[Path, str]) -> None:
    folder, weights = written
    facts, model = read_incident(folder)
    assert digest(model) == weights
    assert (facts.report.step, facts.rank, facts.world_size) == (4, 0, 1)
    assert math.isnan(facts.report.verdict.loss)
    assert [report.step for report in facts.history] == [1, 2, 3, 4]
    assert [part.size for part in facts.parts] == [16, 16]
    assert sum(int(np.isnan(part["inputs"].numpy()).sum()) for part in facts.parts) == 1
    assert set(facts.origins) == {index for part in facts.parts for index in part.indices}
    assert set(facts.usual_norms) == {"lstm", "head"}


def test_reports_are_strict_json_and_nothing_is_pickled(written: tuple[Path, str]) -> None:
    def refuse(constant: str) -> float:
        raise AssertionError(f"{constant} is no JSON")

    for path in written[0].glob("*.json"):
        json.loads(path.read_text(encoding="utf8"), parse_constant=refuse)
    assert {path.suffix for path in written[0].iterdir()} == {".md", ".json", ".yaml", ".safetensors"}


@pytest.mark.parametrize(("damage", "said"), [
    (lambda folder: (folder / "model.safetensors").unlink(), "forensics.keep_weights: false"),
    (lambda folder: (folder / "batch.safetensors").write_bytes(b"\x00" * 40), "is damaged"),
    (lambda folder: (folder / "incident.json").write_text('{"version": 1}'), "is damaged"),
    (lambda folder: (folder / "incident.json").write_text('{"version": 9}'), "of version 1, got 9"),
    (lambda folder: (folder / "incident.json").write_text("{"), "is damaged"),
    (lambda folder: [path.unlink() for path in folder.iterdir()], "incident.json, recipe.yaml"),
], ids=["no weights", "batch", "fields", "version", "text", "empty"])  # fmt: skip
def test_a_folder_that_is_not_whole_is_refused(
    written: tuple[Path, str], tmp_path: Path, damage: Callable[[Path], object], said: str
) -> None:
    folder = tmp_path / "step-000004"
    shutil.copytree(written[0], folder)
    damage(folder)
    with pytest.raises(InputError, match=said):
        read_incident(folder)


def test_weights_are_left_out_on_request(tmp_path: Path) -> None:
    trainer = open_run(tmp_path, forensics__keep_weights=False)
    trainer.train_step(iter([spoiled(next(trainer.loader.steps()))]))
    folder = tmp_path / "run/incidents/step-000001"
    assert (folder / "report.md").is_file()
    assert not (folder / "model.safetensors").exists()


def test_an_interrupted_write_leaves_no_incident_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(incident_files, "save_file", full)
    trainer = open_run(tmp_path)
    windows = trainer.loader.steps()
    trainer.train_step(iter([spoiled(next(windows))]))
    assert trainer.incident is not None
    assert "No space left on device" in trainer.incident.headline
    assert list((tmp_path / "run/incidents").iterdir()) == []
    take_steps(trainer, windows, 1)
    assert trainer.progress.applied == 1


def test_other_ranks_have_folders_of_their_own(tmp_path: Path) -> None:
    assert incident_folder(tmp_path, 7, 0) == tmp_path / "incidents/step-000007"
    assert incident_folder(tmp_path, 7, 3) == tmp_path / "incidents/step-000007-rank-3"
    assert steps_with_incident(tmp_path, 0) == []
    for step, rank in ((12, 0), (3, 0), (3, 1), (1_000_000, 1)):
        incident_folder(tmp_path, step, rank).mkdir(parents=True)
    assert steps_with_incident(tmp_path, 0) == [3, 12]
    assert steps_with_incident(tmp_path, 1) == [3, 1_000_000]
