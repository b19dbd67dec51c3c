"""Finding a bound: observed without a clip, recommended with reasons, and nothing of the run touched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddle_stable import find_clip
from paddle_stable.build import build_trainer
from paddle_stable.errors import InputError
from paddle_stable.find_clip import ObservedNorms, describe, observe, open_folder, write_report
from paddle_stable.recipe import FaultConfig, ModelKind
from paddle_stable.recipe_io import LoadedRecipe, load_recipe
from paddle_stable.stability.faults import Faults
from paddle_stable.trainer import Trainer

ROOT = Path(__file__).parents[1]
RECIPE = ROOT / "configs" / "lstm_forecast.yaml"


def loaded(folder: Path, **values: Any) -> LoadedRecipe:
    sample = load_recipe(str(RECIPE)).task_class.write_sample_data(folder / "data")
    values = {key.replace("__", "."): value for key, value in values.items()}
    return load_recipe(str(RECIPE), smoke=True, set_values={**sample, "run.output_dir": str(folder / "run"), **values})


def norms(values: Any, kind: ModelKind = "rnn", skipped: int = 0) -> ObservedNorms:
    values = tuple(float(value) for value in values)
    return ObservedNorms("configs/x.yaml", kind, values, values, skipped)


def test_the_norms_are_those_of_a_run_without_a_clip_and_nothing_is_written(tmp_path: Path) -> None:
    free = observe(loaded(tmp_path, clip__kind="none", stability__spike__action="none"), steps=25)
    files = sorted(tmp_path.rglob("*"))
    tight = observe(loaded(tmp_path, clip__max_norm=1e-3), steps=25)
    assert tight.norms == free.norms
    assert tight.losses == free.losses
    assert len(free.norms) == 25
    assert not (tmp_path / "run").exists()
    assert sorted(tmp_path.rglob("*")) == files


@pytest.fixture
def disturbed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Lets the steps of an observation meet faults, as if the data had them."""

    def disturb(*faults: dict[str, Any]) -> None:
        def build(*arguments: Any, **named: Any) -> Trainer:
            trainer = build_trainer(*arguments, **named)
            trainer.faults = Faults(tuple(FaultConfig(**fault) for fault in faults), 0)
            return trainer

        monkeypatch.setattr(find_clip, "build_trainer", build)

    return disturb


def test_the_faults_of_the_recipe_are_not_observed(tmp_path: Path) -> None:
    faults = [{"step": step, "kind": "huge_grad"} for step in (3, 9, 12)]
    observed = observe(loaded(tmp_path, faults=faults), steps=25)
    assert max(observed.norms) < 1e3


def test_unusable_steps_are_left_out_and_counted(tmp_path: Path, disturbed: Callable[..., None]) -> None:
    disturbed({"step": 3, "kind": "nan_loss"}, {"step": 9, "kind": "inf_grad"})
    observed = observe(loaded(tmp_path), steps=25)
    assert (len(observed.norms), observed.skipped) == (23, 2)
    assert np.isfinite(observed.norms).all()
    assert "23 steps without a clip, 2 skipped" in describe(observed)


def test_too_few_steps_are_refused_with_the_reason(tmp_path: Path, disturbed: Callable[..., None]) -> None:
    with pytest.raises(InputError, match="--steps: must be at least 20, got 5"):
        observe(loaded(tmp_path), steps=5)
    with pytest.raises(InputError, match="only 5 of 5 steps could be applied"):
        observe(loaded(tmp_path, run__steps=5, schedule__warmup_ratio=None), steps=25)
    disturbed(*[{"step": step, "kind": "nan_loss"} for step in range(1, 31)])
    with pytest.raises(InputError, match=r"only 0 of 20 steps could be applied(.|\n)*20 nonfinite"):
        observe(loaded(tmp_path), steps=30)


def test_norms_of_0_make_no_bound(tmp_path: Path) -> None:
    frozen = [{"match": "lstm.*", "freeze": True}, {"match": "head.weight", "freeze": True}]
    with pytest.raises(InputError, match="nearly all gradient norms of 25 steps are 0"):
        observe(
            loaded(tmp_path, **{"task__loss": "huber", "task__huber_delta": 1e-30, "optim__groups": frozen}), steps=25
        )


