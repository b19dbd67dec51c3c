"""Freed memory is kept for the next array; without being asked for it is not."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from paddle_stable.freed_memory import keep_freed_memory

ROOT = Path(__file__).resolve().parents[1]

# Page faults of twenty rounds of arrays as a sample of an image has them: 14 MB are 3,500 pages.
CODE = """
import resource, sys
import numpy as np
from paddle_stable.freed_memory import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
def sample():
    return [np.ones(size, np.float32) for size in (1_200_000, *[400_000] * 6)]
for _ in range(3):
    sample()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    sample()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 20)
"""


def faults(what: str) -> int:
    done = subprocess.run([sys.executable, "-c", CODE, what], capture_output=True, text=True, check=True, cwd=ROOT)
    return int(done.stdout)


@pytest.mark.skipif(
    sys.platform != "linux" or platform.libc_ver()[0] != "glibc", reason="only glibc's allocator can be told so"
)
def test_kept_memory_is_not_fetched_page_by_page_again() -> None:
    assert faults("keep") < 10
    assert faults("return") > 100  # otherwise there is nothing to gain, and the setting should go


def test_nothing_is_done_where_it_is_not_known_how(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: ("musl", "1.2"))
    assert not keep_freed_memory()
