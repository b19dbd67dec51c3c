"""Which samples make a step."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from paddle_stable.data.windows import IndexArray, Part, WindowPlan

# (batch size, accumulate, processes): all with windows of 12 samples
DEALINGS = [(12, 1, 1), (6, 2, 1), (6, 1, 2), (3, 2, 2), (1, 12, 1), (1, 1, 12), (2, 2, 3), (4, 3, 1), (4, 1, 3)]


def plan_of(
    count: int = 100,
    *,
    dealing: tuple[int, int, int] = (3, 2, 2),
    seed: int = 1,
    bucketed: bool = True,
) -> WindowPlan:
    lengths = np.random.default_rng(count).integers(1, 500, size=count) if bucketed else None
    return WindowPlan(lengths, count, *dealing, seed)


def as_lists(windows: list[IndexArray]) -> list[list[int]]:
    return [window.tolist() for window in windows]


def all_parts(plan: WindowPlan, window: IndexArray) -> list[list[Part]]:
    return [plan.deal(window, rank) for rank in range(plan.world_size)]


@pytest.mark.parametrize("bucketed", [True, False])
@pytest.mark.parametrize("count", [1, 11, 12, 13, 24, 100, 12 * 50, 12 * 51 + 5, 12 * 101 + 1])
def test_every_sample_comes_once_in_an_epoch(count: int, bucketed: bool) -> None:
    plan = plan_of(count, bucketed=bucketed)
    for epoch in range(3):
        windows = plan.epoch_windows(epoch)
        assert sorted(np.concatenate(windows).tolist()) == list(range(count))
        assert len(windows) == plan.steps_per_epoch
        assert [len(window) for window in windows[:-1]] == [12] * (len(windows) - 1)
        assert len(windows[-1]) == (count % 12 or 12)


@pytest.mark.parametrize("bucketed", [True, False])
@pytest.mark.parametrize("dealing", DEALINGS)
def test_windows_do_not_depend_on_how_they_are_dealt(dealing: tuple[int, int, int], bucketed: bool) -> None:
    reference = plan_of(200, dealing=DEALINGS[0], bucketed=bucketed)
    plan = plan_of(200, dealing=dealing, bucketed=bucketed)
    for epoch in (0, 1, 7):
        assert as_lists(plan.epoch_windows(epoch)) == as_lists(reference.epoch_windows(epoch))


def test_an_epoch_is_the_same_every_time_it_is_asked_for() -> None:
    plan = plan_of()
    first = as_lists(plan.epoch_windows(3))
    plan.epoch_windows(4)
    np.random.seed(9)
    assert as_lists(plan_of().epoch_windows(3)) == first == as_lists(plan.epoch_windows(3))


@pytest.mark.parametrize("bucketed", [True, False])
def test_the_order_changes_with_the_epoch_and_the_seed(bucketed: bool) -> None:
    orders = {str(as_lists(plan_of(seed=s, bucketed=bucketed).epoch_windows(e))) for s in range(3) for e in range(3)}
    assert len(orders) == 9


@pytest.mark.parametrize("samples", range(1, 13))
@pytest.mark.parametrize("dealing", DEALINGS)
def test_dealing_gives_every_sample_away_once_and_keeps_ranks_in_step(
    dealing: tuple[int, int, int], samples: int
) -> None:
    plan = plan_of(dealing=dealing)
    window = plan.epoch_windows(0)[0][:samples]
    ranks = all_parts(plan, window)
    real = [part for parts in ranks for part in parts if part.weight > 0]
    stand_ins = [part for parts in ranks for part in parts if part.weight == 0]
    assert sorted(index for part in real for index in part.indices) == sorted(window.tolist())
    assert len({len(parts) for parts in ranks}) == 1
    assert 1 <= len(ranks[0]) <= plan.accumulate
    assert all(1 <= len(part.indices) <= plan.batch_size for part in real)
    assert all(len(part.indices) == 1 and part.indices[0] in window for part in stand_ins)
    assert sum(Fraction(len(part.indices), samples) for part in real) == 1
    assert [part.weight for part in real] == [len(part.indices) / samples for part in real]


@pytest.mark.parametrize("dealing", DEALINGS)
def test_a_full_window_has_full_micro_batches_only(dealing: tuple[int, int, int]) -> None:
    plan = plan_of(dealing=dealing)
    for parts in all_parts(plan, plan.epoch_windows(0)[0]):
        assert [len(part.indices) for part in parts] == [plan.batch_size] * plan.accumulate


@pytest.mark.parametrize("samples", range(1, 13))
@pytest.mark.parametrize("dealing", [(6, 1, 2), (3, 2, 2), (2, 2, 3)])
def test_a_short_window_is_shared_evenly(dealing: tuple[int, int, int], samples: int) -> None:
    plan = plan_of(dealing=dealing)
    window = plan.epoch_windows(0)[0][:samples]
    sizes = [sum(len(part.indices) for part in parts if part.weight) for parts in all_parts(plan, window)]
    assert max(sizes) - min(sizes) <= len(plan.deal(window, 0))
    assert samples < plan.world_size or min(sizes) >= 1


def test_two_processes_and_two_accumulated_batches_have_the_same_micro_batches() -> None:
    both, alone = plan_of(dealing=(6, 1, 2)), plan_of(dealing=(6, 2, 1))
    for window in both.epoch_windows(0)[:-1]:
        dealt = sorted(part.indices for parts in all_parts(both, window) for part in parts)
        assert dealt == sorted(part.indices for part in alone.deal(window, 0))


def padded_share(plan: WindowPlan) -> float:
    """Elements computed, padding to each micro-batch's longest included, divided by the elements that are data."""
    assert plan.lengths is not None
    parts = [part for window in plan.epoch_windows(0) for ranks in all_parts(plan, window) for part in ranks]
    computed = sum(len(part.indices) * int(plan.lengths[list(part.indices)].max()) for part in parts if part.weight)
    return computed / int(plan.lengths.sum())


