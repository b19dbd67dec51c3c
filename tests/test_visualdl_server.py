"""What VisualDL's server answers about a run: every tag and value, no NaN, and no step twice while a run resumes."""

from __future__ import annotations

import json
import math
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import ProxyHandler, Request, build_opener

import numpy as np
import pytest

from paddle_stable.stability.monitor import Monitor
from paddle_stable.stability.step_report import SkipReason, StepReport, Verdict
from paddle_stable.visualdl_writer import load_visualdl
from paddle_stable.writers import RunRecord

NAN, INF = math.nan, math.inf
TRIES = 600
"""Times that a starting server is asked, a tenth of a second apart."""


class Server:
    """A VisualDL server that shows one folder, asked as its page asks it."""

    def __init__(self, logdir: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._address = f"127.0.0.1:{free.getsockname()[1]}"
        host, port = self._address.split(":")
        command = [sys.executable, "-c", "from visualdl.server.app import main; main()"]
        options = ["--logdir", str(logdir), "--host", host, "--port", port, "--disable-telemetry"]
        # An answer must come from the file as it is now.
        options += ["--cache-timeout", "0.0001"]
        self.process = subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._opener = build_opener(ProxyHandler({}))

    def wait(self) -> None:
        """Until it answers."""
        for _ in range(TRIES):
            try:
                self.ask("runs")
            except (URLError, ConnectionError):
                assert self.process.poll() is None, "VisualDL's server has ended"
                time.sleep(0.1)
            else:
                return
        raise AssertionError("VisualDL's server does not answer")

    def raw(self, question: str, **arguments: str) -> str:
        """The body of an answer. A client that names no language gets an error from VisualDL."""
        url = f"http://{self._address}/app/api/{question}?{urlencode(arguments)}"
        with self._opener.open(Request(url, headers={"Accept-Language": "en"}), timeout=30) as answer:
            return str(answer.read().decode())

    def ask(self, question: str, **arguments: str) -> Any:
        """The data of an answer."""
        answer = json.loads(self.raw(question, **arguments))
        assert answer["status"] == 0, answer
        return answer["data"]

    def curve(self, run: Path, tag: str) -> list[tuple[int, float]]:
        """(step, value) of a tag, as plotted."""
        text = self.raw("scalar/list", run=str(run), tag=tag)
        assert "NaN" not in text
        assert "nan" not in text
        assert "inf" not in text.lower()
        return [(step, value) for _, step, value in json.loads(text)["data"]]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    try:
        server.wait()
        yield server
    finally:
        server.process.terminate()
        server.process.wait()


def report_of(step: int) -> StepReport:
    """Every fourth step is skipped for a NaN."""
    if step % 4 == 0:
        verdict = Verdict(NAN, 4, INF, 1.0, clipped=False, skipped=SkipReason.NONFINITE)
    else:
        verdict = Verdict(1 / step, 4, float(step), 0.5, clipped=True, skipped=None, group_norms={"fc": step / 2})
    return StepReport(step, 0.0, verdict, 0.5, seconds=0.1, data_seconds=0.01)


def play(record: RunRecord, monitor: Monitor, first: int, last: int) -> None:
    for step in range(first, last + 1):
        report = report_of(step)
        monitor.update(report)
        record.step(report, monitor.scalars())
        if step % 5 == 0:
            record.evaluation(step, {"accuracy": step / 16, "loss": NAN})
            record.histograms(step, {"parameters/fc.weight": np.arange(float(step)), **monitor.group_norms()})


def test_a_page_that_is_open_while_a_run_resumes_shows_every_step_once(server: Server, tmp_path: Path) -> None:
    load_visualdl()
    run = tmp_path / "run"
    record = RunRecord.open(run, total_steps=16, resume_step=None)
    record.text("recipe", "run: {}")
    monitor = Monitor(10)
    play(record, monitor, 1, 6)
    state = monitor.state()
    play(record, monitor, 7, 11)
    record.close()

    losses = [(step, float(np.float32(1 / step))) for step in range(1, 17) if step % 4]
    assert server.ask("runs") == [str(run)]
    assert server.curve(run, "train/loss") == losses[:9]

    record = RunRecord.open(run, total_steps=16, resume_step=6)
    assert server.curve(run, "train/loss") == losses[:9]
    play(record, Monitor.from_state(10, state), 7, 16)
    record.hyper_parameters({"lr": 0.5, "amp": "float32"}, {"accuracy": 0.75})
    record.close()

    assert server.curve(run, "train/loss") == losses
    assert server.curve(run, "stability/skipped_nonfinite") == [(step, float(step // 4)) for step in range(1, 17)]
    # A skipped step has two such values, and each evaluation of this run one more.
    assert server.curve(run, "stability/nonfinite_values") == [
        (step, float(2 * (step // 4) + (step - 1) // 5)) for step in range(1, 17)
    ]
    assert server.curve(run, "stability/clip_rate") == [(step, 1.0) for step in range(1, 17)]
    assert server.curve(run, "eval/accuracy") == [(5, 0.3125), (10, 0.625), (15, 0.9375)]
    assert server.curve(run, "final/accuracy") == [(16, 0.75)]
    check_everything_else(server, run)


def check_everything_else(server: Server, run: Path) -> None:
    """Tags, histograms, text and hyper-parameters, as the page's tabs ask for them."""
    tags = server.ask("scalar/tags")
    assert tags["runs"] == [str(run)]
    assert set(tags["tags"][0]) == {*tags_of_the_monitor(), "eval/accuracy", "final/accuracy"}
    assert server.ask("histogram/tags")["tags"] == [["parameters/fc.weight", "grad_norm/fc"]]
    for tag in "parameters/fc.weight", "grad_norm/fc":
        histograms = server.ask("histogram/list", run=str(run), tag=tag)
        assert [step for _, step, _ in histograms] == [5, 10, 15]
    assert server.ask("text/tags")["tags"] == [["recipe"]]
    assert server.raw("text/text", run=str(run), tag="recipe", index="0") == "run: {}"
    assert server.ask("hparams/list") == [
        {"name": str(run), "hparams": {"lr": 0.5, "amp": "float32"}, "metrics": {"final/accuracy": 0.75}}
    ]


def tags_of_the_monitor() -> set[str]:
    monitor = Monitor(1)
    monitor.update(report_of(1))
    return set(monitor.scalars())
