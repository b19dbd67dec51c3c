"""What a finished run leaves behind, and what its checkpoints score later."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from paddle_stable.checkpoint import CheckpointStore
from paddle_stable.errors import ExitCode
from paddle_stable.evaluation import evaluate
from paddle_stable.results import conclude, final_advice
from paddle_stable.run import TrainingRequest, run_training
from paddle_stable.scoring import ScoringRequest, score
from paddle_stable.watchdog import Heartbeat

from .conftest import RECIPE, open_trainer, sample_values
from .test_resume import finish

SHORT = {"run.steps": 25, "run.eval_every": 10, "forensics.enabled": False}


def request(folder: Path, *arguments: str, resume: str | None = None) -> TrainingRequest:
    values = {**sample_values(folder), **SHORT, "run.output_dir": str(folder / "run")}
    overrides = tuple(f"{key}={json.dumps(value)}" for key, value in values.items())
    return TrainingRequest(str(RECIPE), (*overrides, *arguments), smoke=True, resume=resume)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    assert run_training(request(folder)) is ExitCode.DONE
    return folder


def test_a_finished_run_has_results_an_exit_record_and_its_pictures(finished: Path) -> None:
    run = finished / "run"
    results = json.loads((run / "results.json").read_text(encoding="utf8"))
    assert results["split"] == "test"
    assert results["steps"]["attempted"] == 25
    assert results["checkpoint"].startswith("step-")
    assert {"mse", "skill", "last_value_mse", "constant_mse"} <= set(results["metrics"])
    assert json.loads((run / "exit.json").read_text(encoding="utf8"))["code"] == 0
    assert (run / "forecast_test.png").read_bytes().startswith(b"\x89PNG")


def test_a_saved_checkpoint_scores_what_the_run_said(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert score(ScoringRequest(finished / "run")) is ExitCode.DONE
    printed = json.loads(capsys.readouterr().out)
    results = json.loads((finished / "run" / "results.json").read_text(encoding="utf8"))
    assert printed["metrics"] == results["metrics"]
    assert score(ScoringRequest(Path(printed["checkpoint"]), split="dev")) is ExitCode.DONE


def test_resuming_a_finished_run_trains_nothing_and_says_the_same(finished: Path) -> None:
    before = (finished / "run" / "results.json").read_text(encoding="utf8")
    assert run_training(request(finished, resume="auto")) is ExitCode.DONE
    assert (finished / "run" / "results.json").read_text(encoding="utf8") == before


def test_a_damaged_best_checkpoint_does_not_keep_a_run_from_its_end(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished / "run", run)
    worse = ['faults=[{"step": 26, "steps": 5, "kind": "grow_weights"}]', "stability.recovery.max_rollbacks=0"]
    overrides = (*request(finished).overrides, f"run.output_dir={run}", "run.steps=30", *worse)
    again = TrainingRequest(str(RECIPE), overrides, smoke=True, resume="auto")
    assert run_training(again) is ExitCode.DONE
    best = CheckpointStore(run / "checkpoints", keep_last=1).best()
    assert best is not None
    assert best.name != "step-000030"
    weights = bytearray((best / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (best / "model.safetensors").write_bytes(weights)
    assert run_training(again) is ExitCode.DONE
    assert json.loads((run / "results.json").read_text(encoding="utf8"))["checkpoint"] is None
    said = (run / "run.log").read_text(encoding="utf8")
    assert "The best checkpoint cannot be used, the results are those of the last weights." in said
    assert f"{best} is not a usable checkpoint" in said
    capsys.readouterr()
    assert score(ScoringRequest(run)) is ExitCode.INPUT
    assert "--newest" in capsys.readouterr().err
    assert score(ScoringRequest(run, newest=True)) is ExitCode.DONE


def test_what_is_no_run_is_told_from_a_run_without_checkpoints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert score(ScoringRequest(tmp_path / "nope")) is ExitCode.INPUT
    assert "must be a run's folder" in capsys.readouterr().err
    (tmp_path / "checkpoints").mkdir()
    assert score(ScoringRequest(tmp_path)) is ExitCode.INPUT
    assert "there is no best checkpoint in checkpoints/: --newest" in capsys.readouterr().err


def test_mistakes_are_printed_and_end_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_training(request(tmp_path, "optim.lr=-1", "clip.max_norm=0")) is ExitCode.INPUT
    printed = capsys.readouterr().err
    assert "optim.lr" in printed
    assert "clip.max_norm" in printed
    assert not (tmp_path / "run").exists()


def test_evaluation_leaves_the_model_in_training_and_does_not_depend_on_the_batch_size(tmp_path: Path) -> None:
    trainer = open_trainer(tmp_path, {**sample_values(tmp_path), **SHORT})
    dev, world = trainer.splits.dev, trainer.world
    found = [
        evaluate(
            trainer.task, trainer.model, trainer.precision, dev, batch_size=size, world=world, heartbeat=Heartbeat()
        ).metrics
        for size in (1, 7, 1000)
    ]
    assert trainer.model.training
    for metrics in found[1:]:
        assert metrics == pytest.approx(found[0], rel=1e-5)
    trainer.writers.close()


def test_advice_compares_with_the_answer_that_needs_no_model(tmp_path: Path) -> None:
    trainer = open_trainer(tmp_path, {**sample_values(tmp_path), **SHORT, "optim.lr": 1e-9})
    finish(trainer)
    assert any("is not better than" in line for line in final_advice(trainer))
    trainer.writers = type(trainer.writers).open(tmp_path / "again", 25, None)
    (tmp_path / "again").mkdir(exist_ok=True)
    assert conclude(trainer, tmp_path / "again")["steps"]["applied"] == 25
    trainer.writers.close()


def test_changed_training_data_are_refused_by_resume_and_by_scoring(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The scaling is fitted on them: weights of another scaling would answer nonsense without a word."""
    standard = "data.scaling=standard"  # moves with any row
    assert run_training(request(tmp_path, standard)) is ExitCode.DONE
    exit_record = json.loads((tmp_path / "run" / "exit.json").read_text(encoding="utf8"))
    asked = request(tmp_path, standard, resume="auto")
    series = tmp_path / "data" / "series.csv"
    lines = series.read_text(encoding="utf8").splitlines()
    lines[5] = lines[5].split(",")[0] + ",1.75,0.5"
    series.write_text("\n".join(lines) + "\n", encoding="utf8")
    capsys.readouterr()
    assert score(ScoringRequest(tmp_path / "run")) is ExitCode.INPUT
    assert "another series.json" in capsys.readouterr().err
    assert run_training(asked) is ExitCode.INPUT
    assert "another series.json" in capsys.readouterr().err
    assert exit_record["code"] == 0
    assert json.loads((tmp_path / "run" / "exit.json").read_text(encoding="utf8"))["code"] == 2


