"""The chaos benchmark: a subset of its cells for every change, and the rules that it judges by."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import chaos

CLEAN = {"code": 0, "metric": 1.0, "naive": 0.5, "reason": "done", "traceback": False}


@pytest.mark.parametrize(("changes", "expected"), [
    ({}, "kept"),
    ({"metric": 0.86}, "kept"),
    ({"metric": 0.84}, "lost"),
    ({"metric": None}, "lost"),
    ({"metric": float("nan")}, "lost"),
    ({"code": 3, "metric": None, "reason": "Training has diverged"}, "explained"),
    ({"code": 3, "metric": None, "reason": ""}, "lost"),
    ({"code": 1, "metric": None, "reason": "step 3 failed", "traceback": True}, "lost"),
    ({"code": 75, "reason": "stopped"}, "lost"),
])  # fmt: skip
def test_a_run_has_kept_its_gain_or_ended_with_a_reason(changes: dict[str, Any], expected: str) -> None:
    assert chaos.verdict({**CLEAN, **changes}, CLEAN) == expected


def test_the_gain_is_measured_from_the_naive_answer_where_lower_is_better_too() -> None:
    clean = {**CLEAN, "metric": 0.2, "naive": 1.2}
    assert chaos.kept({**clean, "metric": 0.4}, clean) == pytest.approx(0.8)


def test_there_are_sixty_cells_and_more() -> None:
    cells = chaos.cells_of(["a", "b"], guarded=True)
    assert len({cell.name for cell in cells if cell.fault != "clean"}) == len(cells) - 2 >= 60


def lstm(tmp_path: Path, *arguments: str) -> int:
    return chaos.main(["--tasks", "lstm_forecast", "--output", str(tmp_path / "cells.jsonl"), *arguments])


def test_no_run_is_lost_to_a_fault_in_its_middle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lstm(tmp_path, "--moments", "middle") == 0
    said = capsys.readouterr().out
    assert f"{len(chaos.FAULTS)} of {len(chaos.FAULTS)} cells" in said
    assert " 0 lost" in said


def test_negative_control_without_guard_and_recovery_every_fatal_fault_ends_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lstm(tmp_path, "--unguarded") == 0
    assert f"{len(chaos.FATAL)} of {len(chaos.FATAL)} cells: 0 kept" in capsys.readouterr().out


def test_it_goes_on_where_it_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = ("--moments", "late", "--faults", "nan_loss", "inf_grad")
    assert lstm(tmp_path, *chosen, "--budget-minutes", "0") == 0
    assert not (tmp_path / "cells.jsonl").exists()
    lstm(tmp_path, *chosen)
    lines = (tmp_path / "cells.jsonl").read_text(encoding="utf8").splitlines()
    assert len(lines) == 3
    (tmp_path / "cells.jsonl").write_text("\n".join(lines[:2]) + '\n{"cell": "lstm_fore', encoding="utf8")
    capsys.readouterr()
    assert lstm(tmp_path, *chosen) == 0
    again = (tmp_path / "cells.jsonl").read_text(encoding="utf8").splitlines()
    assert again[:2] == lines[:2]
    assert "2 of 2 cells: 2 kept" in capsys.readouterr().out
    assert json.loads(again[-1])["cell"] == json.loads(lines[-1])["cell"]
