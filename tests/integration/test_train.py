"""`tools/train.py` as a person runs it: one process, exit codes, files."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from visualdl import LogReader

from paddle_stable.checkpoint import CheckpointStore

from .conftest import ROOT, Train, curve, final_digest


def exit_record(run: Path) -> tuple[int, str]:
    record = json.loads((run / "exit.json").read_text(encoding="utf8"))
    return record["code"], record["reason"]


def test_non_finite_steps_are_survived_counted_and_equal_withheld_ones(train: Train, tmp_path: Path) -> None:
    poison = [{"step": 7, "kind": "nan_loss"}, {"step": 12, "kind": "inf_grad"}, {"step": 13, "kind": "nan_loss"}]
    withheld = [{"step": fault["step"], "kind": "withhold"} for fault in poison]
    poisoned, kept, clean = tmp_path / "poisoned", tmp_path / "withheld", tmp_path / "clean"
    for run, faults in ((poisoned, poison), (kept, withheld), (clean, [])):
        done = train(run__output_dir=str(run), faults=faults, run__log_every=1, run__steps=20)
        assert done.returncode == 0, done.stderr
        assert exit_record(run)[0] == 0
    scalars = curve(poisoned)
    last = {tag: value for tag, step, value in scalars if step == 20}
    assert last["stability/skipped_nonfinite"] == 3.0
    assert last["stability/skipped_overflow"] == 0.0
    results = json.loads((poisoned / "results.json").read_text(encoding="utf8"))
    assert results["steps"]["attempted"] == 20
    assert results["steps"]["applied"] == 17
    # Withheld steps are counted apart; everything else of the curve is the same.
    learned = [point for point in scalars if not point[0].startswith(("stability/skipped", "stability/nonfinite"))]
    assert learned == [p for p in curve(kept) if not p[0].startswith(("stability/skipped", "stability/nonfinite"))]
    assert final_digest(poisoned) == final_digest(kept)
    assert final_digest(poisoned) != final_digest(clean)
    reader = LogReader(file_path=str(poisoned / "vdlrecords.run.log"))
    plotted = [(point.id, point.value) for point in reader.get_data("scalar", "stability/grad_norm")]
    assert [step for step, _ in plotted] == [step for step in range(1, 21) if step not in (7, 12, 13)]


def test_a_run_that_cannot_go_on_says_why_and_keeps_its_best(train: Train, tmp_path: Path) -> None:
    faults = [{"step": step, "kind": "nan_loss"} for step in range(8, 12)]
    done = train(
        faults=faults, run__steps=20, run__eval_every=2,
        stability__max_consecutive_skips=4, stability__recovery__max_rollbacks=0,
    )  # fmt: skip
    assert done.returncode == 3
    assert "stability.max_consecutive_skips" in done.stderr
    assert "Traceback" not in done.stderr
    code, reason = exit_record(tmp_path / "run")
    assert (code, reason.startswith("Training has diverged")) == (3, True)
    store = CheckpointStore(tmp_path / "run" / "checkpoints", keep_last=2)
    best = store.best()
    assert best is not None
    assert store.verify(best) == []
    assert best.name in reason


def test_a_signal_saves_and_resuming_ends_where_the_uninterrupted_run_does(train: Train, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert train(run__output_dir=str(whole), run__steps=300, run__eval_every=100).returncode == 0
    command = train.command(run__output_dir=str(broken), run__steps=300, run__eval_every=100)
    process = subprocess.Popen(command, env=train.environment, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    wait_for_steps(broken, process)
    for _ in range(3):  # as the launcher does
        process.send_signal(signal.SIGTERM)
        time.sleep(0.05)
    _, errors = process.communicate()
    assert process.returncode == 75, errors
    code, reason = exit_record(broken)
    assert code == 75
    assert "SIGTERM: the step in hand is finished first\n" in errors
    assert (broken / "run.log").read_text(encoding="utf8").endswith(f"  {reason}\n")
    resumed = train("--resume", "auto", run__output_dir=str(broken), run__steps=300, run__eval_every=100)
    assert resumed.returncode == 0, resumed.stderr
    assert final_digest(broken) == final_digest(whole)
    assert curve(broken) == curve(whole)


def wait_for_steps(run: Path, process: subprocess.Popen[Any]) -> None:
    """Until the first scalars are on disk."""
    while process.poll() is None:
        if (run / "metrics.jsonl").exists() and '"train/loss"' in (run / "metrics.jsonl").read_text(encoding="utf8"):
            return
        time.sleep(0.05)
    pytest.fail(f"ended early: {process.communicate()[1]}")


def test_a_failing_operation_names_the_samples(train: Train, tmp_path: Path) -> None:
    """A network for two features that is given three: its first product raises in the forward pass."""
    task = tmp_path / "narrow.py"
    task.write_text(
        "import paddle\n"
        "from paddle_stable.models.lstm import LstmForecaster\n"
        "from paddle_stable.tasks import lstm\n"
        "class Narrow(lstm.LstmForecast):\n"
        "    def build_model(self):\n"
        "        return LstmForecaster(1, 1, hidden=4, layers=1, dropout=0.0)\n",
        encoding="utf8",
    )
    done = train("--trust", task__target="narrow.Narrow")
    assert done.returncode == 1, done.stderr
    assert "series.csv:" in done.stderr
    code, reason = exit_record(tmp_path / "run")
    assert code == 1
    assert reason.startswith("step 1 failed with")
    assert "There is no checkpoint yet." in reason


def test_bad_recipes_bad_data_and_used_folders_end_with_2_and_no_traceback(train: Train, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").touch()
    used = train()
    assert used.returncode == 2
    assert "--resume auto" in used.stderr
    bad = tmp_path / "bad.txt"
    bad.write_bytes("没有制表符\n好\tpositive\n\tnegative\n坏\tunknown label\n".encode() + b"\xff\xfe\tpositive\n")
    data = Train(tmp_path, ROOT / "configs" / "ernie_cls.yaml")(data__train=str(bad))
    assert data.returncode == 2
    assert [f"bad.txt:{line}" in data.stderr for line in (1, 3, 5)] == [True] * 3
    recipe = train(optim__leraning_rate=1, clip__max_norm=-1)
    assert recipe.returncode == 2
    assert "Did you mean optim.lr" in recipe.stderr
    assert "clip.max_norm" in recipe.stderr
    for done in (used, data, recipe):
        assert "Traceback" not in done.stderr


def test_help_answers_without_importing_paddle(tmp_path: Path) -> None:
    code = (
        "import runpy, sys\n"
        "sys.argv = ['train.py', '--help']\n"
        "try:\n    runpy.run_path(r'{path}', run_name='__main__')\n"
        "except SystemExit as end:\n    print(end.code, 'paddle' in sys.modules, 'numpy' in sys.modules)\n"
    ).replace("{path}", str(ROOT / "tools" / "train.py"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout.strip().splitlines()[-1] == "0 False False"


def test_check_says_what_would_run_and_writes_nothing(train: Train, tmp_path: Path) -> None:
    done = train("--check")
    assert done.returncode == 0, done.stderr
    for word in ("samples", "training", "30 in all", "parameters", "MiB"):
        assert word in done.stdout
    assert not (tmp_path / "run").exists()
