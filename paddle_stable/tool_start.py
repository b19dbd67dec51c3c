"""What every command does first: Ctrl-C, threads, quiet libraries, denormals, memory, log lines on the terminal."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import signal
import sys
import warnings
from types import FrameType
from typing import NoReturn

_NOISE = (
    "No ccache found",  # paddle, on import
    "The value of the smallest subnormal",  # numpy, because denormals are flushed on purpose
    "Setuptools is replacing distutils",  # paddlenlp, on import
    "pkg_resources is deprecated",  # jieba, which paddlenlp imports
    "When training, we now always track global mean and variance",  # paddle, at every BatchNorm of every step
)
"""Beginnings of warnings that say nothing to the person who trains."""


def start_tool() -> None:
    """Call once at the beginning of a command, after its arguments are parsed and before Paddle is imported."""
    signal.signal(signal.SIGINT, _leave)
    for message in _NOISE:
        warnings.filterwarnings("ignore", message=message)
    use_all_cores()
    _import_paddle()
    from paddle_stable.denormals import flush_denormals
    from paddle_stable.freed_memory import keep_freed_memory

    # After the import of Paddle, which brings numpy, and before the first tensor.
    flush_denormals()
    keep_freed_memory()
    log = logging.getLogger("paddle_stable")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False  # paddlenlp puts a handler of its own on the root logger


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    """Ctrl-C ends a command without a traceback, as the shell expects it; temporary files are removed on the way."""
    sys.exit(128 + number)


def use_all_cores() -> None:
    """Let a process that trains alone compute with all the cores it may use, unless OMP_NUM_THREADS says otherwise.

    Paddle would take one. Processes of a launcher share the cores and keep Paddle's choice. Results are repeatable
    at the same number of threads, which every checkpoint records.
    """
    alone = int(os.environ.get("PADDLE_TRAINERS_NUM", "1")) < 2
    if alone and "OMP_NUM_THREADS" not in os.environ:
        os.environ["OMP_NUM_THREADS"] = str(len(os.sched_getaffinity(0)))


def _import_paddle() -> None:
    """Import Paddle without the two lines by which it warns of more than one thread."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        import paddle  # noqa: F401
    for line in said.getvalue().splitlines():
        if "OMP_NUM_THREADS" not in line:
            print(line, file=sys.stderr)
