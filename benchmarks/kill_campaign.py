"""Runs that are killed at random moments and resumed, compared bit for bit with runs that were left alone.

python benchmarks/kill_campaign.py --budget-minutes 60       then the same again goes on where it stopped
python benchmarks/kill_campaign.py --recipes lstm_forecast --kills 6 --controls 1 --mishaps

Every recipe of configs/ trains at its `smoke:` sizes on made-up data, with three poisoned steps that make it roll
back. Each of its runs is killed by SIGKILL one to five times (in a step, in a save, while a checkpoint is written in
the background, in a rollback, in an evaluation, or anywhere; one process or two) and resumed with `--resume auto`
until it is done. Then parameters, moments, every file of every kept checkpoint, metrics and all recorded values but
speeds must be those of `tools/train.py` left alone (for two processes, of Paddle's launcher), and every sample of
every epoch must have been seen once. Other runs meet a full disk, a read-only folder, damaged checkpoints, a second
run, a clock that moves back. As a control, some are resumed without their place in the data: they have to differ.

The processes are forks of this one, which has imported Paddle and not used it: that saves their start of several
seconds. One JSON line a finished run goes to --out; the table is made from all lines of this seed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import random
import shutil
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks.campaign.child import Assignment, Moment
from benchmarks.campaign.judging import differences, result_of, sample_problems
from benchmarks.campaign.mishaps import MISHAPS, ON_A_DISK_OF_ITS_OWN, small_disk
from benchmarks.campaign.processes import plain_run, work
from benchmarks.finished_cells import append, finished
from paddle_stable.recipe_io import load_recipe
from paddle_stable.tool_start import start_tool

STEPS = 30
COURSE: dict[str, Any] = {
    "run.epochs": None, "run.steps": STEPS, "run.log_every": 1, "run.eval_every": 6, "run.save_every": 3,
    "run.keep_last": 3, "faults": [{"step": 16, "kind": "nan_grad", "steps": 3}],
    "stability.max_consecutive_skips": 3, "stability.recovery.snapshot_every": 4,
    "stability.recovery.healthy_steps": 2, "stability.recovery.rewarm_steps": 3,
}  # fmt: skip
PROCESSES = 9
"""That a run may take."""
KILLED_IN = ("step", "save", "writing", "rollback", "evaluation", "anywhere")


@final
@dataclass(frozen=True)
class Cell:
    """One run of the campaign."""

    recipe: str
    what: str
    """kill, control, or a mishap."""
    number: int

    @property
    def key(self) -> str:
        """Name in the file of finished runs."""
        return f"{self.recipe} {self.what} {self.number}"


@final
class Course:
    """A recipe for a number of processes: what its runs share, and how the one that was left alone ended."""

    def __init__(self, recipe: Path, ranks: int, folder: Path) -> None:
        """Train it once as a user would, and then as the campaign does, to know how long things take."""
        self.ranks = ranks
        self._recipe, self._folder = str(recipe), folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self._values = {**load_recipe(self._recipe).task_class.write_sample_data(folder / "data"), **COURSE}
        plain_run(self._recipe, {**self._values, "run.output_dir": str(folder / "run")}, folder, ranks)
        self.expected = result_of(folder / "run")
        newest = folder / "run" / "checkpoints" / self.expected["newest"]
        self._plan = json.loads((newest / "state.json").read_text(encoding="utf8"))["plan"]
        while True:
            rehearsal = self.assignment("rehearsal")
            started = time.monotonic()
            ended = work(rehearsal, ranks=ranks)
            self.seconds = time.monotonic() - started
            if not import_all(json.loads((rehearsal.folder / "modules.json").read_text(encoding="utf8"))):
                break  # nothing had to be imported: it took as long as the runs to come will take
        problems = self.problems(rehearsal)
        if ended.codes != (0,) * ranks or problems:
            raise RuntimeError(f"a fork of {recipe.stem} that is left alone: {ended.codes}, {problems}")
        self._usual = [
            json.loads((rehearsal.folder / f"phases{r}.json").read_text(encoding="utf8")) for r in range(ranks)
        ]

    def assignment(self, name: str, **values: Any) -> Assignment:
        """For the first process of a run."""
        folder = self._folder / name.replace(" ", "-")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return Assignment(
            self._recipe, {**self._values, **values, "run.output_dir": str(folder / "run")}, folder, number=0
        )

    def moment(self, phase: str, rank: int, rng: random.Random, *, resumed: bool) -> tuple[Moment, float]:
        """A random moment in a phase, and the seconds from its beginning to the kill."""
        count, seconds = self._usual[rank][phase]
        # A resumed process enters it less often: the earlier times are certain to come.
        number = rng.randint(1, max(1, count // 2 if resumed else count))
        return Moment(phase, number), rng.random() * seconds

    def problems(self, last: Assignment) -> list[str]:
        """Everything in which a finished run is not as it should be."""
        plan = self._plan
        epoch = -(-plan["samples"] // plan["samples a step"])
        found = differences(last.folder / "run", self.expected)
        return found + sample_problems(last.folder, self.ranks, STEPS, plan["samples"], epoch)


def killed_run(course: Course, cell: Cell, rng: random.Random) -> dict[str, Any]:
    """Kill a run as often as the plan says, and resume it until it is done."""
    kills = 5 if cell.number % 10 == 9 else rng.randint(1, 3)
    control = cell.what == "control"
    assignment = course.assignment(cell.key, **{"data.workers": 2 if rng.random() < 0.25 else 0})
    hits: list[str] = []
    problems: list[str] = []
    for number in range(PROCESSES):
        assignment = replace(assignment, number=number, forgets_position=control and number > 0)
        ended = _one_more_kill(course, cell, assignment, rng) if len(hits) < kills else work(
            replace(assignment, moment=None), ranks=course.ranks
        )  # fmt: skip
        if ended.killed and not ended.hung:
            hits.append(ended.phase)
            continue
        if ended.hung or any(ended.codes):
            problems.append(f"process {number} ended with {ended.codes}{', hung' if ended.hung else ''}")
        break
    return {"hits": hits, "resumes": number, "problems": problems + course.problems(assignment)}


def _one_more_kill(course: Course, cell: Cell, assignment: Assignment, rng: random.Random) -> Any:
    number = assignment.number
    # The first kill of runs one after the other goes through all phases; a control needs a place to be forgotten.
    phase = KILLED_IN[cell.number % len(KILLED_IN)] if number == 0 else rng.choice(KILLED_IN)
    victim = rng.randrange(course.ranks) if phase != "writing" else 0
    together = rng.random() < 0.5
    if cell.what == "control":
        moment = Moment("step", 11 if number == 0 else 40)
        return work(replace(assignment, moment=moment), ranks=course.ranks, victim=victim)
    if phase == "anywhere":
        after = rng.random() * course.seconds
        return work(
            replace(assignment, moment=None), ranks=course.ranks, victim=victim, after=after, all_at_once=together
        )
    moment, delay = course.moment(phase, victim, rng, resumed=number > 0)
    return work(
        replace(assignment, moment=moment), ranks=course.ranks, victim=victim, delay=delay, all_at_once=together
    )


def mishap_run(course: Course, cell: Cell, rng: random.Random) -> dict[str, Any]:
    """Let a run meet a mishap, and resume it until it is done."""
    assignment = course.assignment(cell.key)
    mine = cell.what in ON_A_DISK_OF_ITS_OWN
    with small_disk(assignment.folder / "run") if mine else contextlib.nullcontext():
        problems = MISHAPS[cell.what](assignment, rng)
        if cell.what != "two runs":  # there the first one has gone on to its end
            assignment = replace(assignment, number=9)
            ended = work(assignment, ranks=1)
            if ended.codes != (0,):
                problems.append(f"the resumed run ended with {ended.codes}")
        return {"hits": [], "resumes": 1, "problems": problems + course.problems(assignment)}


class Campaign:
    """All cells, and the file of those that are finished."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._courses: dict[tuple[str, int], Course] = {}
        self._finished = self._read()

    def cells(self) -> Iterator[Cell]:
        """Turn about, so that a budget that is too small leaves something of everything."""
        a = self._arguments
        todo: dict[str, list[Cell]] = defaultdict(list)
        for recipe in a.recipes:
            kills = a.kills if a.kills is not None else (100 if recipe.startswith("lstm") else 20)
            todo[recipe] += [Cell(recipe, "control", n) for n in range(a.controls)]
            mishaps = [Cell(recipe, name, 0) for name in a.mishaps]
            runs = [Cell(recipe, "kill", n) for n in range(kills)]
            for number in range(max(len(mishaps), len(runs))):
                todo[recipe] += runs[number : number + 1] + mishaps[number : number + 1]
        for number in range(max(map(len, todo.values()))):
            for cells in todo.values():
                yield from cells[number : number + 1]

    def run(self) -> None:
        """All cells that are not finished, until the budget is used up."""
        deadline = time.monotonic() + 60.0 * self._arguments.budget_minutes
        for cell in self.cells():
            if cell.key in self._finished:
                continue
            if time.monotonic() > deadline:
                break
            started = time.monotonic()
            rng = random.Random(f"{self._arguments.seed} {cell.key}")
            # Every third killed run has two processes, whatever phase it is killed in.
            two = cell.what == "kill" and cell.number % 3 == (cell.number // len(KILLED_IN)) % 3
            ranks = min(2, self._arguments.ranks) if two else 1
            course = self._course(cell.recipe, ranks)
            outcome = (mishap_run if cell.what in MISHAPS else killed_run)(course, cell, rng)
            self._write(cell, ranks, outcome, time.monotonic() - started)

    def table(self) -> str:
        """Runs, kills by phase, and what was lost, as Markdown."""
        lines = ["| recipe | what | runs | of 2 processes | kills | resumes | lost |", "|---|---|---|---|---|---|---|"]
        groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
        for one in self._finished.values():
            groups[one["recipe"], one["what"]].append(one)
        hits: Counter[str] = Counter()
        for (recipe, what), runs in groups.items():
            lost = sum(bool(one["problems"]) for one in runs)
            shown = f"{lost} of {len(runs)} differ, as they have to" if what == "control" else str(lost)
            two, resumes = sum(one["ranks"] == 2 for one in runs), sum(one["resumes"] for one in runs)
            kills = sum(len(one["hits"]) for one in runs)
            lines.append(f"| {recipe} | {what} | {len(runs)} | {two} | {kills} | {resumes} | {shown} |")
            if what == "kill":
                hits.update(hit for one in runs for hit in one["hits"])
        total = sum(1 for _ in self.cells())
        shown = ", ".join(f"{phase} {count}" for phase, count in hits.most_common())
        lines += ["", f"From {len(self._finished)} of {total} runs; lost: {len(self.losses())}. Killed in: {shown}."]
        return "\n".join(lines + [f"LOST {one['key']}: {'; '.join(one['problems'])}" for one in self.losses()])

    def losses(self) -> list[dict[str, Any]]:
        """Runs that are not as they should be: those with a problem, and controls without."""
        return [one for one in self._finished.values() if bool(one["problems"]) != (one["what"] == "control")]

    def _course(self, recipe: str, ranks: int) -> Course:
        if (recipe, ranks) not in self._courses:
            folder = self._arguments.work / f"{recipe}-{ranks}"
            self._courses[recipe, ranks] = Course(ROOT / "configs" / f"{recipe}.yaml", ranks, folder)
        return self._courses[recipe, ranks]

    def _read(self) -> dict[str, dict[str, Any]]:
        lines = finished(self._arguments.out)
        keys = {cell.key for cell in self.cells()}
        return {one["key"]: one for one in lines if one["seed"] == self._arguments.seed and one["key"] in keys}

    def _write(self, cell: Cell, ranks: int, outcome: dict[str, Any], seconds: float) -> None:
        line = {
            "key": cell.key, "recipe": cell.recipe, "what": cell.what, "ranks": ranks, "seed": self._arguments.seed,
            **outcome, "seconds": round(seconds, 1),
        }  # fmt: skip
        self._finished[cell.key] = line
        append(self._arguments.out, line)
        print(f"{cell.key} ({ranks}): {outcome['hits']} {outcome['problems'] or 'equal'} {seconds:.1f} s", flush=True)


def import_all(names: list[str]) -> bool:
    """Import here, once, what a fork had to import: the next ones find it done. False when there was nothing new."""
    before = len(sys.modules)
    for name in names:
        if name not in sys.modules and not name.startswith("__"):
            with contextlib.suppress(Exception):  # some modules are not meant to be imported by their name
                importlib.import_module(name)
    return len(sys.modules) > before


def main() -> int:
    """Run what is left, print the table; 1 when anything was lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shipped = sorted(path.stem for path in (ROOT / "configs").glob("*.yaml"))
    parser.add_argument("--recipes", nargs="+", choices=shipped, default=shipped, help="(all)")
    parser.add_argument("--kills", type=int, help="killed runs a recipe (100 for the LSTM, 20 for others)")
    parser.add_argument("--controls", type=int, default=2, help="controls a recipe (%(default)s)")
    parser.add_argument("--mishaps", nargs="*", choices=MISHAPS, default=list(MISHAPS), help="(all)")
    parser.add_argument("--ranks", type=int, default=2, choices=(1, 2), help="most processes of a run (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of kinds, phases and moments (%(default)s)")
    there = ROOT / "runs" / "kill_campaign"
    parser.add_argument("--out", type=Path, default=there / "runs.jsonl", help="finished runs")
    parser.add_argument("--work", type=Path, default=there / "work", help="run folders; removed and made anew")
    parser.add_argument("--budget-minutes", type=float, default=30.0, help="begin no further run after that")
    arguments = parser.parse_args()
    arguments.work = arguments.work.resolve()
    start_tool()
    campaign = Campaign(arguments)
    campaign.run()
    print(campaign.table())
    return int(bool(campaign.losses()))


if __name__ == "__main__":
    sys.exit(main())