@pytest.mark.parametrize("dealing", [(12, 1, 1), (3, 2, 2), (6, 2, 1)])
@pytest.mark.parametrize("count", [12 * 50, 12 * 51, 12 * 99 + 5])
def test_micro_batches_are_padded_little(count: int, dealing: tuple[int, int, int]) -> None:
    assert padded_share(plan_of(count, dealing=dealing)) < 1.1


def test_micro_batches_computed_at_the_same_time_have_similar_lengths() -> None:
    plan = plan_of(12 * 50, dealing=(1, 6, 2))
    assert plan.lengths is not None
    for window in plan.epoch_windows(0):
        first, second = (
            np.array([plan.lengths[part.indices[0]] for part in plan.deal(window, rank)]) for rank in (0, 1)
        )
        spread = int(plan.lengths[window].max() - plan.lengths[window].min())
        assert abs(int(first.sum() - second.sum())) <= spread


def test_no_process_always_gets_the_longer_micro_batches() -> None:
    plan = WindowPlan(np.arange(1, 7), 6, 1, 3, 2, 1)
    dealt = [[part.indices for part in parts] for parts in all_parts(plan, np.arange(6))]
    assert dealt == [[(0,), (3,), (4,)], [(1,), (2,), (5,)]]


def test_windows_of_similar_length_do_not_come_sorted() -> None:
    plan = plan_of(12 * 50)
    assert plan.lengths is not None
    means = [float(plan.lengths[window].mean()) for window in plan.epoch_windows(0)]
    assert abs(np.corrcoef(np.arange(len(means)), means)[0, 1]) < 0.5


def test_the_short_last_window_does_not_always_hold_the_longest_samples() -> None:
    plan = plan_of(12 * 20 + 4)
    assert plan.lengths is not None
    last = np.concatenate([plan.epoch_windows(epoch)[-1] for epoch in range(50)])
    assert float(plan.lengths[last].mean()) == pytest.approx(float(plan.lengths.mean()), rel=0.15)


def test_an_order_of_version_one_stays() -> None:
    """A run of an older release can only be resumed exactly as long as this stays."""
    plan = WindowPlan(np.array([5, 1, 4, 1, 3, 9, 2, 6, 5, 3, 5]), 11, 2, 1, 2, 1)
    assert as_lists(plan.epoch_windows(0)) == [[9, 2, 0, 5], [3, 1, 6, 4], [7, 10, 8]]


@pytest.mark.parametrize("name", ["count", "batch_size", "accumulate", "world_size"])
def test_a_plan_without_samples_or_processes_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        WindowPlan(None, seed=1, **{**dict.fromkeys(("count", "batch_size", "accumulate", "world_size"), 1), name: 0})


def test_lengths_of_other_samples_are_refused() -> None:
    with pytest.raises(ValueError, match=r"lengths must have the shape \(100,\), got \(99,\)"):
        WindowPlan(np.ones(99, np.int64), 100, 3, 2, 2, 1)


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_rank_outside_the_world_is_refused(rank: int) -> None:
    plan = plan_of()
    with pytest.raises(ValueError, match=r"rank must be in \[0, 2\)"):
        plan.deal(plan.epoch_windows(0)[0], rank)


@pytest.mark.parametrize("samples", [0, 13])
def test_what_is_not_a_window_is_refused(samples: int) -> None:
    with pytest.raises(ValueError, match="a window has 1 to 12 samples"):
        plan_of().deal(np.arange(samples), 0)


def test_samples_that_are_left_out_leave_the_others_where_they_were() -> None:
    plan = plan_of(count=29)
    before = as_lists(plan.epoch_windows(1))
    whole_window = frozenset(before[1])
    after = as_lists(replace(plan, left_out=whole_window | {before[0][2]}).epoch_windows(1))
    assert after[0] == [index for index in before[0] if index != before[0][2]]
    assert after[1] == []
    assert after[2:] == before[2:]
