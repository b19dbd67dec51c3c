"""What of two runs has to be equal, and every sample of an epoch seen once."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from paddle_stable.checkpoint import CheckpointStore
from paddle_stable.checkpoint_folder import read_manifest

SPEEDS = ("train/samples_per_second", "train/data_seconds")


def result_of(run: Path) -> dict[str, Any]:
    """Everything that must not depend on interruptions.

    Raises:
        OSError, CheckpointError: when the run has not come to its end.
    """
    store = CheckpointStore(run / "checkpoints", keep_last=1)
    newest, passed_over = store.newest_valid()
    kept = sorted((run / "checkpoints").glob("step-*"))
    files = {path.name: {name: r.sha256 for name, r in read_manifest(path).files.items()} for path in kept}
    for one in files.values():
        one.pop("recipe.yaml")  # it names the run folder
    return {
        "newest": newest.name if newest is not None else None,
        "damaged": passed_over,
        "checkpoints": files,
        "best": json.loads((run / "checkpoints" / "best.json").read_text(encoding="utf8")),
        "results": json.loads((run / "results.json").read_text(encoding="utf8")),
        "exit": json.loads((run / "exit.json").read_text(encoding="utf8"))["code"],
        "records": _records(run / "metrics.jsonl"),
    }


def differences(run: Path, expected: dict[str, Any]) -> list[str]:
    """What is not as in the uninterrupted run, by name; empty when every bit is."""
    try:
        found = result_of(run)
    except Exception as error:  # noqa: BLE001 - whatever it is, the run is lost
        return [f"{type(error).__name__}: {error}"]
    kept = found.pop("checkpoints")
    problems = [f"{name} differ" for name in found if found[name] != expected[name]]
    for name, files in expected["checkpoints"].items():
        # A kill between the last save's renaming and its tidying leaves an older one more: all that have to be are.
        other = kept.get(name, {})
        problems += [f"{name}/{file} differs" for file in files if other.get(file) != files[file]]
    return problems


def sample_problems(folder: Path, ranks: int, steps: int, samples: int, steps_per_epoch: int) -> list[str]:
    """Epochs in which a sample was not seen, or more than once, in the steps that count: each one's last attempt."""
    last: dict[tuple[int, int], tuple[int, list[int]]] = {}
    for rank in range(ranks):
        for line in (folder / f"samples{rank}.jsonl").read_text(encoding="utf8").splitlines():
            process, step, indices = json.loads(line)
            if process >= last.get((rank, step), (0, []))[0]:
                last[rank, step] = (process, indices)
    problems = []
    for epoch in range(-(-steps // steps_per_epoch)):
        of_epoch = range(epoch * steps_per_epoch + 1, min((epoch + 1) * steps_per_epoch, steps) + 1)
        seen = Counter(i for step in of_epoch for rank in range(ranks) for i in last.get((rank, step), (0, []))[1])
        whole = len(of_epoch) == steps_per_epoch
        if any(count > 1 for count in seen.values()) or (whole and len(seen) != samples):
            problems.append(f"epoch {epoch}: {len(seen)} of {samples} samples seen, {sum(seen.values())} times")
    return problems


def _records(path: Path) -> list[Any]:
    """The curves: everything recorded but texts and pictures, without the time and speeds."""
    found = []
    for line in path.read_text(encoding="utf8").splitlines():
        record = json.loads(line)
        if record["kind"] not in ("text", "image"):
            del record["time"]
            for tag in SPEEDS:
                record.get("scalars", {}).pop(tag, None)
            found.append(record)
    return found
