"""A campaign that is killed while it writes a line goes on without that cell, and loses no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.finished_cells import append, finished


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_line_that_was_cut_off_is_taken_out_and_the_others_stay(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "new" / "cells.jsonl"
    assert finished(path) == []
    for number in range(3):
        append(path, {"cell": f"ü {number}", "value": 0.5})
    content = path.read_bytes()
    path.write_bytes(content[:-cut])
    assert [result["cell"] for result in finished(path)] == ["ü 0", "ü 1"]
    append(path, {"cell": "ü 2", "value": 0.5})
    assert path.read_bytes() == content
    assert len(finished(path)) == 3
