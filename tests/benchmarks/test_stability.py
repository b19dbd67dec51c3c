"""The faults stand where the constants say, in every arm alike; the rule of success; resuming; one tiny campaign."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import stability
from benchmarks.claim import arms
from benchmarks.claim.arms import Cell, Setting, run_cell
from benchmarks.claim.faults import SPACE, UNIT_FACTOR, Fault, draw_faults, write_spoilt_copy
from benchmarks.claim.figures import NEVER, NotWorthATable, Row, Yardstick, draw, report, survived, wilson
from paddle_stable.build import prepare
from paddle_stable.digest import digest
from paddle_stable.distributed import World
from paddle_stable.recipe_io import load_recipe
from paddle_stable.training_state import model_arrays

ROWS, TRAIN_ROWS = 900, 650
FIRST = np.datetime64("2001-01-01")
TINY: dict[str, Any] = {
    **arms.SIZES,
    "run.epochs": None,
    "run.steps": 6,
    "task.hidden": 4,
    "data.lookback": 5,
    "data.dev_from": str(FIRST + TRAIN_ROWS),
    "data.test_from": str(FIRST + 780),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two series whose volatility comes and goes."""
    folder = tmp_path_factory.mktemp("series")
    for number, series in enumerate(arms.SERIES):
        days = np.arange(ROWS)
        noise = np.random.default_rng(number).normal(size=ROWS)
        prices = 100.0 * np.exp(np.cumsum(noise * 0.01 * np.exp(np.sin(days / 40))))
        lines = [f"{FIRST + int(day)},{price:.4f},1" for day, price in zip(days, prices, strict=True)]
        (folder / f"{series}.csv").write_text("\n".join(["Date,Close,Volume", *lines]) + "\n", encoding="utf-8")
    return folder


def closes(file: Path) -> list[str]:
    return [line.split(",")[1] for line in file.read_text(encoding="utf-8").splitlines()[1:]]


# -------------------------------------------------------------------------------------------------------------- faults


@pytest.mark.parametrize("seed", range(1, 40))
def test_faults_are_three_unit_errors_a_missing_price_and_a_shock_far_from_each_other(seed: int) -> None:
    faults = draw_faults(seed, TRAIN_ROWS)
    assert sorted(fault.kind for fault in faults) == ["missing price", "shock", *["unit error"] * 3]
    edges = [0, *(fault.row for fault in faults), TRAIN_ROWS]
    assert min(np.diff(edges)) >= SPACE
    assert faults == draw_faults(seed, TRAIN_ROWS)
    assert faults != draw_faults(seed + 1, TRAIN_ROWS)
    (shock,) = [fault for fault in faults if fault.kind == "shock"]
    assert abs(shock.size) >= 0.1


def test_a_training_range_that_is_too_short_is_refused() -> None:
    with pytest.raises(ValueError, match="do not fit into 480 rows"):
        draw_faults(1, 480)


def test_a_spoilt_copy_differs_where_the_faults_are_and_nowhere_else(data: Path, tmp_path: Path) -> None:
    source, copy = data / "sp500.csv", tmp_path / "copy.csv"
    write_spoilt_copy(
        source,
        copy,
        "Close",
        [Fault("unit error", 100, UNIT_FACTOR), Fault("missing price", 300), Fault("shock", 200, 0.2)],
    )
    before, after = np.array(closes(source), dtype=float), closes(copy)
    assert after[300] == ""
    found = np.array([text or "nan" for text in after], dtype=float)
    scale = np.exp(-0.2)
    assert found[:100] == pytest.approx(before[:100] * scale, rel=1e-12)
    assert found[100] == pytest.approx(before[100] * scale * 1e4, rel=1e-12)
    assert found[101:200] == pytest.approx(before[101:200] * scale, rel=1e-12)
    assert math.log(found[200] / found[199]) == pytest.approx(math.log(before[200] / before[199]) + 0.2)
    assert after[200:300] + after[301:] == closes(source)[200:300] + closes(source)[301:]  # to the letter


