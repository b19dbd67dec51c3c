"""A small part of benchmarks/forensics.py: the cells of the LSTM that take the least time, one of every cause."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "forensics.py"
SUBSET = (
    "held-out/lstm/nan in the last row",
    "held-out/lstm/1e30 in the file",
    "held-out/lstm/unit error, finite",
    "held-out/lstm/huge in the head",
    "held-out/lstm/optim.lr 20, finite",
    "held-out/lstm/log between the layers",
    "held-out/lstm/slope of a deviation",
    "held-out/lstm/relu recurrence",
    "held-out/lstm/activation",
    "held-out/lstm/loss scale",
    "detector/nan in an image",
    "detector/nan in a head",
    "healthy/lstm/0 nonfinite",
    "healthy/lstm/2 spike",
)


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_forensics", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", SUBSET)
def test_layer_and_cause_are_right(benchmark: ModuleType, name: str) -> None:
    (cell,) = [cell for cell in benchmark.cells() if cell.name == name]
    result = benchmark.run_cell(cell)
    assert (result["cause"], result["layer"]) == (result["cause_expected"], result["layer_expected"])


def test_groups_have_their_sizes_and_names_are_unique(benchmark: ModuleType) -> None:
    cells = benchmark.cells()
    assert [sum(cell.group == group for cell in cells) for group in benchmark.GROUPS] == [20, 40, 10, 10]
    assert len({cell.name for cell in cells}) == 80


def test_a_wrong_or_missing_report_counts_as_wrong(benchmark: ModuleType) -> None:
    right = {"cell": "a", "group": "held-out", "cause": "x", "cause_expected": "x", "layer": "l", "layer_expected": "l"}
    lost = {"cell": "c", "group": "held-out", "error": "expected one report, got 0"}
    table = benchmark.table([right, {**right, "cause": "unknown"}, lost])
    assert "| held-out | 3 | 2 of 3 (67%) | 1 of 3 (33%) |" in table
    assert table.count("wrong:") == 2


def test_it_goes_on_where_it_stopped(
    benchmark: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "results.jsonl"
    asked: list[str] = []

    def instead(cell: object) -> dict[str, str]:
        asked.append(cell.name)  # type: ignore[attr-defined]
        return {"cell": asked[-1], "group": "rules", "error": "not run"}

    monkeypatch.setattr(benchmark, "run_cell", instead)
    for budget in ("0", "5", "5"):
        monkeypatch.setattr(sys, "argv", ["forensics.py", "--output", str(output), "--budget-minutes", budget])
        assert benchmark.main() == 0
    assert len(asked) == len(set(asked)) == 80
    assert len([json.loads(line) for line in output.read_text(encoding="utf8").splitlines()]) == 80
    assert "80 cells are left" in capsys.readouterr().out
