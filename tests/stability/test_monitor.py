"""Monitor: totals that always add up, statistics that no NaN enters, a state that round-trips exactly."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import numpy as np
import pytest

from paddle_stable.stability.monitor import Monitor, NormQuantiles, Totals
from paddle_stable.stability.step_report import SkipReason, StepReport, Verdict

NAN, INF = math.nan, math.inf
TAGS = {
    "train/loss",
    "train/lr",
    "train/samples_per_second",
    "train/data_seconds",
    "stability/grad_norm",
    "stability/clip_rate",
    "stability/clip_scale",
    "stability/skip_rate",
    "stability/skipped_overflow",
    "stability/skipped_nonfinite",
    "stability/skipped_spike",
    "stability/spikes",
    "stability/dropped_samples",
    "stability/nonfinite_values",
    "stability/loss_scale",
    "stability/rollbacks",
}


def applied(loss: float = 1.0, norm: float = 2.0, scale: float = 1.0, **groups: float) -> Verdict:
    return Verdict(loss, 4, norm, scale, clipped=scale < 1.0, skipped=None, group_norms=groups)


def skipped(reason: SkipReason, loss: float = 1.0, norm: float = NAN) -> Verdict:
    return Verdict(loss, 4, norm, 1.0, clipped=False, skipped=reason, group_norms={"encoder": norm})


def withheld() -> Verdict:
    return Verdict(NAN, 0, NAN, 1.0, clipped=False, skipped=SkipReason.WITHHELD)


def feed(monitor: Monitor, verdicts: Sequence[Verdict], *, lr: float = 0.1) -> Monitor:
    for verdict in verdicts:
        step = monitor.totals.step + 1
        monitor.update(StepReport(step, 0.5, verdict, lr, seconds=0.5, data_seconds=0.25))
    return monitor


@pytest.mark.parametrize("window", [1, 3, 100])
@pytest.mark.parametrize(
    "verdicts",
    [
        [applied(), applied(scale=0.5), skipped(SkipReason.NONFINITE), applied()],
        [skipped(reason) for reason in SkipReason],
        [withheld()] * 5,
        [applied(loss=NAN, norm=INF, scale=NAN)] * 2,
    ],
    ids=["mixed", "every reason", "withheld", "guard off"],
)
def test_applied_skipped_and_undone_add_up_to_the_steps(verdicts: Sequence[Verdict], window: int) -> None:
    monitor = Monitor(window)
    for step, verdict in enumerate(verdicts, start=1):
        feed(monitor, [verdict])
        totals = monitor.totals
        assert totals.applied + totals.skipped + totals.undone == totals.step == step
    totals = monitor.totals
    assert totals.applied == sum(verdict.applied for verdict in verdicts)
    assert totals.clipped == sum(verdict.clipped for verdict in verdicts)
    assert totals.skips == {r.value: sum(v.skipped is r for v in verdicts) for r in SkipReason}


def test_the_scalars_have_the_agreed_tags() -> None:
    scalars = feed(Monitor(10), [applied(scale=0.5)]).scalars()
    assert set(scalars) == TAGS
    assert all(type(value) is float for value in scalars.values())


def test_scalars_are_means_over_the_applied_steps_since_the_last_record() -> None:
    monitor = Monitor(10)
    feed(monitor, [applied(loss=9.0, norm=9.0, scale=0.25)])
    monitor.scalars()
    feed(monitor, [applied(1.0, 2.0), skipped(SkipReason.SPIKE, 50.0, 60.0), applied(2.0, 4.0, 0.5)], lr=0.3)
    scalars = monitor.scalars()
    assert scalars["train/loss"] == 1.5
    assert scalars["stability/grad_norm"] == 3.0
    assert scalars["stability/clip_scale"] == 0.75
    assert scalars["train/lr"] == 0.3
    assert scalars["train/samples_per_second"] == 12 / 1.5
    assert scalars["train/data_seconds"] == 0.25


def test_means_without_a_usable_step_are_missing_and_not_zero() -> None:
    monitor = feed(Monitor(10), [applied()])
    monitor.scalars()
    missing = {"train/loss", "stability/grad_norm", "stability/clip_scale"}
    assert set(feed(monitor, [skipped(SkipReason.NONFINITE)]).scalars()) == TAGS - missing
    assert not set(Monitor(10).scalars()) & {"train/lr", "train/samples_per_second", "stability/loss_scale", *missing}


def test_plotted_rates_are_windowed_and_totals_are_not() -> None:
    monitor = feed(Monitor(4), [applied(scale=0.5)] * 4 + [skipped(SkipReason.OVERFLOW)] * 2 + [applied()] * 3)
    assert monitor.scalars()["stability/clip_rate"] == 0.0
    assert monitor.scalars()["stability/skip_rate"] == 0.25
    assert monitor.totals.clip_rate == 4 / 7
    assert monitor.totals.skip_rate == 2 / 9
    assert monitor.scalars()["stability/skipped_overflow"] == 2.0


def test_rates_before_any_step_are_zero() -> None:
    monitor = Monitor(5)
    assert (monitor.clip_rate, monitor.skip_rate, monitor.totals.clip_rate, monitor.totals.skip_rate) == (0, 0, 0, 0)


def test_the_clip_rate_leaves_skipped_steps_out() -> None:
    monitor = feed(Monitor(10), [applied(scale=0.5), skipped(SkipReason.NONFINITE), applied(), withheld()])
    assert monitor.clip_rate == monitor.totals.clip_rate == 0.5
    assert monitor.skip_rate == monitor.totals.skip_rate == 0.5


@pytest.mark.parametrize("poison", [NAN, INF, -INF])
@pytest.mark.parametrize("position", [0, 2, 5])
@pytest.mark.parametrize("how", ["skipped", "applied without a guard"])
def test_a_nonfinite_value_is_counted_and_enters_no_statistic(poison: float, position: int, how: str) -> None:
    clean = [applied(loss=float(i), norm=float(i + 1), encoder=float(i)) for i in range(5)]
    if how == "skipped":
        bad = skipped(SkipReason.NONFINITE, poison, poison)
    else:
        bad = Verdict(poison, 4, poison, NAN, clipped=False, skipped=None, group_norms={"encoder": poison})
    expected = feed(Monitor(10), clean)
    monitor = feed(Monitor(10), [*clean[:position], bad, *clean[position:]])
    assert monitor.norm_quantiles() == expected.norm_quantiles()
    assert monitor.group_norms()["grad_norm/encoder"].tolist() == expected.group_norms()["grad_norm/encoder"].tolist()
    scalars, without = monitor.scalars(), expected.scalars()
    for tag in "train/loss", "stability/grad_norm", "stability/clip_scale", "stability/clip_rate":
        assert scalars[tag] == without[tag]
    assert scalars["stability/nonfinite_values"] == 2.0
    assert all(math.isfinite(value) for value in scalars.values())


def test_a_poisoned_run_plots_the_same_curve_as_one_that_withholds_those_steps() -> None:
    good = [applied(loss=float(i), norm=float(i + 1), scale=1 / (i + 1)) for i in range(6)]
    poisoned = feed(Monitor(4), [*good[:3], skipped(SkipReason.NONFINITE, NAN, NAN), *good[3:]]).scalars()
    clean = feed(Monitor(4), [*good[:3], withheld(), *good[3:]]).scalars()
    apart = {"stability/skipped_nonfinite", "stability/nonfinite_values", "train/samples_per_second"}
    assert {t: v for t, v in poisoned.items() if t not in apart} == {t: v for t, v in clean.items() if t not in apart}
    assert (clean["stability/nonfinite_values"], poisoned["stability/nonfinite_values"]) == (0.0, 2.0)


def test_norm_quantiles_are_those_of_the_window() -> None:
    monitor = feed(Monitor(100), [applied(norm=1e6)] * 50 + [applied(norm=float(i)) for i in range(101, 201)])
    p5, p50, p95, p99 = np.quantile(np.arange(101.0, 201.0), [0.05, 0.5, 0.95, 0.99])
    assert monitor.norm_quantiles() == NormQuantiles(p5, p50, p95, p99)


def test_there_are_no_quantiles_without_a_finite_norm() -> None:
    assert feed(Monitor(3), [applied(norm=INF), skipped(SkipReason.SPIKE, norm=5.0)]).norm_quantiles() is None


def test_group_norms_come_oldest_first_from_applied_steps_of_the_window() -> None:
    verdicts = [
        applied(head=9.0),
        applied(head=1.0, encoder=2.0),
        skipped(SkipReason.NONFINITE),
        applied(head=3.0, encoder=INF),
    ]
    found = feed(Monitor(3), verdicts).group_norms()
    assert {tag: values.tolist() for tag, values in found.items()} == {
        "grad_norm/head": [1.0, 3.0],
        "grad_norm/encoder": [2.0],
    }


def test_a_rollback_undoes_the_applied_steps_since_the_snapshot_and_their_statistics() -> None:
    monitor = feed(Monitor(10), [applied(norm=1.0), applied(norm=2.0, scale=0.5)])
    snapshot, quantiles = monitor.totals, monitor.norm_quantiles()
    feed(monitor, [applied(norm=1e3, scale=0.1), skipped(SkipReason.SPIKE), applied(norm=1e6, scale=0.1)])
    monitor.rolled_back(snapshot)
    skips = {**Totals().skips, "spike": 1}
    assert monitor.totals == Totals(2, 1, skips=skips, undone=2, rollbacks=1, nonfinite_values=1)
    assert monitor.totals.step == 5
    assert monitor.norm_quantiles() == quantiles
    assert monitor.clip_rate == 0.5
    assert monitor.skip_rate == 0.2
    feed(monitor, [applied()])
    monitor.rolled_back(snapshot)
    assert (monitor.totals.applied, monitor.totals.undone, monitor.totals.step) == (2, 3, 6)
    assert monitor.scalars()["stability/rollbacks"] == 2.0


def test_a_rollback_beyond_the_window_keeps_the_totals_right() -> None:
    monitor = feed(Monitor(2), [applied()])
    snapshot = monitor.totals
    feed(monitor, [applied(scale=0.5)] * 7)
    monitor.rolled_back(snapshot)
    assert (monitor.totals.applied, monitor.totals.clipped, monitor.totals.undone) == (1, 0, 7)
    assert (monitor.clip_rate, monitor.norm_quantiles()) == (0.0, None)


HISTORY = [
    applied(1 / 3, 2 / 3, 1.0, encoder=0.1, head=1e-30),
    applied(0.7, 1e20, 1 / 7, encoder=3e9, head=NAN),
    skipped(SkipReason.OVERFLOW, 1.0, INF),
    withheld(),
    applied(NAN, NAN, NAN),
    skipped(SkipReason.SPIKE, 8.0, 9.0),
    applied(0.123456789, 0.987654321, 0.5, encoder=1.0),
]


@pytest.mark.parametrize("cut", range(len(HISTORY) + 1))
@pytest.mark.parametrize("window", [2, 5, 50])
@pytest.mark.parametrize("recorded", [False, True], ids=["between records", "at a record"])
def test_a_restored_monitor_goes_on_exactly_as_the_uninterrupted_one(cut: int, window: int, recorded: bool) -> None:
    whole = feed(Monitor(window), HISTORY[:cut])
    if recorded:
        whole.scalars()
    state = json.loads(json.dumps(whole.state(), allow_nan=False))
    restored = Monitor.from_state(window, state)
    assert restored.state() == whole.state()
    feed(whole, HISTORY[cut:])
    feed(restored, HISTORY[cut:])
    assert restored.totals == whole.totals
    assert restored.norm_quantiles() == whole.norm_quantiles()
    assert restored.state() == whole.state()
    speeds = {"train/samples_per_second", "train/data_seconds"}
    after = restored.scalars()
    assert {t: v for t, v in whole.scalars().items() if t not in speeds} == {
        t: v for t, v in after.items() if t not in speeds
    }


def test_a_state_does_not_depend_on_time_nor_change_afterwards() -> None:
    quick, slow = Monitor(5), Monitor(5)
    quick.update(StepReport(1, 0.0, applied(encoder=1.0), 0.1, seconds=0.1, data_seconds=0.0))
    slow.update(StepReport(1, 0.0, applied(encoder=1.0), 0.1, seconds=9.0, data_seconds=5.0))
    assert quick.state() == slow.state()
    state = quick.state()
    before = json.dumps(state)
    feed(quick, HISTORY)
    assert json.dumps(state) == before


def test_a_shorter_window_on_resume_keeps_the_newest_steps() -> None:
    state = feed(Monitor(10), [applied(norm=float(i)) for i in range(10)]).state()
    restored = Monitor.from_state(1, state)
    assert restored.norm_quantiles() == NormQuantiles(9.0, 9.0, 9.0, 9.0)


@pytest.mark.parametrize("part", ["totals", "window", "loss", "norm", "clip_scale", "lr", "loss_scale"])
def test_a_state_with_a_missing_or_an_unknown_part_is_refused(part: str) -> None:
    state = feed(Monitor(5), HISTORY).state()
    with pytest.raises(TypeError, match=part):
        Monitor.from_state(5, {name: value for name, value in state.items() if name != part})
    with pytest.raises(TypeError, match="unknown_part"):
        Monitor.from_state(5, {**state, "unknown_part": 1})


def test_skips_are_explained_with_their_numbers_and_a_way_out() -> None:
    assert feed(Monitor(5), [applied()]).explain_skips() == "None of 1 steps was skipped."
    monitor = feed(Monitor(5), [skipped(SkipReason.NONFINITE)] * 3 + [skipped(SkipReason.OVERFLOW), applied()])
    text = monitor.explain_skips()
    assert text.startswith("4 of 5 steps were skipped (1 overflow, 3 nonfinite). The loss or a gradient was NaN or inf")
    text = feed(Monitor(5), [withheld(), applied()]).explain_skips()
    assert "the recipe's faults ask for it" in text
    assert "quarantine" in text


def test_each_group_has_its_own_clip_rate_over_the_window() -> None:
    def of(attention: bool, rest: bool) -> Verdict:
        groups = {"*.attention.*": attention, "rest": rest}
        return Verdict(1.0, 4, 2.0, 0.5, clipped=True, skipped=None, clipped_groups=groups)

    monitor = feed(Monitor(4), [of(True, True)] * 9)
    feed(monitor, [of(True, False), of(False, False), skipped(SkipReason.SPIKE), of(True, False)])
    assert monitor.group_clip_rates == {"*.attention.*": 2 / 3, "rest": 0.0}
    restored = Monitor.from_state(4, json.loads(json.dumps(monitor.state())))
    for each in (monitor, restored):
        scalars = each.scalars()
        assert scalars["stability/clip_rate/*.attention.*"] == 2 / 3
        assert scalars["stability/clip_rate/rest"] == 0.0


def test_other_kinds_of_clip_have_no_groups() -> None:
    assert feed(Monitor(4), [applied(scale=0.5)]).group_clip_rates == {}


def test_spikes_are_counted_whether_limited_or_skipped() -> None:
    limited = Verdict(1.0, 4, 9.0, 0.5, clipped=True, skipped=None, spike=("norm",))
    left_out = Verdict(1.0, 4, 9.0, 1.0, clipped=False, skipped=SkipReason.SPIKE, spike=("loss", "norm"))
    monitor = feed(Monitor(4), [applied(), limited, left_out, applied(), limited])
    assert monitor.totals.spikes == 3
    assert monitor.totals.skips["spike"] == 1
    assert monitor.scalars()["stability/spikes"] == 3.0
