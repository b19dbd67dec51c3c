"""Random numbers are functions of where the run is."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import paddle
import pytest

from paddle_stable.seeding import epoch_generator, sample_generator, seed_build, seed_step


def draw(generator: np.random.Generator) -> tuple[int, ...]:
    return tuple(generator.integers(0, 2**63, size=3).tolist())


def paddle_draw() -> tuple[float, ...]:
    return tuple(paddle.rand([8]).numpy().tolist())


def test_a_sample_draws_the_same_numbers_whatever_was_drawn_before() -> None:
    first = draw(sample_generator(1, 2, 3))
    sample_generator(1, 2, 4).normal(size=100)
    np.random.seed(5)
    assert draw(sample_generator(1, 2, 3)) == first


def test_every_stream_of_numbers_is_another_one() -> None:
    places = [(seed, epoch, index) for seed in range(4) for epoch in range(4) for index in range(4)]
    draws = [draw(sample_generator(*place)) for place in places]
    draws += [draw(epoch_generator(seed, epoch)) for seed in range(4) for epoch in range(4)]
    assert len(set(draws)) == len(places) + 16


def test_neighbouring_samples_do_not_share_a_stretch_of_numbers() -> None:
    here, there = (sample_generator(1, 0, index).integers(0, 2**63, size=4000) for index in (0, 1))
    assert not set(here.tolist()) & set(there.tolist())


def test_large_numbers_do_not_run_into_other_streams() -> None:
    edges = [0, 1, 2**32 - 1, 2**32, 2**63, 2**64 - 1]
    draws = [draw(sample_generator(seed, epoch, index)) for seed in edges for epoch in edges for index in edges]
    assert len(set(draws)) == len(edges) ** 3


@pytest.mark.parametrize("wrong", [-1, 2**64])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_number_that_would_run_into_another_stream_is_refused(wrong: int, place: int) -> None:
    numbers = [1, 1, 1]
    numbers[place] = wrong
    with pytest.raises(ValueError, match=rf"must be in \[0, 2\^64\), got {wrong}"):
        sample_generator(*numbers)


def test_the_numbers_of_version_one_stay() -> None:
    """A run of an older release can only be resumed exactly as long as these stay."""
    assert epoch_generator(1, 2).bit_generator.random_raw(2).tolist() == [1698847724010054570, 15883277800842851901]
    assert sample_generator(1, 2, 3).bit_generator.random_raw(2).tolist() == [13956106734563358825, 5503689825637358871]


@pytest.mark.parametrize("seed_it", [lambda: seed_step(1, 0, 7), lambda: seed_build(1)], ids=["step", "build"])
def test_paddle_draws_the_same_after_seeding_whatever_it_drew_before(seed_it: Callable[[], None]) -> None:
    seed_it()
    first = paddle_draw()
    paddle.rand([100])
    seed_it()
    assert paddle_draw() == first


def test_dropout_differs_between_seeds_ranks_and_steps_and_from_initial_weights() -> None:
    draws = set()
    for seed in range(3):
        seed_build(seed)
        draws.add(paddle_draw())
        for rank in range(3):
            for step in range(3):
                seed_step(seed, rank, step)
                draws.add(paddle_draw())
    assert len(draws) == 3 + 27


def test_seeding_a_step_leaves_the_generators_of_python_and_numpy_alone() -> None:
    random.seed(1)
    np.random.seed(1)
    expected = random.random(), np.random.random()
    random.seed(1)
    np.random.seed(1)
    seed_step(3, 0, 5)
    seed_build(3)
    sample_generator(1, 2, 3).random()
    assert (random.random(), np.random.random()) == expected
