"""Turning planned micro-batches into arrays, ahead of their use, in processes of their own.

`paddle.io.DataLoader` is not used for this (seen with Paddle 3.3.1): when one of its processes dies it raises from a
SIGCHLD handler wherever the main thread happens to be, in the middle of saving a checkpoint for example, without
naming a sample, and it draws from NumPy's global generator.
"""

from __future__ import annotations

import atexit
import gc
import multiprocessing
import os
import signal
import traceback
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle, islice
from multiprocessing.connection import Connection
from types import TracebackType
from typing import final

from paddle_stable.data.dataset import Array, Dataset, SampleOrigin
from paddle_stable.data.windows import Part, WindowPlan
from paddle_stable.seeding import sample_generator

_JOBS_AHEAD = 2
"""Micro-batches of one worker that are being prepared or wait to be fetched."""
_PARENT_CHECK_SECONDS = 1.0
_NAMED_AT_MOST = 20


@final
class SampleError(Exception):
    """Preparing samples failed. Says which ones, by file and line."""

    def __init__(self, action: str, origins: Sequence[SampleOrigin], reason: str, details: str = "") -> None:
        super().__init__(action, tuple(origins), reason, details)
        self.action = action
        self.origins = tuple(origins)
        """The sample that failed; all samples of the micro-batch where it cannot be told which."""
        self.reason = reason
        self.details = details
        """Traceback of a worker process; empty in the training process, where the cause is chained."""

    def __str__(self) -> str:
        more = len(self.origins) - _NAMED_AT_MOST
        named = [str(origin) for origin in self.origins[:_NAMED_AT_MOST]] + ([f"and {more} more"] if more > 0 else [])
        where = named[0] if len(named) == 1 else "".join(f"\n  {name}" for name in named)
        return f"{self.action} failed: {self.reason}\nSample: {where}" + (f"\n{self.details}" if self.details else "")


@final
class WorkerDied(Exception):
    """A worker process is gone. Says how, and which samples it was preparing, which need not be at fault."""

    def __init__(self, how: str, origins: Sequence[SampleOrigin]) -> None:
        super().__init__(how, tuple(origins))
        self.how = how
        self.origins = tuple(origins)

    def __str__(self) -> str:
        named = "".join(f"\n  {origin}" for origin in self.origins[:_NAMED_AT_MOST])
        return (
            f"A worker process {self.how} (SIGKILL: perhaps out of memory). With data.workers: 0 the training process "
            f"prepares the batch itself and shows what happens. It was preparing:{named}"
        )


@final
@dataclass(frozen=True, slots=True)
class Job:
    """One planned micro-batch and its place in the plan."""

    epoch: int
    window: int
    """Number of the window in the epoch."""
    turn: int
    """Number of the micro-batch among this rank's in the window."""
    part: Part


def prepare(dataset: Dataset, indices: Sequence[int], *, seed: int, epoch: int) -> dict[str, Array]:
    """The collated arrays of some samples: a function of its arguments only.

    Raises:
        SampleError: when a sample or the collation fails, naming the samples' origins.
    """
    samples = []
    for index in indices:
        try:
            samples.append(dataset.sample(index, sample_generator(seed, epoch, index)))
        except Exception as error:
            raise SampleError("Preparing a sample", [dataset.origin(index)], _reason(error)) from error
    try:
        return dataset.collate(samples)
    except Exception as error:
        origins = [dataset.origin(index) for index in indices]
        raise SampleError("Collating a batch", origins, _reason(error)) from error


@final
@dataclass(frozen=True)
class Share:
    """What one process has to prepare: enough to compute any of its micro-batches from the place alone."""

    dataset: Dataset
    plan: WindowPlan
    rank: int
    seed: int
    """Anything random in a sample is a function of (seed, epoch, sample)."""


