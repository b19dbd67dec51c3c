from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from paddle_stable.tool_start import use_all_cores

ROOT = Path(__file__).parents[1]
CORES = str(len(os.sched_getaffinity(0)))


@pytest.mark.parametrize(
    ("environment", "expected"),
    [({}, CORES), ({"OMP_NUM_THREADS": "3"}, "3"), ({"PADDLE_TRAINERS_NUM": "2"}, None)],
    ids=["alone", "told", "launched"],
)
def test_a_process_alone_uses_all_cores_unless_told_otherwise(
    environment: dict[str, str], expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMP_NUM_THREADS", "PADDLE_TRAINERS_NUM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    use_all_cores()
    assert os.environ.get("OMP_NUM_THREADS") == expected


def test_a_command_starts_quietly_with_denormals_flushed() -> None:
    code = (
        "import logging, sys\n"
        "from paddle_stable.tool_start import start_tool\n"
        "start_tool()\n"
        "import paddle\n"
        "logging.getLogger('paddle_stable').info('a line')\n"
        "print(float(paddle.to_tensor([1e-38]) * 0.1))\n"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code],
        capture_output=True, text=True, env=environment, cwd=ROOT, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "0.0"
    assert done.stderr.strip() == "a line"


def test_ctrl_c_ends_a_command_without_a_traceback() -> None:
    code = (
        "import os, signal\n"
        "from paddle_stable.tool_start import start_tool\n"
        "start_tool()\n"
        "try:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "finally:\n"
        "    print('tidied up')\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "tidied up\n", "")