def test_a_folder_that_cannot_be_written_is_refused_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="--output cannot be written"):
        open_folder(tmp_path / "file" / "report")


def test_the_95th_percentile_is_recommended_to_three_digits() -> None:
    observed = norms(np.linspace(1.0, 3.0, 101))
    assert observed.p95 == observed.start.max_norm == 2.9
    assert observed.clip_rate(2.89) == 6 / 101
    text = describe(observed)
    assert "Recommended: clip.max_norm 2.9, the 95th percentile." in text
    assert "It lies in 1–5, where recurrent networks usually train well." in text
    assert text.splitlines()[-1] == "-o clip.max_norm=2.9"


@pytest.mark.parametrize("kind", ["norm", "value", "adaptive", "layers", "none"])
def test_the_line_to_paste_sets_the_kind_where_it_is_another(kind: str) -> None:
    line = describe(norms([2.0] * 30), kind).splitlines()[-1]
    assert line == "-o clip.max_norm=2 -o clip.kind=global_norm"


@pytest.mark.parametrize(
    ("level", "kind", "said"),
    [
        (
            0.1,
            "transformer",
            "outside 0.5–2, where transformers usually train well; the nearest end of that range, 0.5",
        ),
        (50.0, "transformer", "the nearest end of that range, 2, would have limited 100% of these steps."),
        (50.0, "cnn", "outside 5–10, where convolutional networks"),
        (50.0, "detection", "look at optim.lr, the warm-up and the scale of the inputs"),
    ],
)
def test_a_bound_outside_the_range_of_its_models_is_said_to_be(level: float, kind: ModelKind, said: str) -> None:
    assert said in describe(norms(np.linspace(level, 1.1 * level, 50), kind))


def test_the_line_to_paste_stays_in_the_range_unless_that_would_limit_too_much() -> None:
    assert describe(norms([0.3] * 50, "rnn")).splitlines()[-1] == "-o clip.max_norm=1"
    assert describe(norms([*[1.0] * 45, *[9.0] * 5], "transformer")).splitlines()[-1] == "-o clip.max_norm=2"
    assert describe(norms([9.0] * 50, "transformer")).splitlines()[-1] == "-o clip.max_norm=9"


def test_norms_that_change_in_the_course_of_the_run_are_pointed_out() -> None:
    assert "The norms are changing" in describe(norms([*[9.0] * 30, *[1.0] * 30]))
    assert "The norms are changing" not in describe(norms([*[1.5] * 30, *[1.0] * 30]))


@pytest.mark.parametrize("values", [[2.0] * 30, [0.0] * 30, [1e-9, 1e9] * 20], ids=["equal", "zero", "far apart"])
def test_the_picture_can_always_be_drawn(values: list[float], tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    open_folder(folder)
    picture, written = write_report(norms(values), folder)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert json.loads(written.read_text(encoding="utf-8"))["norms"] == values


def test_the_tool_prints_a_line_that_the_trainer_takes(tmp_path: Path) -> None:
    sample = load_recipe(str(RECIPE)).task_class.write_sample_data(tmp_path / "data")
    overrides = {**sample, "run.output_dir": str(tmp_path / "run")}
    options = [part for key, value in overrides.items() for part in ("-o", f"{key}={json.dumps(value)}")]
    tool = [sys.executable, str(ROOT / "tools" / "find_clip.py"), "-c", str(RECIPE), "--smoke", "--steps", "25"]
    done = subprocess.run(
        [*tool, *options], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("-o ")]
    taken = load_recipe(str(RECIPE), [part for part in line.split() if part != "-o"])
    assert taken.recipe.clip.max_norm == float(line.partition("=")[2])
    assert not (tmp_path / "run").exists()
    folder = tmp_path / "runs" / "find_clip" / "lstm_forecast"
    assert {path.name for path in folder.iterdir()} == {"norms.png", "norms.json"}


def test_the_tool_reports_a_mistake_with_code_2(tmp_path: Path) -> None:
    tool = [sys.executable, str(ROOT / "tools" / "find_clip.py"), "-c", str(RECIPE), "-o", "optim.learning_rate=1"]
    done = subprocess.run(tool, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Did you mean optim.lr?" in done.stderr
    assert list(tmp_path.iterdir()) == []
