from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from paddle_stable.errors import ExitCode, InputError
from paddle_stable.run_folder import RunFolder, folder_remarks, is_held, refuse_to_overwrite, write_exit

ROOT = Path(__file__).parents[1]


def hold_in_another_process(folder: Path) -> subprocess.CompletedProcess[str]:
    code = f"from pathlib import Path; from paddle_stable.run_folder import RunFolder; RunFolder(Path({str(folder)!r}))"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)


def test_a_folder_is_held_while_another_process_holds_it(tmp_path: Path) -> None:
    assert not is_held(tmp_path)
    code = (
        "import sys; from pathlib import Path; from paddle_stable.run_folder import RunFolder\n"
        f"held = RunFolder(Path({str(tmp_path)!r})); print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    assert is_held(tmp_path)
    holder.communicate()
    assert not is_held(tmp_path)


def test_a_second_run_in_the_same_folder_is_refused_until_the_first_is_done(tmp_path: Path) -> None:
    first = RunFolder(tmp_path / "run")
    refused = hold_in_another_process(tmp_path / "run")
    assert refused.returncode != 0
    assert "another run is training into this folder" in refused.stderr
    first.close()
    assert hold_in_another_process(tmp_path / "run").returncode == 0


@pytest.mark.parametrize(("left", "resuming"), [("metrics.jsonl", False), ("checkpoints/step-000010", True)])
def test_an_earlier_run_is_not_overwritten(tmp_path: Path, left: str, resuming: bool) -> None:
    refuse_to_overwrite(tmp_path, resuming=resuming)
    (tmp_path / left).mkdir(parents=True)
    with pytest.raises(InputError, match="--resume auto"):
        refuse_to_overwrite(tmp_path, resuming=resuming)


def test_a_run_killed_before_its_first_checkpoint_can_be_started_again(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.begin()
    (tmp_path / "metrics.jsonl").touch()
    refuse_to_overwrite(tmp_path, resuming=True)
    folder.close()


@pytest.mark.parametrize("left", [None, "checkpoints/best.json"])
def test_records_whose_checkpoints_are_gone_are_not_cut_away(tmp_path: Path, left: str | None) -> None:
    (tmp_path / "metrics.jsonl").touch()
    if left is not None:
        (tmp_path / "checkpoints").mkdir()
        (tmp_path / left).touch()
    with pytest.raises(InputError, match="checkpoints are gone"):
        refuse_to_overwrite(tmp_path, resuming=True)


FILES = ["metrics.jsonl", "vdlrecords.run.log", "run.log", "results.json", "exit.json", "quarantine.jsonl"]


def test_what_is_in_the_way_is_said_at_once(tmp_path: Path) -> None:
    for name in FILES:
        (tmp_path / name).mkdir()
    for name in ("checkpoints", "incidents"):
        (tmp_path / name).touch()
    with pytest.raises(InputError) as caught:
        RunFolder(tmp_path)
    assert [(problem.file, problem.message) for problem in caught.value.problems] == [
        *((str(tmp_path / name), "must be a file, found a folder. Move it away") for name in FILES),
        (str(tmp_path / "checkpoints"), "must be a folder, found a file. Move it away"),
        (str(tmp_path / "incidents"), "must be a folder, found a file. Move it away"),
    ]
    for name in FILES:
        (tmp_path / name).rmdir()
    for name in ("checkpoints", "incidents"):
        (tmp_path / name).unlink()
    RunFolder(tmp_path).close()


def test_a_folder_that_cannot_be_made_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "run", tmp_path / "file", Path(os.devnull)):
        with pytest.raises(InputError, match=r"run\.output_dir cannot be written: .* is no folder"):
            RunFolder(path)


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
    folder.begin()
    assert not (tmp_path / "exit.json").exists()
    folder.close()


def test_a_check_says_what_a_run_would_meet_and_makes_nothing(tmp_path: Path) -> None:
    assert folder_remarks(tmp_path / "new" / "run") == []
    assert not (tmp_path / "new").exists()
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"run\.output_dir cannot be written: .*file is no folder"):
        folder_remarks(tmp_path / "file" / "run")
    (tmp_path / "metrics.jsonl").touch()
    assert ["--resume auto" in line for line in folder_remarks(tmp_path)] == [True]
    (tmp_path / "checkpoints").touch()
    with pytest.raises(InputError, match="must be a folder"):
        folder_remarks(tmp_path)


def test_a_path_that_no_file_system_takes_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"run\.output_dir cannot be written: File name too long"):
        folder_remarks(tmp_path / ("x" * 300))


def test_a_file_system_without_locks_or_hard_links_can_hold_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "lockf", unknown)
    monkeypatch.setattr(Path, "hardlink_to", unknown)
    RunFolder(tmp_path).close()
    write_exit(tmp_path, ExitCode.DIVERGED, "the cause", step=7)
    write_exit(tmp_path, ExitCode.ERROR, "what it did to another rank", step=7)
    assert json.loads((tmp_path / "exit.json").read_text())["reason"] == "the cause"
    assert not list(tmp_path.glob(".exit.json.*"))


def test_processes_see_by_a_mark_whether_they_have_the_same_folder(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    folder = RunFolder(tmp_path / "one")
    first = folder.mark()
    mark = folder.mark()
    assert mark != first
    # In another process: reading the file gives up the lock of the one that holds it.
    code = f"""
from pathlib import Path
from paddle_stable.run_folder import has_mark
print([has_mark(Path({str(tmp_path)!r}) / name, {mark!r}, seconds=0.0) for name in ("one", "two")])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[True, False]"
    folder.close()
