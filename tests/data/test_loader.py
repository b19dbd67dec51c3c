"""Batches from any position on, the same whoever prepares them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import closing
from itertools import islice
from typing import Any

import numpy as np
import pytest

from paddle_stable.data.dataset import Array, Batch
from paddle_stable.data.loader import Loader, Position, Window, evaluation_batches, in_sample_order
from paddle_stable.data.windows import WindowPlan
from paddle_stable.distributed import World
from paddle_stable.errors import InputError

from .loader_sample import COUNT, SEED, STEPS, Ragged, bits, first, loader_of

WORKERS = [0, 1, 2, 3]


def test_an_epoch_follows_the_plan(uninterrupted: list[tuple[Any, ...]]) -> None:
    plan = WindowPlan(Ragged().lengths(), COUNT, 3, 2, 1, SEED)
    assert [window[2] for window in uninterrupted[: 2 * STEPS]] == [
        tuple(window.tolist()) for epoch in (0, 1) for window in plan.epoch_windows(epoch)
    ]
    assert [window[:2] for window in uninterrupted[STEPS - 1 : STEPS + 1]] == [(0, STEPS - 1), (1, 0)]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("done", range(2 * STEPS + 1))
def test_a_new_loader_goes_on_at_the_very_next_batch(
    done: int, workers: int, uninterrupted: list[tuple[Any, ...]]
) -> None:
    interrupted = loader_of(workers=workers)
    with closing(interrupted.steps()) as windows:
        assert first(windows, done) == uninterrupted[:done]
        saved = json.dumps(interrupted.position.state())
    resumed = loader_of(workers=workers)
    resumed.skip_to(Position.from_state(json.loads(saved)))
    assert first(resumed.steps(), 2) == uninterrupted[done : done + 2]


@pytest.mark.parametrize("workers", WORKERS)
def test_the_number_of_workers_does_not_change_a_bit(workers: int, uninterrupted: list[tuple[Any, ...]]) -> None:
    assert first(loader_of(workers=workers).steps(), len(uninterrupted)) == uninterrupted


@pytest.mark.parametrize("workers", [0, 2])
def test_the_position_is_that_of_the_next_window(workers: int) -> None:
    loader = loader_of(workers=workers)
    assert loader.position == Position(0, 0)
    for done, window in enumerate(islice(loader.steps(), 2 * STEPS), start=1):
        assert (window.epoch, window.index) == divmod(done - 1, STEPS)
        assert loader.position == Position(*divmod(done, STEPS))


def test_the_end_of_an_epoch_is_the_beginning_of_the_next(uninterrupted: list[tuple[Any, ...]]) -> None:
    loader = loader_of()
    loader.skip_to(Position(0, STEPS))
    assert loader.position == Position(1, 0)
    assert first(loader.steps(), 1) == uninterrupted[STEPS : STEPS + 1]


@pytest.mark.parametrize("workers", [0, 2])
def test_windows_can_be_left_out_in_the_middle(workers: int, uninterrupted: list[tuple[Any, ...]]) -> None:
    loader = loader_of(workers=workers)
    windows = loader.steps()
    assert first(windows, 2) == uninterrupted[:2]
    loader.skip_to(Position(1, 1))
    assert first(windows, 3) == uninterrupted[STEPS + 1 : STEPS + 4]
    loader.skip_to(Position(0, 1))
    assert first(windows, 2) == uninterrupted[1:3]


@pytest.mark.parametrize("size", [2, 3])
def test_the_processes_share_every_window(size: int, uninterrupted: list[tuple[Any, ...]]) -> None:
    ranks = [islice(loader_of(rank=rank, size=size, accumulate=1).steps(), STEPS + 1) for rank in range(size)]
    for number, windows in enumerate(zip(*ranks, strict=True)):
        assert {window.samples for window in windows} == {uninterrupted[number][2]}
        parts = [part for window in windows for part in window.parts if part.weight]
        assert sorted(index for part in parts for index in part.indices) == sorted(windows[0].samples)
        assert sum(part.weight for part in parts) == pytest.approx(1.0, abs=1e-12)
        assert len({len(window.parts) for window in windows}) == 1


def noise_by_sample(windows: Iterable[Window]) -> dict[int, bytes]:
    found = {}
    for window in windows:
        for part in window.parts:
            for index, noise in zip(part.indices, part["noise"].numpy(), strict=True):
                found[index] = noise.tobytes()
    return found


def test_what_is_random_in_a_sample_depends_on_the_sample_and_the_epoch_only() -> None:
    alone = loader_of()
    windows = alone.steps()
    noise = noise_by_sample(islice(windows, STEPS))
    assert len(set(noise.values())) == COUNT
    assert noise_by_sample(islice(loader_of(accumulate=6).steps(), STEPS)) == noise
    later = noise_by_sample(islice(windows, STEPS))
    assert all(later[index] != noise[index] for index in range(COUNT))


@pytest.mark.parametrize("position", [Position(0, STEPS + 1), Position(-1, 0), Position(0, -1)])
def test_a_position_of_other_data_is_refused(position: Position) -> None:
    with pytest.raises(InputError, match=r"window 0 to 5 \(29 samples, 6 a step\)"):
        loader_of().skip_to(position)


@pytest.mark.parametrize("saved", [{}, {"epoch": 1}, {"epoch": 1, "window": 1.0}, {"epoch": True, "window": 0}])
def test_a_saved_position_of_another_shape_is_refused(saved: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="a loader position is an epoch and a window"):
        Position.from_state(saved)


def test_a_plan_for_other_data_or_other_processes_is_refused() -> None:
    with pytest.raises(ValueError, match="the plan is for 28 samples, the dataset has 29"):
        Loader(Ragged(), WindowPlan(None, 28, 6, 1, 1, SEED), world=World.single(), seed=SEED)
    with pytest.raises(ValueError, match="the plan is for 2 processes, there are 1"):
        Loader(Ragged(), WindowPlan(None, 29, 3, 1, 2, SEED), world=World.single(), seed=SEED)


@pytest.mark.parametrize("size", [1, 2, 3, 10])
@pytest.mark.parametrize("batch_size", [1, 4, 29, 64])
def test_evaluation_batches_are_the_same_for_any_number_of_processes(batch_size: int, size: int) -> None:
    alone = [bits(batch) for batch in evaluation_batches(Ragged(), batch_size, World.single())]
    ranks = [[bits(b) for b in evaluation_batches(Ragged(), batch_size, World(rank, size))] for rank in range(size)]
    assert [ranks[number % size][number // size] for number in range(len(alone))] == alone
    assert sum(len(batches) for batches in ranks) == len(alone)
    assert sorted(index for batch in alone for index in batch[0]) == list(range(COUNT))
    assert {len(batch[0]) for batch in alone[:-1]} <= {batch_size}


def test_evaluation_batches_hold_samples_of_similar_length() -> None:
    lengths = Ragged().lengths()
    order = [index for batch in evaluation_batches(Ragged(), 4, World.single()) for index in batch.indices]
    assert np.all(np.diff(lengths[order]) >= 0)


def outputs_of(batch: Batch) -> tuple[Sequence[int], dict[str, Array]]:
    outputs = {name: batch[name].numpy() for name in ("noise", "label", "flag")}
    return batch.indices, {**outputs, "text": np.array([f"row {index}" for index in batch.indices])[:, None]}


@pytest.mark.parametrize("batch_size", [1, 4, 64])
def test_outputs_come_back_in_the_order_of_the_samples(batch_size: int) -> None:
    world = World.single()
    mine = [outputs_of(batch) for batch in evaluation_batches(Ragged(), batch_size, world)]
    outputs = in_sample_order(mine, COUNT, world)
    assert outputs["text"].ravel().tolist() == [f"row {index}" for index in range(COUNT)]
    assert outputs["label"].tolist() == list(range(COUNT))
    assert outputs["flag"].tolist() == [index % 2 == 0 for index in range(COUNT)]
    assert (outputs["noise"].shape, outputs["noise"].dtype) == ((COUNT, 2), np.dtype(np.float64))


def test_a_split_without_samples_has_no_outputs() -> None:
    assert in_sample_order([], 0, World.single()) == {}


@pytest.mark.parametrize(
    ("mine", "message"),
    [
        ([((0, 1), {"a": np.zeros(2)})], "outputs for each of 3 samples once"),
        ([((0, 1), {"a": np.zeros(2)}), ((1,), {"a": np.zeros(1)})], "outputs for each of 3 samples once"),
        ([((0, 1, 2), {"a": np.zeros((1, 3))})], r"output 'a': expected one row for each of 3 samples, got \(1, 3\)"),
        ([((0, 1), {"a": np.zeros((2, 4))}), ((2,), {"a": np.zeros((1, 5))})], r"float64\[4\] and float64\[5\]"),
        ([((0, 1), {"a": np.zeros(2)}), ((2,), {"a": np.zeros(1, np.float32)})], r"float64\[\] and float32\[\]"),
        ([((0, 1, 2), {"a": np.array([None] * 3)})], "Python objects cannot be gathered"),
    ],
    ids=["missing", "twice", "not rows", "shape", "type", "objects"],
)
def test_outputs_that_do_not_fit_are_refused(mine: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        in_sample_order(mine, 3, World.single())


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_are_left_out_from_the_next_window_on(workers: int) -> None:
    loader = loader_of(workers=workers)
    with closing(loader.steps()) as windows:
        first_window = next(windows)
        second = loader_of().steps()
        next(second)
        expected = next(second).samples
        loader.leave_out(frozenset(expected[:2]))
        following = next(windows)
        seen = [*first_window.samples, *following.samples]
        seen += [index for _ in range(STEPS - 2) for index in next(windows).samples]
        assert loader.position == Position(1, 0)
    assert following.samples == expected[2:]
    assert sorted(seen) == sorted(set(range(COUNT)) - set(expected[:2]))


def test_a_window_of_which_all_samples_are_left_out_is_empty() -> None:
    loader = loader_of()
    samples = next(loader_of().steps()).samples
    loader.leave_out(frozenset(samples))
    with closing(loader.steps()) as windows:
        window = next(windows)
        assert (window.samples, window.parts, loader.position) == ((), (), Position(0, 1))
        assert len(next(windows).samples) == 6


@pytest.mark.parametrize("size", [1, 2])
def test_a_window_without_some_samples_is_dealt_anew(size: int) -> None:
    kept = []
    for rank in range(size):
        loader = loader_of(rank=rank, size=size)
        window = next(loader.steps())
        position = loader.position
        again = loader.without(window, window.samples[1:3])
        assert again.samples == (window.samples[0], *window.samples[3:])
        assert loader.position == position
        kept += [(index, batch.weight / batch.size) for batch in again.parts for index in batch.indices]
        noise = noise_by_sample([window])
        assert all(noise.get(index, row) == row for index, row in noise_by_sample([again]).items())
    assert sorted(index for index, _ in kept) == sorted(again.samples)
    assert [share for _, share in kept] == pytest.approx([1 / len(again.samples)] * len(again.samples))
