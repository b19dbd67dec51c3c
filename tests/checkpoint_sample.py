"""A small checkpoint with one of every kind of thing, and ways to look at folders, for the tests of checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from paddle_stable.checkpoint import CheckpointParts, CheckpointStore

ENVIRONMENT = {"device": "cpu", "threads": 1, "world_size": 1}


def parts(seed: int, *, size: int = 30) -> CheckpointParts:
    """A checkpoint's content that differs with the seed."""
    rng = np.random.default_rng(seed)
    weights = rng.standard_normal((40, size)).astype(np.float32)
    return CheckpointParts(
        model={
            "head.weight": weights,
            "norm._mean": np.zeros(0, np.float32),
            "positions": np.array(seed, np.int64),
            "half": weights[:3].astype(ml_dtypes.bfloat16),
            "flags": np.array([True, False]),
        },
        optimizer={"head.weight/moment1": weights * 2, "head.weight/beta1_pow": np.array([0.9], np.float32)},
        state={
            "progress": {"step": seed, "rates": [0.1, 1e-300, -0.0, 2**70], "last": None, "done": False},
            "best": {"metric": "accuracy", "value": seed / 100, "step": seed},
        },
        assets={"vocab.txt": "[PAD]\r\n好\n\n", "recipe.yaml": f"run: {{seed: {seed}}}\n"},
    )


def store(folder: Path, keep_last: int = 2) -> CheckpointStore:
    """A store that does not ask Paddle for the environment."""
    return CheckpointStore(folder, keep_last, environment=ENVIRONMENT)


def names(folder: Path) -> list[str]:
    """Visible folders."""
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def hidden(folder: Path) -> list[str]:
    """What a finished save must not leave behind."""
    return sorted(path.name for path in folder.iterdir() if path.name.startswith(".") and path.name != ".lock")


def flip(path: Path, offset: int, bit: int = 0) -> None:
    """Change one bit of a file."""
    content = bytearray(path.read_bytes())
    content[offset] ^= 1 << bit
    path.write_bytes(content)


def same(left: CheckpointParts, right: CheckpointParts) -> bool:
    """Whether two contents are equal bit for bit."""

    def exact(arrays: Any) -> dict[str, Any]:
        return {name: (a.dtype, a.shape, a.tobytes()) for name, a in arrays.items()}

    return (exact(left.model), exact(left.optimizer), json.dumps(left.state, sort_keys=True), dict(left.assets)) == (
        exact(right.model),
        exact(right.optimizer),
        json.dumps(right.state, sort_keys=True),
        dict(right.assets),
    )