@final
class Workers:
    """Processes that prepare jobs ahead, started on construction and stopped by leaving the `with` block.

    They are forked, so that the dataset is shared and not copied. They compute with NumPy only and hold no lock, file
    or shared memory of this process, so they can be killed at any moment; they ignore SIGINT and SIGTERM, which
    reach the whole process group and are for the training process to answer, and leave when that process is gone.
    """

    def __init__(self, share: Share, count: int) -> None:
        self._share = share
        self._context = multiprocessing.get_context("fork")
        self._processes: list[multiprocessing.process.BaseProcess] = []
        self._connections: list[Connection] = []
        # Python joins its child processes when it ends, before it collects a suspended `with` block: it would wait for
        # ever for processes that ignore SIGTERM. What is registered last is called first.
        atexit.register(self.close)
        for _ in range(count):
            self._start()

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def prepared(self, jobs: Iterable[Job]) -> Iterator[dict[str, Array]]:
        """The arrays of every job, in the order of the jobs, however fast each worker is.

        Raises:
            SampleError: when a sample cannot be prepared or a worker process dies, at the job concerned.
        """
        remaining = iter(jobs)
        turns = cycle(range(len(self._processes)))
        waiting: deque[tuple[int, Job]] = deque()
        for job in islice(remaining, _JOBS_AHEAD * len(self._processes)):
            waiting.append((self._send(next(turns), job), job))
        while waiting:
            worker, job = waiting.popleft()
            arrays = self._receive(worker, job)
            # The worker that has just answered is the next in turn, because every one has its fixed share of jobs.
            for following in islice(remaining, 1):
                waiting.append((self._send(next(turns), following), following))
            yield arrays

    def close(self) -> None:
        """Stop all processes at once; nothing of what they prepared is kept. May be called again."""
        atexit.unregister(self.close)
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        for connection in self._connections:
            connection.close()

    def _start(self) -> None:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(
            target=_serve,
            args=(self._share, theirs, [*self._connections, ours], os.getpid()),
            daemon=True,
        )
        with warnings.catch_warnings():
            # Python 3.12 warns of forking beside threads: their locks stay locked in the child. Ours takes none.
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        theirs.close()
        self._processes.append(process)
        self._connections.append(ours)

    def _send(self, worker: int, job: Job) -> int:
        """Ask a worker for a job. Three numbers always fit into the pipe, so that both ends never wait to write."""
        with suppress(OSError):  # when the process is gone, that is reported at the first job that it still owes
            self._connections[worker].send((job.epoch, job.window, job.turn))
        return worker

    def _receive(self, worker: int, job: Job) -> dict[str, Array]:
        try:
            answer: dict[str, Array] | SampleError = self._connections[worker].recv()
        except (EOFError, OSError):
            raise self._death(worker, job) from None
        if isinstance(answer, SampleError):
            raise answer
        return answer

    def _death(self, worker: int, job: Job) -> WorkerDied:
        process = self._processes[worker]
        process.join(_PARENT_CHECK_SECONDS)
        code = process.exitcode
        how = f"was killed by {signal.Signals(-code).name}" if code is not None and code < 0 else f"ended with {code}"
        return WorkerDied(how, [self._share.dataset.origin(index) for index in job.part.indices])


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _serve(share: Share, connection: Connection, inherited: Sequence[Connection], parent: int) -> None:
    """Main function of a worker process: answer jobs until the training process is gone."""
    gc.freeze()  # what was inherited is the parent's: collecting it here could close or flush what the parent uses
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    for other in inherited:
        other.close()
    epoch, windows = 0, share.plan.epoch_windows(0)
    while (address := _next_address(connection, parent)) is not None:
        if address[0] != epoch:
            epoch, windows = address[0], share.plan.epoch_windows(address[0])
        part = share.plan.deal(windows[address[1]], share.rank)[address[2]]
        try:
            connection.send(_answer(share, part, epoch))
        except BrokenPipeError:
            return


def _next_address(connection: Connection, parent: int) -> tuple[int, int, int] | None:
    """Epoch, window and turn of the next job; None when the training process is gone."""
    try:
        # Another child of the parent may hold a copy of the pipe's other end, which then never ends by itself.
        while not connection.poll(_PARENT_CHECK_SECONDS):
            if os.getppid() != parent:
                return None
        address: tuple[int, int, int] = connection.recv()
    except (EOFError, OSError):
        return None
    return address


def _answer(share: Share, part: Part, epoch: int) -> dict[str, Array] | SampleError:
    try:
        return prepare(share.dataset, part.indices, seed=share.seed, epoch=epoch)
    except SampleError as error:
        details = "In the worker process:\n" + "".join(traceback.format_exception(error.__cause__))
        return SampleError(error.action, error.origins, error.reason, details)
