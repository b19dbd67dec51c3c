"""Every case in a process of its own: the watchdog ends the process that it watches."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from paddle_stable.errors import ExitCode
from paddle_stable.run_folder import write_exit

ROOT = Path(__file__).parents[1]

START = """
    import ctypes, os, sys, time
    from pathlib import Path
    from paddle_stable import watchdog
    from paddle_stable.watchdog import Heartbeat, Watchdog
    folder, heartbeat = Path(sys.argv[1]), Heartbeat()
    watchdog._TICK_SECONDS, watchdog.LINGER_SECONDS = 0.1, 0.0
    def stand_still():
        time.sleep(300)
"""


def run(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run some code with a heartbeat in a new process."""
    program = textwrap.dedent(START) + textwrap.dedent(code)
    return subprocess.run(
        [sys.executable, "-c", program, str(folder)], capture_output=True, text=True, cwd=ROOT, check=False, timeout=120
    )


def record(folder: Path) -> dict[str, object]:
    read: dict[str, object] = json.loads((folder / "exit.json").read_text(encoding="utf8"))
    return read


def test_a_process_that_stands_still_writes_its_stacks_and_leaves_with_4(tmp_path: Path) -> None:
    folder = tmp_path / "not made yet"
    done = run(
        folder,
        """
        with Watchdog(heartbeat, folder, 3, timeout=1.0):
            heartbeat.begin_step(17)
            stand_still()
        """,
    )
    assert done.returncode == 4, done.stderr
    stacks = (folder / "hang-rank-3.txt").read_text(encoding="utf8")
    assert "in stand_still" in stacks
    assert "in _watch" in stacks  # all threads, not only the one that stands
    end = record(folder)
    assert (end["code"], end["name"], end["step"], end["retry"]) == (4, "hang", 17, True)
    assert "run.hang_timeout" in done.stderr


def test_a_long_evaluation_is_no_hang(tmp_path: Path) -> None:
    """Twice the timeout without a step, but with a sign of life from every batch."""
    done = run(
        tmp_path,
        """
        with Watchdog(heartbeat, folder, 0, timeout=2.0):
            for _ in range(45):
                heartbeat.beat()
                time.sleep(0.1)
        """,
    )
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []


def test_without_a_timeout_nobody_is_ended(tmp_path: Path) -> None:
    assert run(tmp_path, "with Watchdog(heartbeat, folder, 0, timeout=None): time.sleep(1)").returncode == 0


def test_native_code_that_holds_the_interpreter_is_ended_too(tmp_path: Path) -> None:
    """No Python thread can act then: the stacks are on stderr, and the code is 1."""
    done = run(
        tmp_path,
        """
        watchdog._LAST_RESORT_SECONDS = 0.5
        with Watchdog(heartbeat, folder, 0, timeout=2.0):
            time.sleep(0.5)
            ctypes.PyDLL(None).sleep(300)
        """,
    )
    assert done.returncode == 1, done.stderr
    assert "most recent call first" in done.stderr
    assert "<module>" in done.stderr


@pytest.mark.parametrize("code", [ExitCode.ERROR, ExitCode.INPUT, ExitCode.HANG])
def test_a_process_that_waits_for_one_that_failed_leaves_with_its_code(tmp_path: Path, code: ExitCode) -> None:
    done = run(
        tmp_path,
        f"""
        with Watchdog(heartbeat, folder, 1, timeout=200.0):
            other = folder / "exit.json"
            other.write_text('{{"code": {int(code)}, "reason": "what happened there", "process": 1}}')
            stand_still()
        """,
    )
    assert done.returncode == code, done.stderr
    assert (tmp_path / "hang-rank-1.txt").exists() == (code is ExitCode.HANG)
    assert code is ExitCode.HANG or "what happened there" in done.stderr
    assert record(tmp_path)["reason"] == "what happened there"


def test_ends_that_ask_for_no_haste_are_left_alone(tmp_path: Path) -> None:
    """What an earlier run has left, what this process wrote itself, and how a run ends that all have agreed on."""
    write_exit(tmp_path, ExitCode.ERROR, "an earlier run", step=1)
    done = run(
        tmp_path,
        """
        from paddle_stable.errors import ExitCode
        from paddle_stable.run_folder import write_exit
        with Watchdog(heartbeat, folder, 1, timeout=200.0):
            time.sleep(1)
            (folder / "exit.json").unlink()
            write_exit(folder, ExitCode.ERROR, "mine", step=1)
            time.sleep(1)
            (folder / "exit.json").write_text('{"code": 75, "reason": "all agreed", "process": 1}')
            time.sleep(1)
        """,
    )
    assert done.returncode == 0, done.stderr


def test_a_process_of_the_same_number_on_another_machine_is_another_one(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
        import json, os
        with Watchdog(heartbeat, folder, 1, timeout=200.0):
            end = {"code": 2, "reason": "what happened there", "process": f"elsewhere-{os.getpid()}"}
            (folder / "exit.json").write_text(json.dumps(end))
            stand_still()
        """,
    )
    assert done.returncode == 2, done.stderr
