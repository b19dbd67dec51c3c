"""benchmarks/dbnet_clip.py goes on where it stopped, and its table compares seeds with themselves."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "dbnet_clip.py"


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_dbnet_clip", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def result(arm: str, seed: int, hmean: float) -> dict[str, Any]:
    cell = {"cell": f"{arm} seed {seed}", "arm": arm, "seed": seed, "steps": 12}
    return {**cell, "hmean": hmean, "clip_rate": 0.25}


def test_a_cell_of_every_arm_trains(benchmark: ModuleType, tmp_path: Path) -> None:
    values = benchmark.load_recipe(str(benchmark.RECIPE)).task_class.write_sample_data(tmp_path)
    rates = {}
    for arm in benchmark.ARMS:
        found = benchmark.run_cell(arm, 1, 6, values, smoke=True)
        assert (found["steps"], found["skipped"]) == (6, 0)
        assert 0.0 <= found["hmean"] <= 1.0
        rates[arm] = found["clip_rate"]
    assert rates["1.0"] > rates["5.0"] >= rates["none"] == 0.0


def test_the_table_compares_the_same_seeds(benchmark: ModuleType) -> None:
    results = [result("1.0", 1, 0.5), result("1.0", 2, 0.7), result("5.0", 1, 0.52), result("5.0", 3, 0.9)]
    text = benchmark.table(results)
    assert "| 1.0 | 2 | 0.6000 | 0.5000 to 0.7000 | - | 25% |" in text
    assert "| 5.0 | 2 | 0.7100 | 0.5200 to 0.9000 | +0.0200 (+0.0200 to +0.0200) | 25% |" in text
    assert "| none | 0 | - | - | - | - |" in text
    assert "4 cells of 12 steps each" in text


def test_it_goes_on_where_it_stopped(
    benchmark: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "results.jsonl"
    asked: list[tuple[str, int, int]] = []

    def instead(arm: str, seed: int, steps: int, values: object, *, smoke: bool) -> dict[str, Any]:
        asked.append((arm, seed, steps))
        return result(arm, seed, 0.5)

    monkeypatch.setattr(benchmark, "run_cell", instead)
    monkeypatch.setattr(benchmark, "measure_steps", lambda minutes, values, smoke: 12)
    for budget in ("0", "5", "5"):
        monkeypatch.setattr(sys, "argv", ["x", "--output", str(output), "--budget-minutes", budget, "--seeds", "2"])
        assert benchmark.main() == 0
    assert len(asked) == len(set(asked)) == 8
    assert {steps for _, _, steps in asked} == {12}
    assert [arm for arm, seed, _ in asked[:4]] == list(benchmark.ARMS), "seed by seed"
    assert len([json.loads(line) for line in output.read_text(encoding="utf8").splitlines()]) == 8
    assert "8 cells are left" in capsys.readouterr().out
