"""The decisions of `tools/launch.py`, with a stand-in for Paddle's launcher."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paddle_stable import launching
from paddle_stable.errors import ExitCode, InputError
from paddle_stable.launching import LaunchedCommand, RecordedEnd, judge, launch
from paddle_stable.stop_signal import StopSignal

ROOT = Path(__file__).parents[1]

STAND_IN = """
import json, os, signal, sys, time
from pathlib import Path
folder = Path(sys.argv[1])
with (folder / "started").open("a") as stream:
    stream.write(json.dumps(sys.argv[2:]) + chr(10))
attempts = len((folder / "started").read_text().splitlines())
code, end = json.loads((folder / "ends").read_text())[attempts - 1]
if code == "wait":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(15))
    (folder / "ready").touch()
    time.sleep(60)
if end is not None:
    (folder / "run").mkdir(exist_ok=True)
    (folder / "run" / "exit.json").write_text(json.dumps({"code": end[0], "retry": end[1], "time": time.time()}))
if code < 0:
    os.kill(os.getpid(), -code)
sys.exit(code)
"""

KILLED = [247, None]
HANG = [4, [4, True]]
DONE = [0, [0, False]]


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(f"run:\n  output_dir: {tmp_path / 'run'}\nsmoke: {{run.output_dir: elsewhere}}\n", encoding="utf8")
    (tmp_path / "stand_in.py").write_text(STAND_IN, encoding="utf8")
    return path


def launched(recipe: Path, ends: list[object], *arguments: str, max_restarts: int = 3) -> tuple[int, list[list[str]]]:
    """The exit code, and the arguments of every start."""
    folder = recipe.parent
    (folder / "ends").write_text(json.dumps(ends), encoding="utf8")
    code = launch(
        ["--nproc_per_node", "2", "tools/train.py", "-c", str(recipe), *arguments],
        max_restarts=max_restarts,
        launcher=[sys.executable, str(folder / "stand_in.py"), str(folder)],
    )
    return code, [json.loads(line) for line in (folder / "started").read_text(encoding="utf8").splitlines()]


@pytest.mark.parametrize(
    ("ends", "code", "starts"),
    [
        ([DONE], 0, 1),
        ([KILLED, HANG, DONE], 0, 3),
        ([[250, None], [-9, None], DONE], 0, 3),
        ([[1, [1, True]], DONE], 0, 2),
        ([HANG, [1, None]], 1, 2),  # the exit.json of the attempt before says nothing about this one
        ([KILLED] * 9, 1, 4),
        ([HANG] * 9, 4, 4),
        ([[1, [1, False]]], 1, 1),
        ([[2, None]], 2, 1),
        ([[1, None]], 1, 1),
        ([[247, [2, False]]], 2, 1),
        ([[3, [3, False]]], 3, 1),
        ([[15, [75, True]]], 75, 1),
        ([[-9, [75, True]], DONE], 0, 2),  # the launcher was killed: its processes have stopped for that only
        ([[247, [0, False]]], 0, 1),  # it had finished: what fell over afterwards has cost nothing
    ],
)  # fmt: skip
def test_only_hangs_and_killed_processes_are_started_again(
    recipe: Path, ends: list[object], code: int, starts: int
) -> None:
    found, started = launched(recipe, ends)
    assert (found, len(started)) == (code, starts)
    assert started[0][-2:] == ["-c", str(recipe)]
    assert all(arguments[-2:] == ["--resume", "auto"] for arguments in started[1:])


def test_an_end_from_before_is_not_this_runs(recipe: Path) -> None:
    (recipe.parent / "run").mkdir()
    (recipe.parent / "run" / "exit.json").write_text('{"code": 75, "retry": true, "time": 1.0}', encoding="utf8")
    assert launched(recipe, [KILLED, DONE])[0] == 0


@pytest.mark.parametrize("left", ["metrics.jsonl", "checkpoints/step-000010"])
def test_another_run_in_the_folder_is_not_gone_on_with(recipe: Path, left: str) -> None:
    """Processes that are killed before they look into the folder would be started again with --resume auto."""
    (recipe.parent / "run" / left).mkdir(parents=True)
    with pytest.raises(InputError, match="there is a run in this folder already"):
        launched(recipe, [KILLED, DONE])
    assert launched(recipe, [KILLED, DONE], "--resume", "auto")[0] == 0


@pytest.mark.parametrize(("own", "expected"), [(False, "runs/other/step-000010"), (True, "auto")])
def test_a_run_that_began_with_a_checkpoint_begins_there_until_it_has_its_own(
    recipe: Path, own: bool, expected: str
) -> None:
    if own:
        (recipe.parent / "run" / "checkpoints" / "step-000020").mkdir(parents=True)
    _, started = launched(recipe, [KILLED, DONE], "--resume", "runs/other/step-000010")
    assert started[1][-1] == expected


def test_restarts_can_be_forbidden(recipe: Path) -> None:
    code, started = launched(recipe, [HANG], max_restarts=0)
    assert (code, len(started)) == (4, 1)
    with pytest.raises(InputError, match="must be >= 0"):
        launched(recipe, [HANG], max_restarts=-1)


@pytest.mark.parametrize("end", [None, RecordedEnd(ExitCode.HANG, True, 1.0)])
def test_nothing_is_started_again_after_a_signal(end: RecordedEnd | None) -> None:
    assert judge(15, end, stopped=False).again
    assert not judge(15, end, stopped=True).again


def test_three_signals_reach_the_launcher_as_one(recipe: Path) -> None:
    """Paddle's launcher takes a second one for impatience, and leaves the processes ten seconds only."""
    folder = recipe.parent
    (folder / "ends").write_text(json.dumps([["wait", None]]), encoding="utf8")
    stand_in = (folder / "stand_in.py").read_text(encoding="utf8").replace(
        "lambda *_: sys.exit(15)", "lambda *_: ((folder / 'signals').open('a').write('x'), time.sleep(2), sys.exit(15))"
    )  # fmt: skip
    (folder / "stand_in.py").write_text(stand_in, encoding="utf8")
    code = (
        "import sys; from paddle_stable.launching import launch\n"
        f"sys.exit(launch(['t.py', '-c', {str(recipe)!r}], max_restarts=3, "
        f"launcher=[sys.executable, {str(folder / 'stand_in.py')!r}, {str(folder)!r}]))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, start_new_session=True)
    while not (folder / "ready").exists() and process.poll() is None:
        time.sleep(0.05)
    for _ in range(3):
        os.killpg(process.pid, signal.SIGTERM)
        time.sleep(0.2)
    assert process.wait(timeout=60) == 1  # no exit.json: nothing is known of a checkpoint
    assert (folder / "signals").read_text() == "x"
    assert len((folder / "started").read_text().splitlines()) == 1


def test_the_run_folder_is_found_as_the_run_finds_it(recipe: Path) -> None:
    start = ["--nproc_per_node=2", "tools/train.py", "-c", str(recipe)]
    assert LaunchedCommand.of(start).folder == recipe.parent / "run"
    assert LaunchedCommand.of([*start, "--smoke"]).folder == Path("elsewhere")
    assert LaunchedCommand.of([*start, "--smoke", "-o", "run.output_dir=x/y"]).folder == Path("x/y")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nproc_per_node", "2"], "no script to launch"),
        (["tools/train.py", "-c", "missing.yaml"], "there is no such file"),
        (["tools/train.py", "-c", "RECIPE", "-o", "run.output_dir=5"], "must be the path of the run folder"),
    ],
)
def test_what_cannot_be_watched_is_refused(recipe: Path, arguments: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        launch([str(recipe) if argument == "RECIPE" else argument for argument in arguments], max_restarts=1)


def test_a_signal_while_it_waits_to_start_again_ends_it_with_75(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def told_meanwhile(folder: Path, stop: StopSignal) -> None:
        stop.received = "SIGTERM"

    monkeypatch.setattr(launching, "_wait_until_free", told_meanwhile)
    code, started = launched(recipe, [KILLED, DONE])
    assert (code, len(started)) == (75, 1)


@pytest.mark.parametrize("code", [1, 2, 3, 75])
def test_a_run_that_could_not_write_how_it_ended_is_not_started_again(code: int) -> None:
    outcome = judge(code, None, stopped=False)
    assert (outcome.code, outcome.again) == (code, False)


def test_a_check_of_a_folder_with_a_run_in_it_is_allowed(recipe: Path) -> None:
    (recipe.parent / "run" / "metrics.jsonl").mkdir(parents=True)
    assert launched(recipe, [DONE], "--check")[0] == 0
