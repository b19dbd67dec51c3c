from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from paddle_stable.errors import ExitCode, InputError
from paddle_stable.run_folder import RunFolder, write_exit

ROOT = Path(__file__).parents[1]


def hold_in_another_process(folder: Path) -> subprocess.CompletedProcess[str]:
    code = f"from pathlib import Path; from paddle_stable.run_folder import RunFolder; RunFolder(Path({str(folder)!r}))"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)


def test_a_second_run_in_the_same_folder_is_refused_until_the_first_is_done(tmp_path: Path) -> None:
    first = RunFolder(tmp_path / "run")
    refused = hold_in_another_process(tmp_path / "run")
    assert refused.returncode != 0
    assert "another run is training into this folder" in refused.stderr
    first.close()
    assert hold_in_another_process(tmp_path / "run").returncode == 0


@pytest.mark.parametrize(("left", "resuming"), [("metrics.jsonl", False), ("checkpoints/step-000010", True)])
def test_an_earlier_run_is_not_overwritten(tmp_path: Path, left: str, resuming: bool) -> None:
    folder = RunFolder(tmp_path)
    folder.refuse_to_overwrite(resuming=resuming)
    (tmp_path / left).mkdir(parents=True)
    with pytest.raises(InputError, match="--resume auto"):
        folder.refuse_to_overwrite(resuming=resuming)
    folder.close()


def test_a_run_killed_before_its_first_checkpoint_can_be_started_again(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    (tmp_path / "metrics.jsonl").touch()
    folder.refuse_to_overwrite(resuming=True)
    folder.close()


@pytest.mark.parametrize("name", ["metrics.jsonl", "run.log", "results.json", "exit.json", "quarantine.jsonl"])
def test_a_folder_in_the_place_of_a_file_is_an_input_error(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(InputError, match=f"expected files and found folders: {name}"):
        RunFolder(tmp_path)
    (tmp_path / name).rmdir()
    RunFolder(tmp_path).close()


def test_a_folder_that_cannot_be_made_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"run\.output_dir cannot be written"):
        RunFolder(tmp_path / "file" / "run")


def test_exit_json_says_how_the_run_ended(tmp_path: Path) -> None:
    write_exit(tmp_path, ExitCode.DIVERGED, "why", step=7)
    record = json.loads((tmp_path / "exit.json").read_text())
    assert (record["code"], record["name"], record["reason"], record["step"]) == (3, "diverged", "why", 7)


def test_the_first_process_to_speak_is_heard_until_a_run_begins_anew(tmp_path: Path) -> None:
    write_exit(tmp_path, ExitCode.DIVERGED, "the cause", step=7)
    write_exit(tmp_path, ExitCode.ERROR, "what it did to another rank", step=7)
    assert json.loads((tmp_path / "exit.json").read_text())["reason"] == "the cause"
    assert not list(tmp_path.glob(".exit.json.*"))
    folder = RunFolder(tmp_path)
    folder.forget_last_end()
    assert not (tmp_path / "exit.json").exists()
    folder.close()
