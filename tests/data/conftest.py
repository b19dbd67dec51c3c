"""What the tests of the loader and of its worker processes share."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from typing import Any

import pytest

from .loader_sample import STEPS, first, loader_of


@pytest.fixture(scope="module")
def uninterrupted() -> list[tuple[Any, ...]]:
    """Two epochs and a bit, prepared in the process."""
    return first(loader_of().steps(), 2 * STEPS + 3)


@pytest.fixture(autouse=True)
def _no_process_is_left() -> Iterator[None]:
    yield
    assert multiprocessing.active_children() == []
