"""The default spike detector keeps its bounds in simulation; the full table is printed by benchmarks/detectors.py."""

from __future__ import annotations

import pytest

from benchmarks.detectors import RULES, Figures, simulate

SEEDS = 4


@pytest.fixture(scope="module")
def ours() -> dict[float, Figures]:
    return {sigma: simulate(RULES["ours"], sigma, SEEDS) for sigma in (0.1, 0.3, 0.6)}


@pytest.mark.parametrize(("sigma", "most"), [(0.1, 1.0), (0.3, 1.0), (0.6, 2.0)])
def test_false_alarms_are_rare(ours: dict[float, Figures], sigma: float, most: float) -> None:
    assert ours[sigma].false_alarms <= most


@pytest.mark.parametrize("sigma", [0.1, 0.3])
def test_every_tenfold_spike_is_found(ours: dict[float, Figures], sigma: float) -> None:
    assert ours[sigma].recall == 1.0


@pytest.mark.parametrize("sigma", [0.1, 0.3, 0.6])
def test_a_burst_is_found_a_nan_is_forgotten_and_a_new_level_accepted(ours: dict[float, Figures], sigma: float) -> None:
    assert ours[sigma].burst >= 0.99
    assert ours[sigma].after_nan == 0
    assert ours[sigma].after_shift <= 60


def test_negative_control_the_other_rules_fail_where_they_are_known_to() -> None:
    """So that the simulation can tell a good rule from a bad one."""
    skipping = simulate(RULES["mean + 6 sigma of 128 (OLMo-core)"], 0.3, seeds=1, steps=2000)
    assert skipping.after_nan > 100
    assert skipping.burst < 0.9
    short = simulate(RULES["3 x mean of 10 (Lightning)"], 0.1, seeds=1, steps=2000)
    assert short.after_shift > 400
