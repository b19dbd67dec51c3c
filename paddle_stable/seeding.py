"""Randomness as a function of where a run is, never of who computes it or of what was drawn before.

Nothing random is state: a resumed run, another number of loader workers or a repeated step draws the same numbers,
because every stream starts from its purpose, the run's seed and two counters. Philox (Salmon et al., "Parallel random
numbers: as easy as 1, 2, 3", SC 2011) takes exactly these as key and counter, so that two streams never overlap.
"""

from __future__ import annotations

from enum import IntEnum
from typing import final

import numpy as np
import paddle

_WORD = 1 << 64


@final
class _Purpose(IntEnum):
    """First half of the Philox key: streams for different purposes are independent even at equal counters."""

    BUILD = 1
    STEP = 2
    EPOCH = 3
    SAMPLE = 4


def seed_build(seed: int) -> None:
    """Seed Paddle's generators before a model is built: its initial weights become a function of `seed` only.

    Raises:
        ValueError: when `seed` is not in [0, 2^64).
    """
    paddle.seed(_first_word(_Purpose.BUILD, seed, 0, 0))


def seed_step(seed: int, rank: int, step: int) -> None:
    """Seed Paddle's generators for one attempted step: dropout becomes a function of (seed, rank, step).

    The global generators of Python and NumPy are left alone: nothing here draws from them.

    Raises:
        ValueError: when a number is not in [0, 2^64).
    """
    paddle.seed(_first_word(_Purpose.STEP, seed, rank, step))


def epoch_generator(seed: int, epoch: int) -> np.random.Generator:
    """A fresh generator for the order of one epoch.

    Raises:
        ValueError: when a number is not in [0, 2^64).
    """
    return np.random.Generator(_stream(_Purpose.EPOCH, seed, epoch, 0))


def sample_generator(seed: int, epoch: int, index: int) -> np.random.Generator:
    """A fresh generator for everything random in one sample of one epoch (about 25 µs).

    Args:
        seed: the run's seed.
        epoch: the pass over the data, from 0.
        index: the sample's position in its dataset.

    Raises:
        ValueError: when a number is not in [0, 2^64).
    """
    return np.random.Generator(_stream(_Purpose.SAMPLE, seed, epoch, index))


def _stream(purpose: _Purpose, seed: int, first: int, second: int) -> np.random.Philox:
    """The bits of one stream: 2^128 blocks before it would run into a neighbour."""
    for name, value in (("seed", seed), ("first counter", first), ("second counter", second)):
        if not 0 <= value < _WORD:
            raise ValueError(f"random stream {purpose.name.lower()}: {name} must be in [0, 2^64), got {value}")
    return np.random.Philox(key=purpose * _WORD + seed, counter=(second * _WORD + first) * _WORD * _WORD)


def _first_word(purpose: _Purpose, seed: int, first: int, second: int) -> int:
    return int(_stream(purpose, seed, first, second).random_raw())
