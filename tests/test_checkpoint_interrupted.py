"""Saves that are killed or fail at any moment, and processes that save at once, lose nothing."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint_sample import hidden, names, parts, store

ROOT = Path(__file__).parents[1]
PROCESS = [sys.executable, "-m", "tests.checkpoint_process"]


def run_process(*arguments: str) -> str:
    command = [*PROCESS, *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What became of saves that were interrupted at every operation, one report a scene."""
    report: dict[str, Any] = json.loads(run_process("interrupt", str(tmp_path_factory.mktemp("interrupted"))))
    return report


@pytest.mark.parametrize("scene", ["kill first", "kill next", "kill again", "fail next"])
def test_a_save_that_is_interrupted_at_any_system_call_loses_nothing(interrupted: dict[str, Any], scene: str) -> None:
    report = interrupted[scene]
    assert report["moments"] > 25
    assert report["problems"] == []
    # it was seen to end both before and after the new checkpoint got its name
    assert report["outcomes"] == (["new", "none"] if scene == "kill first" else ["new", "old"])


def test_kills_at_random_moments_always_leave_a_valid_newest(tmp_path: Path) -> None:
    seen = set()
    rng = random.Random(0)
    for _ in range(4):
        victim = subprocess.Popen([*PROCESS, "save-on", str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=ROOT)
        with victim:
            assert victim.stdout is not None
            for _ in range(rng.randrange(2, 6)):
                victim.stdout.readline()
            time.sleep(rng.random() * 0.03)
            victim.kill()
        path, passed_over = store(tmp_path).newest_valid()
        assert path is not None
        assert passed_over == []
        best = store(tmp_path).best()
        assert best is not None
        assert store(tmp_path).verify(best) == []
        seen.add(path.name)
    assert len(seen) == 4
    store(tmp_path).save(10**6, parts(1))
    assert hidden(tmp_path) == []


def test_two_processes_that_save_into_one_folder_do_not_spoil_it(tmp_path: Path) -> None:
    processes = [subprocess.Popen([*PROCESS, "save-some", seed, str(tmp_path)], cwd=ROOT) for seed in ("1", "2")]
    assert [process.wait(timeout=120) for process in processes] == [0, 0]
    assert store(tmp_path).newest_valid() == (tmp_path / "step-000012", [])
    assert all(store(tmp_path).verify(tmp_path / name) == [] for name in names(tmp_path))
    assert hidden(tmp_path) == []
