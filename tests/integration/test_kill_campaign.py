"""A short kill campaign: nothing is lost by kills and mishaps, and a run that did lose its place is told apart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "kill_campaign.py"
MISHAPS = ("disk full", "bit flipped", "two runs")
KILLS = 4
"""In a step, in a save, while a checkpoint is written, in a rollback; the first and the last in two processes."""


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Outcomes by name, and the table under `table`."""
    folder = tmp_path_factory.mktemp("campaign")
    command = [sys.executable, str(SCRIPT), "--recipes", "lstm_forecast", "--kills", str(KILLS), "--controls", "1"]
    command += ["--mishaps", *MISHAPS, "--out", str(folder / "runs.jsonl"), "--work", str(folder / "work")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = map(json.loads, (folder / "runs.jsonl").read_text(encoding="utf8").splitlines())
    return {**{one["key"].removeprefix("lstm_forecast "): one for one in lines}, "table": {"text": done.stdout}}


@pytest.mark.parametrize("number", range(KILLS))
def test_a_killed_run_ends_as_if_nothing_had_happened(campaign: dict[str, Any], number: int) -> None:
    outcome = campaign[f"kill {number}"]
    assert outcome["problems"] == []
    assert outcome["hits"]
    assert outcome["ranks"] == (2 if number in (0, 3) else 1)


@pytest.mark.parametrize("mishap", MISHAPS)
def test_a_mishap_is_noticed_and_costs_nothing(campaign: dict[str, Any], mishap: str) -> None:
    assert campaign[f"{mishap} 0"]["problems"] == []


def test_a_run_that_forgets_its_place_is_told_apart(campaign: dict[str, Any]) -> None:
    problems = campaign["control 0"]["problems"]
    assert any("model.safetensors differs" in problem for problem in problems)
    assert any("samples seen" in problem for problem in problems)


def test_the_table_counts_losses(campaign: dict[str, Any]) -> None:
    count = KILLS + len(MISHAPS) + 1
    assert f"From {count} of {count} runs; lost: 0." in campaign["table"]["text"]
