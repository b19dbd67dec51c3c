"""The digest of arrays."""

from __future__ import annotations

import numpy as np
import pytest

from paddle_stable.digest import digest


@pytest.mark.parametrize("change", ["name", "type", "shape", "one bit", "negative zero"])
def test_the_digest_tells_any_difference(change: str) -> None:
    arrays = {"a": np.zeros((2, 3), np.float32), "b": np.array(1, np.int64)}
    same = {"b": np.array(1, np.int64), "a": np.zeros((3, 2), np.float32).T.copy(order="F")}
    assert digest(same) == digest(arrays)
    other = {name: array.copy() for name, array in arrays.items()}
    match change:
        case "name":
            other["c"] = other.pop("b")
        case "type":
            other["a"] = other["a"].view(np.int32)
        case "shape":
            other["a"] = other["a"].reshape(3, 2)
        case "one bit":
            other["a"].view(np.int32)[0, 0] ^= 1
        case "negative zero":
            other["a"][1, 2] = -0.0
    assert digest(other) != digest(arrays)
