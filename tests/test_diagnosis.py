"""An incident is computed again from its folder, in this process and by the command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from paddle_stable.diagnosis import reproduce
from paddle_stable.errors import InputError

from .stability.incident_sample import open_run, spoiled, take_steps

TOOL = Path(__file__).parents[1] / "tools" / "diagnose.py"


@pytest.fixture(scope="module")
def incident(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In the third step of a run with dropout and emulated float16, weights of the head became inf."""
    path = tmp_path_factory.mktemp("run")
    half = {"amp__dtype": "float16", "amp__emulate": True, "amp__init_scale": 4.0, "amp__min_scale": 4.0}
    trainer = open_run(path, task__dropout=0.2, **half)
    windows = trainer.loader.steps()
    take_steps(trainer, windows, 2)
    weight = trainer.model.head.weight
    weight.set_value(np.full(weight.shape, np.inf, dtype="float32"))
    take_steps(trainer, windows, 1)
    return path / "run/incidents/step-000003"


def test_the_same_comes_out_to_the_last_digit(incident: Path) -> None:
    found = reproduce(incident)
    assert found.is_same
    assert (found.cause_now, found.layer_now) == ("a parameter is not finite", "head")
    then = json.loads((incident / "report.json").read_text(encoding="utf8"))
    assert [s.loss for s in found.findings.ranked_samples()] == pytest.approx(
        [float(s["loss"]) for s in then["samples"]], nan_ok=True, rel=0, abs=0
    )


def test_the_command_prints_the_report_and_ends_with_0(incident: Path) -> None:
    done = subprocess.run([sys.executable, str(TOOL), str(incident)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("# Step 3 was skipped")
    assert "The same as in the run." in done.stdout


def test_another_outcome_than_the_run_s_is_told(incident: Path, tmp_path: Path) -> None:
    report = incident / "report.json"
    before = report.read_text(encoding="utf8")
    try:
        report.write_text(json.dumps({**json.loads(before), "cause": "bad input"}), encoding="utf8")
        assert not reproduce(incident).is_same
    finally:
        report.write_text(before, encoding="utf8")


def test_what_is_no_incident_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot be computed again: incident\.json"):
        reproduce(tmp_path)


def test_a_step_that_was_disturbed_on_purpose_is_called_so_here_too(tmp_path: Path) -> None:
    trainer = open_run(tmp_path, faults=[{"step": 2, "kind": "nan_loss"}])
    take_steps(trainer, trainer.loader.steps(), 2)
    found = reproduce(tmp_path / "run/incidents/step-000002")
    assert found.is_same
    assert found.findings.diagnosis.title == "disturbed on purpose: nan_loss (faults)"
    assert not found.findings.evidence.reproduced


def test_data_files_that_no_longer_fit_are_named(tmp_path: Path) -> None:
    trainer = open_run(tmp_path)
    trainer.train_step(iter([spoiled(next(trainer.loader.steps()))]))
    data = tmp_path / "data" / "series.csv"
    data.write_text("".join(f"{line},{i % 7}\n" if i else f"{line},new\n"
                            for i, line in enumerate(data.read_text().splitlines())), encoding="utf8")  # fmt: skip
    with pytest.raises(InputError, match="data files that the model is built from have changed"):
        reproduce(tmp_path / "run/incidents/step-000001")


def test_a_report_that_is_gone_or_damaged_is_refused_with_a_sentence(incident: Path) -> None:
    report = incident / "report.json"
    before = report.read_text(encoding="utf8")
    try:
        for text in ("{", "[]", '{"cause": "bad input"}'):
            report.write_text(text, encoding="utf8")
            with pytest.raises(InputError, match=r"report\.json.*cannot be read"):
                reproduce(incident)
        report.unlink()
        with pytest.raises(InputError, match=r"report\.json.*cannot be read"):
            reproduce(incident)
    finally:
        report.write_text(before, encoding="utf8")


def test_a_rollback_has_nothing_to_compute_again(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a rollback has no step to compute again"):
        reproduce(tmp_path / "step-000012-rollback")
