"""Mishaps besides kills: full and read-only disks, damaged checkpoints, a second run, a clock that moves back."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from benchmarks.campaign.child import Assignment, Moment
from benchmarks.campaign.processes import Processes, work
from paddle_stable.checkpoint import CheckpointStore

Mishap = Callable[[Assignment, random.Random], list[str]]
"""Lets a run meet it, and leaves the run to be resumed. Returns what went otherwise than promised."""

LATER = Moment("step", 14)
"""Several checkpoints are there by then, and the run is in the middle of an epoch."""
DISK_BYTES = 64 << 20


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """A disk of its own for a folder; False where this process may not mount one."""
    folder.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", str(folder)]
    mounted = os.geteuid() == 0 and subprocess.run(mount, capture_output=True, check=False).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=False)


def disk_full(first: Assignment, rng: random.Random) -> list[str]:
    """No room for a checkpoint, not the first one; afterwards there is room again."""
    with_disk = os.path.ismount(first.folder / "run")
    moment = Moment("writing", rng.randint(2, 6), mishap="fill" if with_disk else "fsize")
    ended = work(replace(first, moment=moment), ranks=1)
    problems = [] if ended.codes == (1,) else [f"it ended with {ended.codes} instead of 1"]
    problems += _damaged(first)
    (first.folder / "run" / "filler").unlink(missing_ok=True)
    return problems


def read_only(first: Assignment, rng: random.Random) -> list[str]:
    """Resuming is refused as a mistake, and nothing is changed."""
    run = first.folder / "run"
    work(replace(first, moment=LATER), ranks=1)
    before = _listing(run)
    if os.path.ismount(run):
        subprocess.run(["mount", "-o", "remount,ro", str(run)], check=True)
    elif os.geteuid() != 0:
        run.chmod(0o555)
    else:
        return ["not possible here: the administrator may write everywhere, and no disk could be mounted"]
    ended = work(replace(first, number=1), ranks=1)
    problems = [] if ended.codes == (2,) else [f"it ended with {ended.codes} instead of 2"]
    if os.path.ismount(run):
        subprocess.run(["mount", "-o", "remount,rw", str(run)], check=True)
    else:
        run.chmod(0o755)
    return problems + ([] if _listing(run) == before else ["the folder has changed"])


def cut_short(first: Assignment, rng: random.Random) -> list[str]:
    """A file of the newest checkpoint has lost its end."""
    path = _a_file(first, rng)
    os.truncate(path, rng.randrange(path.stat().st_size))
    return _passed_over(path)


def bit_flipped(first: Assignment, rng: random.Random) -> list[str]:
    """A bit of a file of the newest checkpoint has changed."""
    path = _a_file(first, rng)
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)
    return _passed_over(path)


def no_manifest(first: Assignment, rng: random.Random) -> list[str]:
    """The newest checkpoint has no manifest."""
    path = _a_file(first, rng).parent / "manifest.json"
    path.unlink()
    return _passed_over(path)


def two_runs(first: Assignment, rng: random.Random) -> list[str]:
    """A second run into the same folder is refused, and the first one does not notice."""
    running = Processes(replace(first, moment=Moment("step", rng.randint(2, 20))), ranks=1)
    try:
        if running.wait_for_news() is not True:
            return [f"the first run ended too early, with {running.wait()}"]
        os.kill(running.pids[0], signal.SIGSTOP)  # it still holds the folder, however fast it is
        second = work(replace(first, number=1), ranks=1)
        os.kill(running.pids[0], signal.SIGCONT)
        ended = running.wait()
    finally:
        running.close()
    return [f"they ended with {ended}, {second.codes}"] if (ended, second.codes) != ((0,), (2,)) else []


def clock_back(first: Assignment, rng: random.Random) -> list[str]:
    """The newer a checkpoint, the older its files look, and the clock goes back by a year for what follows."""
    work(replace(first, moment=LATER), ranks=1)
    for age, folder in enumerate(sorted((first.folder / "run" / "checkpoints").glob("step-*"))):
        for path in (*folder.iterdir(), folder):
            os.utime(path, (1.6e9 - 1e6 * age,) * 2)
    work(replace(first, number=1, clock=-3e7, moment=Moment("step", 6)), ranks=1)
    return []


MISHAPS: Mapping[str, Mishap] = {
    "disk full": disk_full,
    "read-only folder": read_only,
    "file cut short": cut_short,
    "bit flipped": bit_flipped,
    "no manifest": no_manifest,
    "two runs": two_runs,
    "clock back": clock_back,
}
ON_A_DISK_OF_ITS_OWN = ("disk full", "read-only folder")


def _a_file(first: Assignment, rng: random.Random) -> Path:
    """A file of the newest checkpoint of a run that was killed after several of them."""
    work(replace(first, moment=LATER), ranks=1)
    newest = CheckpointStore(first.folder / "run" / "checkpoints", keep_last=1).newest_valid()[0]
    if newest is None:
        raise RuntimeError("there is no checkpoint to be damaged")
    return rng.choice(sorted(path for path in newest.iterdir() if path.stat().st_size))


def _passed_over(path: Path) -> list[str]:
    """The damage is noticed, and there is a checkpoint to go on from."""
    newest, passed_over = CheckpointStore(path.parents[1], keep_last=1).newest_valid()
    noticed = newest is not None and len(passed_over) == 1 and path.parent.name in passed_over[0]
    return [] if noticed else [f"damage of {path.name}: newest {newest}, passed over {passed_over}"]


def _damaged(first: Assignment) -> list[str]:
    newest, passed_over = CheckpointStore(first.folder / "run" / "checkpoints", keep_last=1).newest_valid()
    return passed_over if newest is not None else [*passed_over, "no checkpoint is left"]


def _listing(run: Path) -> dict[str, tuple[int, int]]:
    return {
        str(p.relative_to(run)): (p.stat().st_size, p.stat().st_mtime_ns) for p in sorted(run.rglob("*")) if p.is_file()
    }
