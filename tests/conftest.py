"""What every test may rely on: one thread, denormals flushed as in training, and the optional folder of real data."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def pytest_configure() -> None:
    """Settle what has to be settled before numpy or Paddle is imported; test modules are imported later."""
    # Sums depend on the number of threads: bit-for-bit comparisons need the same one in every process of a test.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import numpy  # noqa: F401 - has to be there before denormals are flushed

    from paddle_stable.denormals import flush_denormals

    # As in the tools: the same arithmetic in a test as in the processes that it starts, and half the time.
    flush_denormals()


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Folder of public data sets that are too large or not free enough to ship: ChnSentiCorp, ETT, ICDAR-2015."""
    name = os.environ.get("PADDLE_STABLE_DATA", "")
    if not name:
        pytest.skip("PADDLE_STABLE_DATA is not set: it names the folder that holds the real data sets")
    folder = Path(name)
    # A wrong path must not pass for "no data": the tests would silently prove nothing.
    assert folder.is_dir(), f"PADDLE_STABLE_DATA: {folder} is not a folder"
    return folder
