"""Starting the processes of a run, killing them at a moment, and what became of them."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from benchmarks.campaign.child import Assignment, Board, live

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 240.0
"""Seconds after which a process counts as hung."""


@final
@dataclass(frozen=True)
class Ended:
    """How the processes of an assignment ended."""

    killed: bool
    codes: tuple[int, ...]
    """Exit codes by rank, minus the signal's number where one ended it."""
    phase: str = ""
    """Where the killed process was."""
    hung: bool = False


@final
class Processes:
    """The forks, one a rank, that work at an assignment."""

    def __init__(self, assignment: Assignment, *, ranks: int, victim: int = 0) -> None:
        """Start them. Only the victim meets the assignment's moment."""
        self._victim = victim
        self._boards = [Board() for _ in range(ranks)]
        self._news, news = os.pipe()
        endpoints = [f"127.0.0.1:{port}" for port in _free_ports(ranks)] if ranks > 1 else []
        self.pids: list[int] = []
        sys.stdout.flush()
        for rank in range(ranks):
            own = replace(
                assignment,
                moment=assignment.moment if rank == victim else None,
                environment=_environment(rank, endpoints),
            )
            pid = os.fork()
            if pid == 0:
                live(own, self._boards[rank], news)
            self.pids.append(pid)
        os.close(news)

    def wait_for_news(self, seconds: float = PATIENCE) -> bool | None:
        """True at the moment; None when all have ended before it; False when the time is over."""
        readable = select.select([self._news], [], [], seconds)[0]
        return (bool(os.read(self._news, 1)) or None) if readable else False

    def kill(self, *, all_at_once: bool) -> str:
        """Kill the victim and then the others, which would wait for it; says where the victim was."""
        os.kill(self.pids[self._victim], signal.SIGKILL)
        phase = self._boards[self._victim].phase
        if not all_at_once:
            time.sleep(0.2)  # the others meet its absence
        for pid in self.pids:
            os.kill(pid, signal.SIGKILL)
        return phase

    def wait(self) -> tuple[int, ...]:
        """Exit codes."""
        return tuple(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in self.pids)

    def close(self) -> None:
        """Forget the pipe."""
        os.close(self._news)


def work(
    assignment: Assignment, *, ranks: int, victim: int = 0, after: float | None = None, delay: float = 0.0,
    all_at_once: bool = True,
) -> Ended:  # fmt: skip
    """Let processes work at an assignment until they end or are killed.

    Args:
        assignment: what to do, and the moment to be killed at.
        ranks: number of processes.
        victim: rank that is killed first.
        after: kill at this time after the start, in place of a moment.
        delay: seconds between the moment and the kill.
        all_at_once: kill all ranks, and not one before the others.
    """
    processes = Processes(assignment, ranks=ranks, victim=victim)
    try:
        heard = processes.wait_for_news(PATIENCE if after is None else after)
        hung = False
        if heard is True:
            time.sleep(delay)
        elif heard is False and after is None:
            hung = True
        phase = "" if heard is None else processes.kill(all_at_once=all_at_once)
        codes = processes.wait()
        # Any of them: the victim may have come to its end right before, and the kill has met another one only.
        killed = heard is not None and -signal.SIGKILL in codes
        return Ended(killed, codes, phase, hung)
    finally:
        processes.close()


def plain_run(recipe: str, values: dict[str, Any], folder: Path, ranks: int) -> None:
    """The uninterrupted run, as a user starts it.

    Raises:
        RuntimeError: when it fails.
    """
    command = [sys.executable]
    if ranks > 1:
        command += [
            "-m",
            "paddle.distributed.launch",
            "--nproc_per_node",
            str(ranks),
            "--log_dir",
            str(folder / "launch"),
        ]
    command += [str(ROOT / "tools" / "train.py"), "-c", recipe, "--smoke"]
    for key, value in values.items():
        command += ["-o", f"{key}={json.dumps(value, ensure_ascii=False)}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"the uninterrupted run of {recipe} failed:\n{done.stdout}\n{done.stderr}")


def _environment(rank: int, endpoints: list[str]) -> dict[str, str]:
    """What Paddle's launcher tells a process."""
    if not endpoints:
        return {}
    size = str(len(endpoints))
    return {
        "PADDLE_TRAINER_ID": str(rank),
        "PADDLE_TRAINERS_NUM": size,
        "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
        "PADDLE_CURRENT_ENDPOINT": endpoints[rank],
        "PADDLE_MASTER": endpoints[0],
        "PADDLE_RANK_IN_NODE": str(rank),
        "PADDLE_LOCAL_RANK": str(rank),
        "PADDLE_LOCAL_SIZE": size,
        "PADDLE_GLOBAL_RANK": str(rank),
        "PADDLE_GLOBAL_SIZE": size,
        "PADDLE_NNODES": "1",
        "PADDLE_DISTRI_BACKEND": "gloo",
    }


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
