"""Whether many arrays are bit for bit the same, in a line of text."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np

from paddle_stable.data.dataset import Array


def digest(arrays: Mapping[str, Array]) -> str:
    """SHA-256 over names, types, shapes and bytes: equal digests mean bit for bit equal arrays, in any order."""
    total = hashlib.sha256()
    for name in sorted(arrays):
        array = np.asarray(arrays[name], order="C")
        total.update(repr((name, array.dtype.name, array.shape)).encode())
        total.update(array.reshape(-1).view(np.uint8).data)
    return total.hexdigest()