@pytest.mark.parametrize("condition", ["keep", "finite"])
def test_all_arms_of_a_seed_train_on_the_same_faults_and_are_judged_on_clean_rows(
    data: Path, tmp_path: Path, condition: arms.Condition
) -> None:
    setting = Setting(data, TINY)
    files = []
    for arm in ("a", "d"):
        folder = tmp_path / arm
        folder.mkdir()
        files.append(Path(setting.values(Cell(condition, arm, 3), folder)["data.file"]))
    assert files[0].read_bytes() == files[1].read_bytes()
    spoilt, clean = closes(files[0]), closes(setting.file("sp500"))
    assert spoilt[TRAIN_ROWS - SPACE :] == clean[TRAIN_ROWS - SPACE :]
    assert spoilt.count("") == (1 if condition == "keep" else 0)
    values = setting.values(Cell(condition, "a", 3), tmp_path)
    splits = prepare(load_recipe(str(arms.RECIPE), set_values=values), World.single()).splits
    clean_values = setting.values(Cell("clean", "a", 3), tmp_path)
    undisturbed = prepare(load_recipe(str(arms.RECIPE), set_values=clean_values), World.single()).splits
    for name in ("dev", "test"):
        ours, theirs = getattr(splits, name), getattr(undisturbed, name)
        assert np.array_equal(ours.targets, theirs.targets)
        assert np.array_equal(ours.last_values, theirs.last_values)


def test_seeds_take_turns_between_the_series_and_the_rate_is_ten_times_too_high(data: Path, tmp_path: Path) -> None:
    assert [Cell("lr", "a", seed).series for seed in (1, 2, 3)] == ["sp500", "nasdaq", "sp500"]
    setting = Setting(data, TINY)
    assert setting.values(Cell("lr", "a", 1), tmp_path)["optim.lr"] == pytest.approx(10 * setting.lr)
    assert setting.faults(Cell("lr", "a", 1)) == []


# ---------------------------------------------------------------------------------------------------------------- arms


def test_the_plain_loop_is_the_trainer_without_a_guard(data: Path, tmp_path: Path) -> None:
    """Where nothing goes wrong, arm a and the trainer with clip and spike detection off end bit for bit the same."""
    values = {**Setting(data, TINY).values(Cell("clean", "a", 1), tmp_path)}
    free = {"clip.kind": "none", "stability.spike.action": "none"}
    found = []
    for arm, more in (("a", {}), ("d", free)):
        prepared = prepare(load_recipe(str(arms.RECIPE), set_values={**values, **more}), World.single())
        outcome = arms.train(arm, prepared, tmp_path / arm)
        assert outcome.steps == prepared.total_steps == 6
        found.append((digest(model_arrays(prepared.model)), outcome.dev))
    assert found[0] == found[1]
    assert list(found[0][1]) == [5, 6]


def test_a_missing_price_ends_the_plain_loop_and_not_the_recipe(data: Path) -> None:
    setting = Setting(data, {**TINY, "run.steps": 10})
    plain, recipe = (run_cell(Cell("keep", arm, 1), setting) for arm in ("b", "d"))
    assert plain["end"] == "parameters are not finite"
    assert plain["test_mse"] is None
    assert not survived(plain)
    assert recipe["end"] == "done"
    assert recipe["steps"] == recipe["total_steps"] == 10
    assert survived(recipe)


def test_doing_nothing_is_judged_too(data: Path) -> None:
    line = run_cell(Cell("clean", "z", 1), Setting(data, TINY))
    assert line["dev_mse"] == {}
    assert line["test_mse"] > 0


# ------------------------------------------------------------------------------------------------------------- figures


def line(seed: int, test_mse: float | None, **changes: Any) -> dict[str, Any]:
    """A run on a series whose better naive forecast has an MSE of 1 on test and 2 on dev."""
    cell = Cell("clean", "d", seed)
    return {
        "cell": cell.name,
        "recipe": "r",
        "condition": "clean",
        "arm": "d",
        "seed": seed,
        "series": cell.series,
        "steps": 20,
        "total_steps": 20,
        "end": "done",
        "test_mse": test_mse,
        "dev_mse": {"5": 1.9, "10": 1.4, "15": 1.2, "20": 1.0},
        "naive": {"dev": 2.0, "test": 1.0},
        **changes,
    }


