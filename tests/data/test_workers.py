"""Worker processes: the same arrays as without, errors that name samples, and no process left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest

from paddle_stable.data.dataset import SampleOrigin
from paddle_stable.data.loader import Position
from paddle_stable.data.windows import WindowPlan
from paddle_stable.data.workers import Job, SampleError, Share, WorkerDied, Workers, prepare

from .loader_sample import COUNT, SEED, STEPS, Ragged, first, loader_of

PLAN = WindowPlan(Ragged().lengths(), COUNT, 3, 2, 1, SEED)


def jobs(epochs: int) -> list[Job]:
    """All micro-batches of the first epochs."""
    return [
        Job(epoch, number, turn, part)
        for epoch in range(epochs)
        for number, window in enumerate(PLAN.epoch_windows(epoch))
        for turn, part in enumerate(PLAN.deal(window, 0))
    ]


def comparable(arrays: dict[str, Any]) -> list[tuple[str, str, tuple[int, ...], bytes]]:
    return [(name, str(array.dtype), array.shape, array.tobytes()) for name, array in arrays.items()]


@pytest.mark.parametrize("epoch", [0, 3])
def test_what_is_prepared_is_a_function_of_seed_epoch_and_samples_only(epoch: int) -> None:
    together = prepare(Ragged(), [4, 9, 4], seed=SEED, epoch=epoch)
    alone = prepare(Ragged(), [4], seed=SEED, epoch=epoch)
    assert together["label"].tolist() == [4, 9, 4]
    assert together["noise"][0].tolist() == together["noise"][2].tolist() == alone["noise"][0].tolist()
    others = [prepare(Ragged(), [4], seed=SEED + 1, epoch=epoch), prepare(Ragged(), [4], seed=SEED, epoch=epoch + 1)]
    assert all(other["noise"].tolist() != alone["noise"].tolist() for other in others)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("asked", [slice(0), slice(1), slice(5), slice(None), slice(7, 13)], ids=str)
def test_arrays_come_in_the_order_of_the_jobs(count: int, asked: slice) -> None:
    """Also where the jobs are fewer than the workers hold ahead, begin in the middle, or go on into the next epoch."""
    wanted = jobs(2)[asked]
    expected = [comparable(prepare(Ragged(), job.part.indices, seed=SEED, epoch=job.epoch)) for job in wanted]
    with Workers(Share(Ragged(), PLAN, 0, SEED), count) as workers:
        assert [comparable(arrays) for arrays in workers.prepared(wanted)] == expected


def test_only_so_many_jobs_are_taken_ahead() -> None:
    taken: list[Job] = []

    def counted() -> Iterator[Job]:
        for job in jobs(2):
            taken.append(job)
            yield job

    with Workers(Share(Ragged(), PLAN, 0, SEED), 2) as workers:
        arrays = workers.prepared(counted())
        for fetched in range(1, 4):
            next(arrays)
            assert len(taken) == 2 * 2 + fetched


def test_closing_twice_is_closing_once() -> None:
    workers = Workers(Share(Ragged(), PLAN, 0, SEED), 2)
    assert len(multiprocessing.active_children()) == 2
    for _ in range(2):
        workers.close()
        assert multiprocessing.active_children() == []


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (1, "Reading failed: OSError: gone\nSample: rows.txt:1 (row 0)"),
        (2, "Reading failed: OSError: gone\nSample: \n  rows.txt:1 (row 0)\n  rows.txt:2 (row 1)"),
        (20, "  rows.txt:20 (row 19)"),
        (23, "  rows.txt:20 (row 19)\n  and 3 more"),
    ],
)
def test_an_error_names_up_to_twenty_samples_and_counts_the_others(count: int, said: str) -> None:
    error = SampleError("Reading", [Ragged().origin(index) for index in range(count)], "OSError: gone")
    assert str(error).endswith(said)
    assert str(error).count("rows.txt") == min(count, 20)


@pytest.mark.parametrize(
    "error",
    [
        SampleError("Reading", [SampleOrigin("a.txt", 3, "x")], "OSError: gone", "In the worker process:\n..."),
        WorkerDied("was killed by SIGKILL", [SampleOrigin("a.txt", 3, "x")]),
    ],
    ids=["sample", "death"],
)
def test_an_error_passes_through_a_pipe_unchanged(error: Exception) -> None:
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs:
        ours.send(error)
        again = theirs.recv()
    assert (type(again), str(again), again.args) == (type(error), str(error), error.args)


def fail_at(index: int, how: Callable[[], object]) -> Callable[[int], object]:
    return lambda asked: how() if asked == index else None


def unreadable() -> NoReturn:
    raise OSError("cannot be read")


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_sample_that_fails_is_named_when_its_window_comes(workers: int, uninterrupted: list[tuple[Any, ...]]) -> None:
    bad = uninterrupted[3][2][2]
    loader = loader_of(workers=workers, dataset=Ragged(fail_at(bad, unreadable)))
    windows = loader.steps()
    assert first(windows, 3) == uninterrupted[:3]
    with pytest.raises(SampleError) as raised:
        next(windows)
    message = f"Preparing a sample failed: OSError: cannot be read\nSample: rows.txt:{bad + 1} (row {bad})"
    assert str(raised.value).startswith(message)
    assert raised.value.origins == (Ragged().origin(bad),)
    assert loader.position == Position(0, 3)
    if workers:
        assert 'raise OSError("cannot be read")' in raised.value.details
    else:
        assert isinstance(raised.value.__cause__, OSError)


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_that_do_not_fit_together_are_all_named(workers: int, uninterrupted: list[tuple[Any, ...]]) -> None:
    with pytest.raises(SampleError, match="Collating a batch failed: TypeError: cannot be stacked") as raised:
        next(loader_of(workers=workers, dataset=Ragged(bad_batch=True)).steps())
    assert raised.value.origins == tuple(Ragged().origin(index) for index in uninterrupted[0][3][0][0])


@pytest.mark.parametrize(
    ("death", "how"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "was killed by SIGKILL"),
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "was killed by SIGSEGV"),
        (lambda: os._exit(3), "ended with 3"),
    ],
    ids=["killed", "crashed", "left"],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_that_dies_names_the_samples_it_had(
    workers: int, death: Callable[[], object], how: str, uninterrupted: list[tuple[Any, ...]]
) -> None:
    indices = uninterrupted[1][3][1][0]  # second micro-batch of the second window
    windows = loader_of(workers=workers, dataset=Ragged(fail_at(indices[-1], death))).steps()
    assert first(windows, 1) == uninterrupted[:1]
    with pytest.raises(WorkerDied, match=f"A worker process {how}") as raised:
        next(windows)
    assert raised.value.origins == tuple(Ragged().origin(index) for index in indices)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_workers_leave_signals_to_the_training_process(
    number: signal.Signals, uninterrupted: list[tuple[Any, ...]]
) -> None:
    windows = loader_of(workers=2).steps()
    assert first(windows, 1) == uninterrupted[:1]
    for worker in multiprocessing.active_children():
        for _ in range(3):
            os.kill(worker.pid or 0, number)
    assert first(windows, 2 * STEPS) == uninterrupted[1 : 2 * STEPS + 1]


def test_workers_go_when_the_iteration_is_given_up() -> None:
    for window in loader_of(workers=2).steps():
        assert len(multiprocessing.active_children()) == 2
        assert window.index == 0
        break
    assert multiprocessing.active_children() == []


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def all_gone(processes: Sequence[int]) -> bool:
    """Wait for processes to end; False when some are still there after a time that is too long for any machine."""
    for _ in range(600):
        if not any(is_running(process) for process in processes):
            return True
        time.sleep(0.1)
    return False


ABANDONED = """
import multiprocessing, os, signal, sys, time
sys.path[:0] = {paths!r}
from loader_sample import loader_of
ends = {{
    "ends": lambda: None,
    "exits": lambda: sys.exit(75),
    "leaves": lambda: os._exit(4),
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
}}
for name in ends:
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
else:
    sys.exit(0)
windows = loader_of(workers=2).steps()
next(windows)
bystander = os.fork()  # another child that holds copies of all pipes
if bystander == 0:
    os.close(1)
    time.sleep(600)
print(name, bystander, *(worker.pid for worker in multiprocessing.active_children()), end=" ", flush=True)
ends[name]()
"""
CODES = {"ends": 0, "exits": 75, "leaves": 4, "killed": -signal.SIGKILL}


def test_workers_do_not_outlive_the_training_process_nor_hold_it_up() -> None:
    here = Path(__file__).resolve()
    script = ABANDONED.format(paths=[str(here.parent), str(here.parents[2])])
    run = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, timeout=300, check=True)
    seen = [line.split() for line in run.stdout.splitlines()[-len(CODES) :]]
    assert {name: int(code) for name, *_, code in seen} == CODES
    for _, bystander, *workers, _ in seen:
        assert len(workers) == 2
        gone = all_gone([int(worker) for worker in workers])
        os.kill(int(bystander), signal.SIGKILL)
        assert gone