def test_a_copy_of_a_checkpoint_may_have_any_name(finished: Path, tmp_path: Path) -> None:
    newest = max((finished / "run" / "checkpoints").glob("step-*"))
    copy = tmp_path / "my copy"
    shutil.copytree(newest, copy)
    assert run_training(request(finished, resume=str(copy))) is ExitCode.DONE


def test_a_run_that_never_updated_anything_is_not_done(tmp_path: Path) -> None:
    asked = request(tmp_path, 'faults=[{"step": 1, "kind": "nan_loss", "steps": 25}]')
    assert run_training(asked) is ExitCode.DIVERGED
    record = json.loads((tmp_path / "run" / "exit.json").read_text(encoding="utf8"))
    assert record["code"] == 3
    assert "none of 25 steps could be used" in record["reason"]


def test_an_early_stop_is_named(tmp_path: Path) -> None:
    never_better = ("run.eval_every=3", "run.early_stop=1", "optim.lr=1e-12", "run.best_metric=directional_accuracy")
    assert run_training(request(tmp_path, *never_better)) is ExitCode.DONE
    record = json.loads((tmp_path / "run" / "exit.json").read_text(encoding="utf8"))
    assert "done early, after step 6 of 25: no better directional_accuracy than that of step 3" in record["reason"]
    assert "done early" in (tmp_path / "run" / "run.log").read_text(encoding="utf8")


def test_a_run_that_ends_far_above_its_best_loss_is_not_done(tmp_path: Path) -> None:
    grow = 'faults=[{"step": 18, "kind": "grow_weights", "steps": 8}]'
    asked = request(tmp_path, grow, "optim.lr=1e-9", "stability.recovery.loss_factor=1.1", "task.loss=mse")
    assert run_training(asked) is ExitCode.DIVERGED
    record = json.loads((tmp_path / "run" / "exit.json").read_text(encoding="utf8"))
    assert record["code"] == 3
    assert "All steps are done, but training has diverged" in record["reason"]
    assert (tmp_path / "run" / "results.json").exists()