CLEAN = [line(seed, 0.6) for seed in range(1, 11)]


@pytest.mark.parametrize(
    ("changes", "succeeds"),
    [
        ({"test_mse": 0.72}, True),  # a gain of 0.28 is 70 % of 0.4
        ({"test_mse": 0.73}, False),
        ({"test_mse": None}, False),
        ({"test_mse": 0.5, "steps": 19}, False),
        ({"test_mse": 0.5, "end": "diverged: of its own"}, False),
    ],
)
def test_success_is_all_steps_and_70_percent_of_the_clean_gain(changes: dict[str, Any], succeeds: bool) -> None:
    assert Yardstick.of(CLEAN).success({**line(1, 0.0), **changes}) is succeeds


def test_steps_to_the_fixed_dev_loss() -> None:
    yardstick = Yardstick.of(CLEAN)
    assert yardstick.dev_loss["sp500"] == pytest.approx(1.3)  # 2 - 0.7 x (2 - 1)
    assert yardstick.steps(line(1, 0.6)) == 15
    assert yardstick.steps(line(1, 0.6, dev_mse={"5": None, "10": 1.31})) == NEVER
    lost = line(1, None, dev_mse={"5": 1.0})
    # A run that gives no numbers has no part in the median; one that never gets there has.
    lines = [line(1, 0.6), line(2, 0.6, dev_mse={"5": 1.0}), line(3, 0.6, dev_mse={"20": 2.0}), lost]
    assert Row.of(lines, yardstick) == Row(runs=4, successes=3, survivors=3, steps=15)


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([line(1, 0.6)], "no clean run on nasdaq"),
        ([line(seed, 0.86) for seed in range(1, 11)], "14.0% of its MSE, less than 15%"),
        ([*CLEAN, line(11, 0.8)], "90.9% of the clean runs pass"),
        ([line(seed, None) for seed in (1, 2)], "-inf"),
    ],
)
def test_no_table_where_clean_runs_show_nothing(lines: Sequence[dict[str, Any]], why: str) -> None:
    with pytest.raises(NotWorthATable, match=why):
        report(lines, 100)


@pytest.mark.parametrize(
    ("successes", "runs", "low", "high"),
    [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (50, 100, 0.4038, 0.5962), (81, 263, 0.2553, 0.3662)],
)
def test_wilson_interval(successes: int, runs: int, low: float, high: float) -> None:
    """Known values; 81 of 263 is Newcombe's example (Stat. Med. 17, 1998)."""
    assert wilson(successes, runs) == pytest.approx((low, high), abs=5e-5)


