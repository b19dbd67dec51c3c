"""Scoring a saved checkpoint: which one, on which split, and that every mistake is told without a traceback."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paddle_stable import scoring
from paddle_stable.build import build_trainer, prepare
from paddle_stable.data.dataset import SampleOrigin
from paddle_stable.data.workers import SampleError
from paddle_stable.distributed import World
from paddle_stable.errors import ExitCode
from paddle_stable.evaluation import Evaluation
from paddle_stable.recipe_io import load_recipe
from paddle_stable.scoring import ScoringRequest, score

RECIPE = Path(__file__).parents[1] / "configs" / "lstm_forecast.yaml"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, dict[str, float]]]:
    """A run folder with checkpoints of steps 1 (the best) and 2, and the metrics of both on dev."""
    folder = tmp_path_factory.mktemp("scoring")
    values = load_recipe(str(RECIPE)).task_class.write_sample_data(folder / "data")
    loaded = load_recipe(str(RECIPE), smoke=True, set_values={**values, "run.output_dir": str(folder / "run")})
    trainer = build_trainer(prepare(loaded, World.single()), World.single(), folder=folder / "run")
    windows, metrics = trainer.loader.steps(), {}
    for step in (1, 2):
        trainer.train_step(windows)
        metrics[step] = dict(trainer.evaluate(trainer.splits.dev).metrics)
        trainer.best = trainer.best.after(step, float(-step))
        parts = trainer._parts()
        trainer.store.save(step, replace(parts, state={**parts.state, "best": trainer.best.state()}), best=step == 1)
    return folder / "run", metrics


def told(capsys: pytest.CaptureFixture[str], run: Path, **changes: Any) -> tuple[ExitCode, str, str]:
    """Exit code, what was printed, and what was said of mistakes."""
    capsys.readouterr()
    code = score(ScoringRequest(run, **{"split": "dev", **changes}))
    return code, *capsys.readouterr()


def files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("named", "newest", "step"), [("", False, 1), ("", True, 2), ("checkpoints/step-000002", False, 2)]
)
def test_the_best_checkpoint_is_scored_unless_another_is_asked_for(
    saved: tuple[Path, dict[int, dict[str, float]]],
    capsys: pytest.CaptureFixture[str],
    named: str,
    newest: bool,
    step: int,
) -> None:
    run, metrics = saved
    before = files(run)
    code, printed, said = told(capsys, run / named, newest=newest)
    assert (code, said) == (ExitCode.DONE, "")
    assert metrics[1] != metrics[2]
    checkpoint = str(run / "checkpoints" / f"step-{step:06d}")
    assert json.loads(printed) == {"checkpoint": checkpoint, "split": "dev", "metrics": metrics[step]}
    assert files(run) == before  # nothing is written


@pytest.mark.parametrize("batch_size", [1, 1000])
def test_the_batch_size_of_evaluation_does_not_matter(
    saved: tuple[Path, dict[int, dict[str, float]]], capsys: pytest.CaptureFixture[str], batch_size: int
) -> None:
    run, metrics = saved
    _, printed, _ = told(capsys, run, overrides=(f"data.eval_batch_size={batch_size}",))
    assert json.loads(printed)["metrics"] == pytest.approx(metrics[1], rel=1e-5)


@pytest.mark.parametrize("split", ["train", "test"])
def test_another_split_has_other_metrics(
    saved: tuple[Path, dict[int, dict[str, float]]], capsys: pytest.CaptureFixture[str], split: str
) -> None:
    code, printed, _ = told(capsys, saved[0], split=split)
    found = json.loads(printed)
    assert (code, found["split"]) == (ExitCode.DONE, split)
    assert found["metrics"] != saved[1][1]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"split": "test", "overrides": ("data.test_from=null",)}, "the recipe has no test set; --split dev or train"),
        ({"overrides": ("data.lookbak=3",)}, "data.lookbak: unknown key"),
        ({"overrides": ("data.file=absent.csv",)}, "absent.csv  no such file"),
        ({"overrides": ("data.scaling=standard",)}, "another series.json"),
        ({"overrides": ("task.hidden=17",)}, "head.weight (expected float32[17, 2]"),
    ],
    ids=["split", "key", "file", "scaling", "width"],
)
def test_a_mistake_is_printed_and_ends_with_2(
    saved: tuple[Path, dict[int, dict[str, float]]],
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, Any],
    said: str,
) -> None:
    code, printed, mistakes = told(capsys, saved[0], **changes)
    assert (code, printed) == (ExitCode.INPUT, "")
    assert said in mistakes


@pytest.mark.parametrize(
    ("newest", "kind", "way_out"),
    [(False, "best", "--newest, or name one's folder"), (True, "newest valid", "name one's folder")],
)
def test_a_folder_without_checkpoints_is_named_with_the_way_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], newest: bool, kind: str, way_out: str
) -> None:
    (tmp_path / "checkpoints").mkdir()
    code, _, said = told(capsys, tmp_path, newest=newest)
    assert code is ExitCode.INPUT
    assert f"{tmp_path}  there is no {kind} checkpoint in checkpoints/: {way_out}" in said


def test_a_sample_that_cannot_be_read_is_named_and_ends_with_2(
    saved: tuple[Path, dict[int, dict[str, float]]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unreadable(*_: Any, **__: Any) -> None:
        raise SampleError("Preparing a sample", [SampleOrigin("photo.jpg", 0, "")], "OSError: damaged")

    monkeypatch.setattr(scoring, "evaluate", unreadable)
    code, printed, said = told(capsys, saved[0])
    assert (code, printed) == (ExitCode.INPUT, "")
    assert "Preparing a sample failed: OSError: damaged\nSample: photo.jpg" in said


def test_a_metric_that_is_not_finite_is_null(
    saved: tuple[Path, dict[int, dict[str, float]]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    metrics = {"mse": 0.5, "skill": -math.inf, "mae": math.nan, "rmse": math.inf}
    monkeypatch.setattr(scoring, "evaluate", lambda *_, **__: Evaluation(metrics, {}))
    code, printed, _ = told(capsys, saved[0])

    def refuse(word: str) -> None:
        pytest.fail(f"{word} is not JSON")

    found = json.loads(printed, parse_constant=refuse)
    assert (code, found["metrics"]) == (ExitCode.DONE, {"mse": 0.5, "skill": None, "mae": None, "rmse": None})
