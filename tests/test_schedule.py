from __future__ import annotations

import pytest

from paddle_stable.recipe import ScheduleConfig
from paddle_stable.schedule import Schedule


def rates(total: int, **config: object) -> list[float]:
    schedule = Schedule.of(ScheduleConfig(**config), peak=1.0, total=total)
    return [schedule.lr(i) for i in range(total)]


def test_linear_with_warm_up() -> None:
    assert rates(6, kind="linear", warmup_steps=2) == pytest.approx([0.5, 1.0, 1.0, 0.75, 0.5, 0.25])


def test_cosine_ends_at_the_minimum() -> None:
    schedule = Schedule.of(ScheduleConfig(kind="cosine", min_lr_ratio=0.1), peak=2.0, total=100)
    assert schedule.lr(0) == 2.0
    assert schedule.lr(50) == pytest.approx(1.1)
    assert schedule.lr(100) == pytest.approx(0.2)
    assert schedule.lr(1000) == pytest.approx(0.2)


def test_constant_after_warm_up() -> None:
    assert rates(5, kind="constant", warmup_ratio=0.4) == pytest.approx([0.5, 1.0, 1.0, 1.0, 1.0])


@pytest.mark.parametrize("kind", ["linear", "cosine", "constant"])
@pytest.mark.parametrize("warmup", [0, 1, 7, 10])
def test_every_step_of_a_run_learns_something(kind: str, warmup: int) -> None:
    values = rates(10, kind=kind, warmup_steps=warmup)
    assert all(0.0 < value <= 1.0 for value in values)
    assert max(values) == 1.0
