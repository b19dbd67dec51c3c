"""Denormals: flushed when asked, in every thread started later, never by an import, never where it is not known how."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from paddle_stable.denormals import flush_denormals

ROOT = Path(__file__).resolve().parent.parent

# The setting belongs to the whole process, so each promise is checked in one of its own.
needs_x86_64_glibc = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64" or platform.libc_ver()[0] != "glibc",
    reason="denormals can be flushed on x86-64 Linux with glibc only",
)

NUMPY_PRODUCT = """
import numpy as np
def product():
    return float((np.full(64, 1e-30, np.float32) * np.full(64, 1e-10, np.float32)).max())
def operand():
    return float((np.full(64, 1e-40, np.float32) * np.full(64, 1e10, np.float32)).max())
"""


def run_in_a_new_process(program: str) -> list[str]:
    """Words that the program prints."""
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.split()


@needs_x86_64_glibc
@pytest.mark.parametrize("what", ["product", "operand"])
def test_numpy_flushes_after_the_call_and_not_before(what: str) -> None:
    program = f"""{NUMPY_PRODUCT}
import paddle_stable.denormals
before = {what}()
print(before > 0.0, paddle_stable.denormals.flush_denormals(), {what}())
"""
    assert run_in_a_new_process(program) == ["True", "True", "0.0"]


@needs_x86_64_glibc
def test_a_thread_and_a_fork_started_later_inherit_it() -> None:
    program = f"""{NUMPY_PRODUCT}
import os, threading
from paddle_stable.denormals import flush_denormals
flush_denormals()
found = []
thread = threading.Thread(target=lambda: found.append(product()))
thread.start(); thread.join()
child = os.fork()
if child == 0:
    os._exit(0 if product() == 0.0 else 1)
print(found[0], os.waitpid(child, 0)[1])
"""
    assert run_in_a_new_process(program) == ["0.0", "0"]


@needs_x86_64_glibc
def test_a_second_call_changes_nothing() -> None:
    program = f"""{NUMPY_PRODUCT}
from paddle_stable.denormals import flush_denormals
print(flush_denormals(), flush_denormals(), product())
"""
    assert run_in_a_new_process(program) == ["True", "True", "0.0"]


@needs_x86_64_glibc
@pytest.mark.parametrize(
    ("flush", "expected"), [("flush_denormals()", "0.0"), ("False", "kept")], ids=["flushed", "not flushed"]
)
def test_paddle_flushes_when_called_before_the_first_tensor(flush: str, expected: str) -> None:
    program = f"""
import numpy, paddle
from paddle_stable.denormals import flush_denormals
{flush}
a = paddle.full([32, 32], 1e-30)
b = paddle.full([32, 32], 1e-10)
tiny = paddle.to_tensor(numpy.full([32, 32], 1e-40, numpy.float32))
for result in a * b, paddle.matmul(a, b.T), tiny + tiny, tiny - 3 * tiny:
    value = float(paddle.abs(result).max())
    print("kept" if 0.0 < value < 1.2e-38 else value)
"""
    assert run_in_a_new_process(program) == [expected] * 4


@pytest.mark.parametrize(
    ("module", "name", "value"),
    [
        (sys, "platform", "darwin"),
        (platform, "machine", lambda: "aarch64"),
        (platform, "libc_ver", lambda: ("", "")),
    ],
    ids=["another system", "another processor", "another C library"],
)
def test_nothing_happens_where_it_is_not_known_how(
    monkeypatch: pytest.MonkeyPatch, module: object, name: str, value: object
) -> None:
    monkeypatch.setattr(module, name, value)

    def refuse(*_: object) -> object:
        raise AssertionError("the C library must not be called here")

    monkeypatch.setattr("ctypes.CDLL", refuse)
    assert flush_denormals() is False