def test_the_report_says_what_came_out(tmp_path: Path) -> None:
    kept = {"condition": "keep", "end": "parameters are not finite"}
    lines = [
        *CLEAN,
        *(line(seed, None, **kept, arm="a", steps=5, dev_mse={"5": None}) for seed in range(1, 5)),
        *(line(seed, 0.6 if seed < 4 else 0.9, condition="keep") for seed in range(1, 5)),
        *(line(seed, 0.6, condition="lr", arm=arm) for seed in range(1, 5) for arm in ("a", "d")),
    ]
    text = report(lines, 1000)
    assert "From 26 of 1000 cells." in text
    assert "| five faults, kept in the data | (a) AdamW | 4 | 0.0% (0.0–49.0) | 0.0% | no survivor |" in text
    assert "| five faults, kept in the data | (d) the recipe | 4 | 75.0% (30.1–95.4) | 100.0% | 15 |" in text
    assert "success of (d) at least 99%: **no** (75.0%; (a) 0.0%)" in text
    assert "**nothing to compare with**, (a) has no survivor" in text
    assert "learning rate x10: at least 40% fewer steps than the survivors of (a): **no** (15 and 15, 0% fewer)" in text
    draw(lines, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 10_000


# --------------------------------------------------------------------------------------------------------------- cells


def test_every_cell_stands_once_and_a_part_of_them_is_balanced() -> None:
    cells = stability.cells()
    assert len({cell.name for cell in cells}) == len(cells) == 100 + 3 * (50 + 50 + 200 + 200) + 200
    tables = [cell for cell in cells if cell.condition in ("keep", "policy", "lr")]
    for stop in range(12, 600, 12):  # 3 conditions x 4 arms: a whole number of seeds
        counts = [sum(c.arm == arm and c.condition == "keep" for c in tables[:stop]) for arm in "abcd"]
        assert counts == [stop // 12] * 4
    assert {cell.condition for cell in cells[:100]} == {"clean"}


def test_it_goes_on_where_it_stopped(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stability, "SIZES", TINY)
    asked: list[str] = []

    def instead(cell: Cell, setting: Setting) -> dict[str, Any]:
        asked.append(cell.name)
        return {"cell": cell.name, "recipe": setting.digest(cell.arm), "arm": cell.arm}

    monkeypatch.setattr(stability, "run_cell", instead)
    stability._setting.cache_clear()
    plan = [Cell("keep", arm, seed) for seed in (1, 2) for arm in ("a", "d")]
    output = tmp_path / "new" / "lines.jsonl"
    run = stability.run_missing
    assert run(plan, output, data, jobs=1, deadline=-1.0) == {}  # the budget is used up
    later = time.monotonic() + 60.0
    assert list(run(plan[:2], output, data, jobs=1, deadline=later)) == ["keep/a/1", "keep/d/1"]
    with output.open("a", encoding="utf8") as stream:
        stream.write(json.dumps({"cell": "keep/a/2", "recipe": "another", "arm": "a"}) + "\n")
        stream.write('{"cell": "keep/d/2", "rec')  # cut off
    assert len(run(plan, output, data, jobs=1, deadline=later)) == 4
    assert asked == ["keep/a/1", "keep/d/1", "keep/a/2", "keep/d/2"]
    assert len(run(plan, output, data, jobs=1, deadline=later)) == 4
    assert len(asked) == 4
    stability._setting.cache_clear()


def test_another_guard_makes_other_runs_of_the_recipe_only(data: Path) -> None:
    first, second = Setting(data, TINY), Setting(data, {**TINY, "clip.max_norm": 2.0})
    assert first.digest("a") == second.digest("a")
    assert first.digest("d") != second.digest("d")
    slower = Setting(data, {**TINY, "optim.lr": 1e-4})
    assert first.digest("a") != slower.digest("a")


def test_a_tiny_campaign_from_the_command_line_to_table_and_picture(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Six steps teach nothing, so the first time it refuses; with bounds that anything passes it prints all of it."""
    monkeypatch.setattr(stability, "SIZES", TINY)
    monkeypatch.setattr(stability, "clean_cells", lambda: [Cell("clean", "d", 1), Cell("clean", "d", 2)])
    monkeypatch.setattr(stability, "cells", lambda: [Cell("keep", arm, 1) for arm in ("a", "d")])
    stability._setting.cache_clear()
    command = ["stability.py", "--data", str(data), "--output", str(tmp_path / "lines.jsonl")]
    monkeypatch.setattr("sys.argv", [*command, "--picture", str(tmp_path / "picture.png")])
    assert stability.main() == 1
    assert "No table: clean runs on sp500 beat the better naive forecast by" in capsys.readouterr().err
    lines = [json.loads(text) for text in (tmp_path / "lines.jsonl").read_text(encoding="utf8").splitlines()]
    assert [found["cell"] for found in lines] == ["clean/d/1", "clean/d/2"]

    monkeypatch.setattr("benchmarks.claim.figures.LEAST_ADVANTAGE", -math.inf)
    monkeypatch.setattr("benchmarks.claim.figures.CLEAN_SUCCESS", 0.0)
    monkeypatch.setattr(
        stability, "cells", lambda: [*stability.clean_cells(), *(Cell("keep", arm, 1) for arm in ("a", "d"))]
    )
    assert stability.main() == 0
    said = capsys.readouterr().out
    assert "From 4 of 4 cells." in said
    assert "| five faults, kept in the data | (a) AdamW | 1 | 0.0% (0.0–79.3) | 0.0% | no survivor |" in said
    assert "| five faults, kept in the data | (d) the recipe | 1 |" in said
    assert (tmp_path / "picture.png").exists()
    stability._setting.cache_clear()
