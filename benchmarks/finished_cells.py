"""The file of a campaign: one JSON line a finished cell; a campaign that is killed at any moment goes on from it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def finished(path: Path) -> list[dict[str, Any]]:
    """Finished cells, oldest first. A last line that was cut off is taken out of the file: its cell is run again."""
    text = path.read_text(encoding="utf8", errors="replace") if path.exists() else ""
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole, encoding="utf8")
    return [json.loads(line) for line in whole.splitlines()]


def append(path: Path, result: Mapping[str, Any]) -> None:
    """One more finished cell, on the disk when this returns; the folder is made where it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf8") as stream:
        stream.write(json.dumps(result, ensure_ascii=False) + "\n")
