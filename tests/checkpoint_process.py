"""Processes that save and are killed, that meet errors, or that save at once. Needs no Paddle, so it starts quickly.

Run as `python -m tests.checkpoint_process interrupt|save-on|save-some … FOLDER`.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

from paddle_stable.checkpoint import CheckpointError
from tests.checkpoint_sample import hidden, names, parts, same, store


class Interruption:
    """Kills this process, or lets one operation fail, just before its n-th one on the file system."""

    def __init__(self, what: str, at: int) -> None:
        self.what, self.at, self.count = what, at, 0
        fsync = os.fsync

        def watched_fsync(descriptor: int) -> None:
            self("os.fsync", (descriptor,))
            fsync(descriptor)

        os.fsync = watched_fsync
        sys.addaudithook(self)

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        writes = event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if writes or event in ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "os.fsync"):
            self.count += 1
            if self.count == self.at:
                if self.what == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                raise OSError(errno.ENOSPC, "No space left on device")


def interrupted_save(folder: Path, what: str, at: int, step: int) -> bool:
    """Save in a child process that is interrupted; whether it came to its end without meeting the interruption."""
    child = os.fork()
    if child == 0:
        interruption = Interruption(what, at)
        try:
            store(folder).save(step, parts(50), best=True)
        except CheckpointError:
            os._exit(1)
        os._exit(0 if interruption.count < at else 1)
    return os.waitpid(child, 0)[1] == 0


def problems_after(folder: Path, old: int | None, step: int, where: str, outcomes: set[str]) -> list[str]:
    """What is wrong with a folder in which a save of `step` was interrupted, now and after the next save."""
    path, passed_over = store(folder).newest_valid()
    problems = [f"{where}: {line}" for line in passed_over]
    problems += [f"{where}: {name} is damaged" for name in names(folder) if store(folder).verify(folder / name)]
    if path is None:
        outcomes.add("none")
        if old is not None:
            return [*problems, f"{where}: nothing is left"]
    else:
        content = store(folder).load(path, verify=False)  # just verified
        is_new = same(content, parts(50))
        outcomes.add("new" if is_new else "old")
        if not is_new and (old is None or not same(content, parts(old))):
            problems.append(f"{where}: {path.name} is neither the old nor the new one")
        best = store(folder).best()
        if best is None or best.name not in names(folder):
            problems.append(f"{where}: the best checkpoint is {best}")
    store(folder).save(step + 1, parts(51))
    if hidden(folder):
        problems.append(f"{where}: {hidden(folder)} are left behind")
    if f"step-{step + 1:06d}" not in names(folder):
        problems.append(f"{where}: the next save failed")
    return problems


def interrupt_everywhere(what: str, scene: str, folder: Path) -> dict[str, Any]:
    base = folder / f"{what}-{scene}"
    old = None if scene == "first" else 3
    step = 3 if scene == "again" else 4
    base.mkdir()
    if old:
        for number in range(1, old + 1):
            store(base).save(number, parts(number), best=number == old)
    problems: list[str] = []
    outcomes: set[str] = set()
    for at in itertools.count(1):
        work = folder / "work"
        shutil.copytree(base, work)
        finished = interrupted_save(work, what, at, step)
        problems += problems_after(work, old, step, f"{scene}, {what} at operation {at}", outcomes)
        shutil.rmtree(work)
        if finished:
            return {"moments": at, "problems": problems, "outcomes": sorted(outcomes)}
    raise AssertionError("a save without an end")


def main(mode: str, *arguments: str) -> None:
    folder = Path(arguments[-1])
    match mode:
        case "interrupt":
            scenes = (("kill", "first"), ("kill", "next"), ("kill", "again"), ("fail", "next"))
            print(json.dumps({f"{what} {scene}": interrupt_everywhere(what, scene, folder) for what, scene in scenes}))
        case "save-on":
            newest = store(folder).newest_valid()[0]
            for step in itertools.count(int(newest.name[-6:]) + 1 if newest else 1):
                store(folder).save(step, parts(step, size=3000), best=step % 3 == 1)
                print(step, flush=True)
        case "save-some":
            for step in range(1, 13):
                store(folder).save(step, parts(100 * int(arguments[0]) + step), best=step % 5 == 1)


if __name__ == "__main__":
    main(*sys.argv[1:])
