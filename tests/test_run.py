"""Ends that a run meets outside of its steps, each with code and one clear line; and what `--check` reads in full."""

from __future__ import annotations

import contextlib
import fcntl
import json
import multiprocessing
import os
import re
import resource
import runpy
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paddle_stable import run, stop_signal, tool_start
from paddle_stable.distributed import World
from paddle_stable.errors import ExitCode, InputError, Stopped
from paddle_stable.run import TrainingRequest, run_training
from paddle_stable.trainer import Trainer
from tests.integration.conftest import RECIPE, ROOT, Train, sample_values
from tests.integration.test_train import wait_for_steps

TASKS = """
import os, signal
from paddle_stable.tasks import lstm

class ToldWhileLoading(lstm.LstmForecast):
    def load_splits(self):
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGTERM)
        return super().load_splits()
"""


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    """A stopped run ignores signals from then on; the tests behind it should not."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def request(folder: Path, *, trust: bool = False, **values: Any) -> TrainingRequest:
    set_values = {**sample_values(folder), "run.output_dir": str(folder / "run"), **values}
    overrides = tuple(f"{key}={json.dumps(value)}" for key, value in set_values.items())
    return TrainingRequest(str(RECIPE), overrides, smoke=True, trust=trust)


def record(folder: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((folder / "run" / "exit.json").read_text(encoding="utf8"))
    return read


def damaged(folder: Path, **values: Any) -> TrainingRequest:
    """A request for data with a cell that is no number, in line 4."""
    asked = request(folder, **values)
    good = Path(str(sample_values(folder)["data.file"]))
    lines = good.read_text(encoding="utf8").split("\n")
    lines[3] = re.sub(",.*", lambda rest: re.sub("[0-9.-]+", "much", rest[0]), lines[3])
    (folder / "bad.csv").write_text("\n".join(lines), encoding="utf8")
    return replace(asked, overrides=(*asked.overrides, f"data.file={folder / 'bad.csv'}"))


def test_mistakes_in_recipe_and_data_are_told_in_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_training(damaged(tmp_path, **{"clip.max_norm": -1.0, "optim.lr": 0})) is ExitCode.INPUT
    said = capsys.readouterr().err
    assert "clip.max_norm" in said
    assert "optim.lr" in said
    assert f"{tmp_path / 'bad.csv'}:4" in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("wrong", [{"data.horizon": 0}, {"data.horizon": "[", "optim.lr": 0}, {"task.target": "x.Y"}])
def test_data_that_the_recipe_does_not_tell_how_to_read_are_not_read(
    wrong: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = damaged(tmp_path)
    overrides = (*asked.overrides, *(f"{key}={value}" for key, value in wrong.items()))
    assert run_training(replace(asked, overrides=overrides)) is ExitCode.INPUT
    said = capsys.readouterr().err
    assert all(key in said for key in wrong)
    assert "bad.csv" not in said


def test_one_of_several_processes_with_a_mistake_in_the_recipe_leaves_the_data_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "is_one_of_several", lambda: True)
    assert run_training(damaged(tmp_path, **{"optim.lr": 0})) is ExitCode.INPUT
    assert "bad.csv" not in capsys.readouterr().err


def test_a_signal_while_the_data_load_ends_a_process_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "told.py").write_text(TASKS, encoding="utf8")
    monkeypatch.syspath_prepend(str(tmp_path))
    code = run_training(request(tmp_path, trust=True, **{"task.target": "told.ToldWhileLoading"}))
    assert code == 75
    assert "stopped by SIGTERM before the first step" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_signal_between_the_data_and_the_first_step_is_in_exit_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "_begin", lambda *_: os.kill(os.getpid(), signal.SIGINT))
    assert run_training(request(tmp_path)) == 75
    end = record(tmp_path)
    assert (end["code"], end["step"], end["retry"]) == (75, 0, True)


def test_a_signal_is_heard_while_a_data_file_keeps_the_process_waiting(tmp_path: Path) -> None:
    train = Train(tmp_path)
    os.mkfifo(tmp_path / "endless.csv")
    process = subprocess.Popen(
        train.command("--check", data__file=str(tmp_path / "endless.csv")),
        env=train.environment, cwd=tmp_path, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    writer = None
    while writer is None and process.poll() is None:
        with contextlib.suppress(OSError):  # until the process reads
            writer = os.open(tmp_path / "endless.csv", os.O_WRONLY | os.O_NONBLOCK)
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 75, errors
    assert "stopped by SIGTERM before the first step" in errors


def test_a_run_goes_on_when_nobody_reads_its_lines_any_more(tmp_path: Path) -> None:
    train = Train(tmp_path)
    reader, writer = os.pipe()
    os.close(reader)
    fault = "faults=[{step: 3, kind: withhold}]"  # which an advice names before the first step
    for command in (train.command("--check", "-o", fault), train.command("-o", fault)):
        done = subprocess.run(command, env=train.environment, cwd=tmp_path, stdout=writer, stderr=writer, check=False)
        assert done.returncode == 0
    os.close(writer)
    assert record(tmp_path)["code"] == 0
    assert "step 3 skipped" in (tmp_path / "run" / "run.log").read_text(encoding="utf8")


def test_a_run_goes_on_when_its_terminal_is_closed(tmp_path: Path) -> None:
    """As after `disown` and a lost connection: the progress bar meets an input/output error."""
    train = Train(tmp_path)
    screen, terminal = os.openpty()
    fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    process = subprocess.Popen(
        ["env", "--ignore-signal=HUP", *train.command(run__steps=600, run__log_every=1)],
        env=train.environment, cwd=tmp_path, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True,
    )  # fmt: skip
    os.close(terminal)
    wait_for_steps(tmp_path / "run", process)
    os.close(screen)
    assert process.wait(timeout=120) == 0
    assert record(tmp_path)["code"] == 0


def test_a_signal_is_heard_by_a_run_of_ernie_too(tmp_path: Path) -> None:
    """PaddleNLP, which is imported when the network is built, takes all handlers of signals away."""
    train = Train(tmp_path, ROOT / "configs" / "ernie_cls.yaml")
    process = subprocess.Popen(
        train.command(run__steps=5000, run__epochs=None, run__log_every=1, run__eval_every=5000),
        env=train.environment, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    wait_for_steps(tmp_path / "run", process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=300) == 75
    end = record(tmp_path)
    assert [path.name for path in (tmp_path / "run" / "checkpoints").glob("step-*")] == [f"step-{end['step']:06d}"]


def test_a_killed_data_worker_is_named_and_is_no_bad_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from paddle_stable.stability.faults import Faults

    def kill_workers(faults: Faults, step: int) -> bool:
        if step == 7:
            for worker in multiprocessing.active_children():
                assert worker.pid is not None
                os.kill(worker.pid, signal.SIGKILL)
        return False

    monkeypatch.setattr(Faults, "withholds", kill_workers)
    code = run_training(request(tmp_path, **{"data.workers": 1, "run.steps": 30}))
    assert code == 1
    said = capsys.readouterr().err
    assert "was killed by SIGKILL" in said
    assert "series.csv:" in said
    assert "--resume auto" in said
    assert "Traceback" not in said
    end = record(tmp_path)
    assert (end["code"], end["retry"]) == (1, True)


def test_a_full_disk_outside_a_checkpoint_ends_the_run_in_a_clear_line(tmp_path: Path) -> None:
    """Records grow beyond what may be written, the checkpoints do not: a limit on the size of files stands in."""
    train = Train(tmp_path)
    command = train.command(run__steps=2000, run__log_every=1, run__eval_every=2000, run__save_every=10)
    done = subprocess.run(
        command, capture_output=True, text=True, env=train.environment, cwd=tmp_path, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000)),
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "The run folder cannot be written" in done.stderr
    assert "Is the disk full?" in done.stderr
    assert "Traceback" not in done.stderr
    end = record(tmp_path)
    assert end["code"] == 1
    assert sorted((tmp_path / "run" / "checkpoints").glob("step-*"))


def checked(monkeypatch: pytest.MonkeyPatch, full_check: Callable[[], Sequence[str]] | None) -> ExitCode:
    """What `--check` answers for data with such a check."""
    splits = SimpleNamespace(warnings=(), full_check=full_check)
    recipe = SimpleNamespace(run=SimpleNamespace(output_dir="nowhere-yet"))
    monkeypatch.setattr(run, "_join", lambda _: (SimpleNamespace(recipe=recipe, advice=()), World.single()))
    monkeypatch.setattr(run, "prepare", lambda *_: SimpleNamespace(splits=splits))
    monkeypatch.setattr(run, "describe", lambda *_: "described")
    return run_training(TrainingRequest(config="x.yaml", check=True))


def test_what_the_full_check_says_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert checked(monkeypatch, lambda: ["all images were decoded"]) is ExitCode.DONE
    assert capsys.readouterr().out == "data: all images were decoded\ndescribed\n"


def test_what_it_finds_ends_the_check(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def full_check() -> Sequence[str]:
        raise InputError.single("a.txt", "image a.jpg: truncated", line=3)

    assert checked(monkeypatch, full_check) is ExitCode.INPUT
    assert "a.txt:3  image a.jpg: truncated" in capsys.readouterr().err


def test_data_that_were_read_in_full_need_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checked(monkeypatch, None) is ExitCode.DONE


def test_a_run_that_goes_on_from_another_one_does_not_take_a_folder_with_a_run_in_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("one", "two"):
        assert run_training(request(tmp_path, **{"run.steps": 4, "run.output_dir": str(tmp_path / name)})) == 0
    before = (tmp_path / "two" / "metrics.jsonl").read_bytes()
    [other] = (tmp_path / "one" / "checkpoints").glob("step-*")
    going_on = replace(request(tmp_path, **{"run.output_dir": str(tmp_path / "two")}), resume=str(other))
    assert run_training(going_on) == 2
    assert "there is a run in this folder already" in capsys.readouterr().err
    assert (tmp_path / "two" / "metrics.jsonl").read_bytes() == before


def test_a_smoke_run_ends_without_advice_that_its_tiny_sizes_do_not_bear(tmp_path: Path) -> None:
    assert run_training(request(tmp_path, **{"run.steps": 30, "optim.lr": 1e-9})) == 0
    log = (tmp_path / "run" / "run.log").read_text(encoding="utf8")
    assert "the figures say nothing about the recipe" in log
    assert "advice: " not in log


def test_a_process_that_others_have_stopped_ignores_its_own_late_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher's signals arrive at different moments: one that comes while Python ends must not change the code."""

    def stopped(*_: object) -> None:
        raise Stopped("stopped by a signal after step 3; checkpoint saved")

    monkeypatch.setattr(Trainer, "fit", stopped)
    assert run_training(request(tmp_path)) == 75
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN


def test_the_end_of_the_launcher_is_heard_before_paddle_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked() -> None:
        raise SystemExit("asked for")

    monkeypatch.setattr(tool_start, "start_tool", lambda: pytest.fail("Paddle is imported first"))
    monkeypatch.setattr(stop_signal, "stop_with_launcher", asked)
    monkeypatch.setattr(sys, "argv", ["train.py", "-c", "recipe.yaml"])
    with pytest.raises(SystemExit, match="asked for"):
        runpy.run_path(str(ROOT / "tools" / "train.py"), run_name="__main__")
