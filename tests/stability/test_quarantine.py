"""Who is left out, and how that is written down and read again."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from paddle_stable.data.dataset import Array, Dataset, Sample, SampleOrigin
from paddle_stable.errors import InputError
from paddle_stable.stability.quarantine import FILE, Quarantine, read_quarantine


class Lines(Dataset):
    """Five lines of a file."""

    def __len__(self) -> int:
        return 5

    def sample(self, index: int, rng: np.random.Generator) -> Sample:
        return {}

    def origin(self, index: int) -> SampleOrigin:
        return SampleOrigin("rows.csv", index + 2, f"row {index}")

    def lengths(self) -> None:
        return None

    def digest(self) -> str:
        return ""

    def collate(self, samples: object) -> dict[str, Array]:
        return {}


def test_a_sample_is_left_out_after_so_many_incidents() -> None:
    quarantine = Quarantine(after=2)
    assert quarantine.blame({1, 3}, step=7) == frozenset()
    assert quarantine.blame({3}, step=9) == {3}
    assert quarantine.blame({3}, step=11) == frozenset()
    assert quarantine.left_out == {3}


def test_without_a_number_nobody_is() -> None:
    quarantine = Quarantine(after=None, known={4})
    assert not quarantine.is_wanted
    assert quarantine.blame({1}, step=1) == frozenset()
    assert quarantine.left_out == {4}


def test_the_state_comes_back() -> None:
    quarantine = Quarantine(after=2)
    quarantine.blame({1, 3}, step=7)
    again = Quarantine(after=2)
    again.load_state(json.loads(json.dumps(quarantine.state())))
    assert again.blame({1}, step=8) == {1}
    assert again.state() != quarantine.state()


def test_what_is_written_can_be_read_by_a_later_run(tmp_path: Path) -> None:
    quarantine = Quarantine(after=1, known={0})
    quarantine.blame({2}, step=5)
    quarantine.blame({2, 4}, step=8)
    quarantine.write(tmp_path, Lines())
    entries = [json.loads(line) for line in (tmp_path / FILE).read_text(encoding="utf8").splitlines()]
    assert [(entry["file"], entry["line"], entry["incidents"]) for entry in entries] == [
        ("rows.csv", 4, 2),
        ("rows.csv", 6, 1),
    ]
    assert (entries[0]["first_step"], entries[0]["last_step"]) == (5, 8)
    assert "finite" in entries[0]["why"]
    found, said = read_quarantine(tmp_path / FILE, Lines())
    assert found == {2, 4}
    assert said.startswith("2 samples are left out")
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_a_sample_that_is_no_longer_there_is_counted_and_matches_nothing(tmp_path: Path) -> None:
    path = tmp_path / FILE
    lines = [{"file": "rows.csv", "line": 3, "excerpt": "row 1"}, {"file": "rows.csv", "line": 4, "excerpt": "edited"}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf8")
    found, said = read_quarantine(path, Lines())
    assert found == {1}
    assert "1 of its entries are not in the training data" in said


def test_all_lines_that_are_no_entries_are_named(tmp_path: Path) -> None:
    path = tmp_path / FILE
    path.write_text(
        'nonsense\n{"file": "rows.csv", "line": 3, "excerpt": "row 1"}\n{"file": "x"}\n[1]\n', encoding="utf8"
    )
    with pytest.raises(InputError) as caught:
        read_quarantine(path, Lines())
    assert [problem.line for problem in caught.value.problems] == [1, 3, 4]


def test_a_missing_list_and_one_that_leaves_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_quarantine(tmp_path / FILE, Lines())
    quarantine = Quarantine(after=1)
    quarantine.blame(range(5), step=1)
    quarantine.write(tmp_path, Lines())
    with pytest.raises(InputError, match="nothing would be left"):
        read_quarantine(tmp_path / FILE, Lines())
