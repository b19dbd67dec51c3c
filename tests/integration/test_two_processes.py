"""Two processes under Paddle's launcher do what one does: the same losses, the same metrics, one record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from paddle_stable.run import TrainingRequest, run_training

from .conftest import ROOT, Train, curve, sample_values

STEPS: dict[str, Any] = {"run__steps": 20, "run__log_every": 1, "run__eval_every": 20, "task__dropout": 0.0}


def losses(run: Path, tag: str = "train/loss") -> list[float]:
    return [value for name, _, value in curve(run) if name == tag]


def weights(run: Path) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = load_file(run / "checkpoints" / "step-000020" / "model.safetensors")
    return found


@pytest.fixture
def runs(train: Train, tmp_path: Path) -> dict[str, Path]:
    """The same windows of 32 samples over an epoch with a short last one, dealt in three ways."""
    dealt: dict[str, dict[str, Any]] = {
        "1 x 2b": {"data__batch_size": 32},
        "1 x b x accumulate 2": {"data__batch_size": 16, "run__accumulate": 2},
        "2 x b": {"data__batch_size": 16, "ranks": 2},
    }
    folders = {}
    for name, values in dealt.items():
        folders[name] = tmp_path / name.replace(" ", "")
        done = train(run__output_dir=str(folders[name]), **STEPS, **values)
        assert done.returncode == 0, done.stderr + done.stdout
    return folders


def test_two_processes_one_and_accumulation_agree_over_more_than_an_epoch(runs: dict[str, Path]) -> None:
    one, accumulated, two = runs.values()
    assert len(losses(one)) == 20
    for other in (accumulated, two):
        np.testing.assert_allclose(losses(other), losses(one), rtol=1e-5)
        # Of the first step the norm speaks for the gradient itself: nothing has drifted yet.
        norms = [losses(run, "stability/grad_norm")[0] for run in (other, one)]
        assert norms[0] == pytest.approx(norms[1], rel=1e-5)
        for name, value in weights(one).items():
            np.testing.assert_allclose(weights(other)[name], value, rtol=1e-3, atol=1e-5)
    assert json.loads((two / "exit.json").read_text())["code"] == 0
    assert sorted(p.name for p in two.iterdir()) == sorted(p.name for p in one.iterdir())


def test_an_epoch_of_ernie_is_the_same_in_two_processes_one_and_with_accumulation(tmp_path: Path) -> None:
    """64 reviews in windows of 12, the last one short; the two runs of one process in this one, which is quicker."""
    recipe = ROOT / "configs" / "ernie_cls.yaml"
    two = Train(tmp_path, recipe)
    values: dict[str, Any] = {"run.steps": 6, "run.log_every": 1, "task.dropout": 0.0, "task.attention_dropout": 0.0}
    launched = {key.replace(".", "__"): value for key, value in values.items()}
    done = two(run__output_dir=str(tmp_path / "two"), data__batch_size=6, ranks=2, **launched)
    assert done.returncode == 0, done.stdout + done.stderr
    sample = sample_values(tmp_path, recipe)
    for name, batch_size, accumulate in (("one", 12, 1), ("accumulated", 6, 2)):
        run = {"run.output_dir": str(tmp_path / name), "data.batch_size": batch_size, "run.accumulate": accumulate}
        overrides = tuple(f"{key}={json.dumps(value)}" for key, value in {**sample, **values, **run}.items())
        assert run_training(TrainingRequest(str(recipe), overrides, smoke=True)) == 0
    assert len(losses(tmp_path / "one")) == 6
    for name in ("two", "accumulated"):
        np.testing.assert_allclose(losses(tmp_path / name), losses(tmp_path / "one"), rtol=1e-5)
        norms = [losses(tmp_path / run, "stability/grad_norm")[0] for run in (name, "one")]
        assert norms[0] == pytest.approx(norms[1], rel=1e-5)


def test_evaluation_is_the_same_bit_for_bit(train: Train, tmp_path: Path) -> None:
    """A run of two processes, and then its checkpoint evaluated by one."""
    two = tmp_path / "two"
    # 7 samples a batch: dev has an odd number of batches, the last one short.
    done = train(run__output_dir=str(two), **STEPS, data__batch_size=16, data__eval_batch_size=7, ranks=2)
    assert done.returncode == 0, done.stderr + done.stdout
    values = {"run__output_dir": str(two), **STEPS, "data__batch_size": 32, "data__eval_batch_size": 7}
    first = json.loads((two / "results.json").read_text(encoding="utf8"))
    again = train("--resume", "auto", **values)
    assert again.returncode == 0, again.stderr
    second = json.loads((two / "results.json").read_text(encoding="utf8"))
    assert second["metrics"] == first["metrics"]


def test_a_step_poisoned_on_one_process_is_skipped_on_both(train: Train, tmp_path: Path) -> None:
    """Whichever process it is that meets the NaN."""
    faults = [{"step": step, "kind": "nan_loss", "rank": rank} for step, rank in ((4, 0), (6, 1))]
    faults += [{"step": step, "kind": "inf_grad", "rank": rank} for step, rank in ((9, 0), (11, 1))]
    withheld = [{"step": step, "kind": "withhold"} for step in (4, 6, 9, 11)]
    for name, chosen in (("poisoned", faults), ("withheld", withheld)):
        done = train(run__output_dir=str(tmp_path / name), **STEPS, data__batch_size=16, faults=chosen, ranks=2)
        assert done.returncode == 0, done.stderr + done.stdout
    skipped = [value for tag, _, value in curve(tmp_path / "poisoned") if tag == "stability/skipped_nonfinite"]
    assert skipped[-1] == 4.0
    assert losses(tmp_path / "poisoned") == losses(tmp_path / "withheld")
    for name, value in weights(tmp_path / "withheld").items():
        np.testing.assert_array_equal(weights(tmp_path / "poisoned")[name], value)


@pytest.mark.parametrize("late", ["0", "1"])
def test_a_mistake_ends_the_launcher_with_2(late: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever process finds it first: the launcher would stop the other one with a signal, and pass that on."""
    (tmp_path / "sitecustomize.py").write_text(
        f"import os, time\ntime.sleep(3 if os.environ.get('PADDLE_RANK_IN_NODE') == '{late}' else 0)\n", encoding="utf8"
    )
    monkeypatch.setattr(Train, "environment", {**Train.environment, "PYTHONPATH": str(tmp_path)})
    done = Train(tmp_path)(optim__lr=-1, ranks=2)
    assert done.returncode == 2, done.stderr + done.stdout


def test_both_processes_say_that_the_run_has_diverged(train: Train, tmp_path: Path) -> None:
    """Rank 0 cannot save a state that is not finite; what rank 1 hears of it must not hide the reason."""
    done = train(
        faults=[{"step": 7, "kind": "nan_parameter"}], run__steps=20, run__eval_every=10,
        stability__recovery__max_rollbacks=0, ranks=2,
    )  # fmt: skip
    assert done.returncode == 3, done.stderr + done.stdout
    record = json.loads((tmp_path / "run" / "exit.json").read_text(encoding="utf8"))
    assert record["code"] == 3
    assert "NaN or inf" in record["reason"]
