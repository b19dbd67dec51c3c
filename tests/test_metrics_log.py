"""metrics.jsonl: the same records come back, whatever killed the run, and none is there twice after a resume."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddle_stable.errors import InputError
from paddle_stable.metrics_log import (
    BUCKETS,
    LARGEST,
    SAMPLED,
    Histogram,
    HyperParameters,
    Image,
    MetricsLog,
    Record,
    Scalars,
    Text,
    count_left_out,
    read_records,
)

NAN, INF = math.nan, math.inf

ONE_OF_EACH: list[Record] = [
    Text(step=0, tag="recipe", text="run:\n  steps: 3  # 步\u2028"),
    Scalars.of(1, {"train/loss": 1 / 3, "train/lr": 1e-300, "stability/grad_norm": NAN, "whole": 3.0}),
    Histogram.of(1, "parameters/fc.weight", np.linspace(-1, 1, 1001, dtype=np.float32)),
    Image(step=1, tag="forecast", path="pictures/a.png"),
    Scalars.of(2, {"eval/accuracy": 0.5}),
    HyperParameters.of(2, {"lr": 0.1, "seed": 1, "amp": "float16"}, {"accuracy": 0.5, "loss": INF}),
]


def write(path: Path, records: list[Record]) -> None:
    log = MetricsLog.create(path)
    for record in records:
        log.append(record)
    log.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def test_every_kind_of_record_comes_back_exactly(path: Path) -> None:
    write(path, ONE_OF_EACH)
    assert read_records(path) == ONE_OF_EACH


def test_a_line_is_plain_json_with_step_and_scalars(path: Path) -> None:
    write(path, [Scalars.of(10, {"train/loss": 0.25, "train/lr": NAN})])
    line = json.loads(path.read_text("utf8"))
    assert line["step"] == 10
    assert line["scalars"] == {"train/loss": 0.25}
    assert line["dropped"] == ["train/lr"]


@pytest.mark.parametrize("bad", [NAN, INF, -INF, 2 * LARGEST, np.float32(NAN), np.float64(-INF)])
def test_a_value_that_cannot_be_plotted_is_dropped_and_counted(bad: float) -> None:
    records: list[Record] = [
        Scalars.of(1, {"a": 1.0, "b": bad}),
        HyperParameters.of(1, {}, {"a": 1.0, "b": bad, "c": bad}),
        Histogram.of(1, "h", np.array([1.0, 2.0])),
        Text(step=1, tag="t", text="nan"),
    ]
    for record in records[:2]:
        assert isinstance(record, Scalars | HyperParameters)
        assert "b" in record.dropped
        assert (record.scalars if isinstance(record, Scalars) else record.metrics) == {"a": 1.0}
    assert count_left_out(records) == 3


@pytest.mark.parametrize("value", [0.0, -LARGEST, LARGEST, 1e-45, np.float32(0.1), np.int64(3)])
def test_a_finite_value_is_kept_as_it_is(value: float) -> None:
    assert Scalars.of(1, {"a": value}).scalars == {"a": float(value)}


def test_nothing_gets_a_nonfinite_value_into_a_record() -> None:
    with pytest.raises(ValueError, match="finite number"):
        Scalars(step=1, scalars={"a": NAN})


class TestHistogram:
    """A compact count of an array's values."""

    def test_counts_are_those_of_numpy(self) -> None:
        values = np.random.default_rng(0).normal(size=(50, 40)).astype(np.float32)
        found = Histogram.of(3, "h", values)
        counts, edges = np.histogram(values.astype(np.float64), bins=BUCKETS)
        assert found.counts == tuple(counts)
        assert (found.low, found.high, found.size, found.nonfinite) == (edges[0], edges[-1], 2000, 0)

    @pytest.mark.parametrize("values", [[0.0], [5.0] * 7, [1e30, 1e30], [-1e-30] * 3, [1.0, np.nextafter(1.0, 2.0)]])
    def test_equal_values_have_buckets_of_some_width(self, values: list[float]) -> None:
        found = Histogram.of(1, "h", np.array(values))
        edges = np.linspace(found.low, found.high, BUCKETS + 1)
        assert (np.diff(edges) > 0).all()
        assert sum(found.counts) == len(values)

    @pytest.mark.parametrize("bad", [NAN, INF, -INF])
    def test_nonfinite_values_are_counted_apart(self, bad: float) -> None:
        found = Histogram.of(1, "h", np.array([1.0, bad, 2.0, bad]))
        assert (found.low, found.high, sum(found.counts), found.size, found.nonfinite) == (1.0, 2.0, 2, 4, 2)
        assert count_left_out([found, found]) == 2
        assert Histogram.of(1, "h", np.array([bad])).counts == ()

    def test_a_large_tensor_is_sampled_over_its_whole_range(self) -> None:
        values = np.arange(2 * SAMPLED + 1, dtype=np.float32)
        found = Histogram.of(1, "h", values)
        assert (found.low, found.high, found.size) == (0.0, 2.0 * SAMPLED, 2 * SAMPLED + 1)
        assert SAMPLED / 2 < sum(found.counts) <= SAMPLED
        assert min(found.counts) > 0

    @pytest.mark.parametrize("dtype", ["float16", "float64", "int64", "bool"])
    def test_any_real_type_will_do(self, dtype: str) -> None:
        assert sum(Histogram.of(1, "h", np.array([0, 1, 1], dtype=dtype)).counts) == 3


def test_hyper_parameters_are_flattened_to_what_can_be_shown() -> None:
    values: dict[str, Any] = {
        "optim": {"lr": 1e-3, "betas": (0.9, 0.999), "groups": []},
        "run": {"epochs": None, "deterministic": False, "seed": 2**70},
        "clip": "global_norm",
        "limit": INF,
    }
    assert HyperParameters.of(1, values, {}).values == {
        "optim.lr": 1e-3,
        "optim.betas": "(0.9, 0.999)",
        "optim.groups": "[]",
        "run.deterministic": "false",
        "run.seed": str(2**70),
        "clip": "global_norm",
        "limit": "inf",
    }


def test_a_new_run_does_not_write_into_the_records_of_another(path: Path) -> None:
    write(path, ONE_OF_EACH)
    before = path.read_bytes()
    with pytest.raises(InputError, match="earlier run"):
        MetricsLog.create(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("cut", range(1, 200, 7))
def test_a_torn_last_line_is_cut_when_the_file_is_opened(path: Path, cut: int) -> None:
    records: list[Record] = [Scalars.of(step, {"train/loss": float(step), "x": 1.0}) for step in (1, 2, 3)]
    write(path, records)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) - cut])
    complete = whole[: len(whole) - cut].count(b"\n")
    assert read_records(path) == records[:complete]
    log = MetricsLog.resume(path, 3)
    assert log.kept == tuple(records[:complete])
    log.append(records[2])
    log.close()
    assert read_records(path) == [*records[:complete], records[2]]


@pytest.mark.parametrize("tail", [b"\0\0\0\0", b"\0\0\0\n", b"{}\n", b'{"step":4'])
def test_what_a_crash_of_the_machine_leaves_at_the_end_is_cut(path: Path, tail: bytes) -> None:
    records: list[Record] = [Scalars.of(1, {"a": 1.0})]
    write(path, records)
    path.write_bytes(path.read_bytes() + tail)
    log = MetricsLog.resume(path, 9)
    log.close()
    assert read_records(path) == records


@pytest.mark.parametrize(
    "damage",
    [
        b"not json\n",
        b'{"kind":"scalars","step":1}\n',
        b'{"kind":"other","step":1,"time":1}\n',
        b'{"kind":"scalars","step":1,"time":1,"scalars":{"a":NaN}}\n',
        b'{"kind":"scalars","step":-1,"time":1,"scalars":{}}\n',
    ],
)
def test_damage_in_the_middle_is_named_by_line_and_nothing_is_changed(path: Path, damage: bytes) -> None:
    write(path, ONE_OF_EACH)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + damage + b"".join(lines[1:]))
    before = path.read_bytes()
    for action in (lambda: read_records(path), lambda: MetricsLog.resume(path, 1)):
        with pytest.raises(InputError) as caught:
            action()
        assert [(p.file, p.line) for p in caught.value.problems] == [(str(path), 2)]
    assert path.read_bytes() == before


@pytest.mark.parametrize("step", range(5))
def test_resume_drops_later_steps_and_keeps_the_others_byte_for_byte(path: Path, step: int) -> None:
    write(path, [Scalars.of(i, {"a": i / 3}) for i in range(1, 4)])
    lines = path.read_bytes().splitlines(keepends=True)
    log = MetricsLog.resume(path, step)
    log.close()
    assert path.read_bytes() == b"".join(lines[:step])
    assert [record.step for record in log.kept] == list(range(1, min(step, 3) + 1))


def test_resume_keeps_what_belongs_to_the_start_and_drops_what_belongs_to_the_end(path: Path) -> None:
    write(path, ONE_OF_EACH)
    MetricsLog.resume(path, 2).close()
    assert read_records(path) == ONE_OF_EACH[:-1]
    MetricsLog.resume(path, 0).close()
    assert read_records(path) == ONE_OF_EACH[:1]


def test_a_missing_file_counts_as_empty_on_resume(path: Path) -> None:
    log = MetricsLog.resume(path, 7)
    log.append(Scalars.of(8, {"a": 1.0}))
    log.close()
    assert [record.step for record in read_records(path)] == [8]


def test_a_kill_while_cutting_back_leaves_the_old_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(path, ONE_OF_EACH)
    before = path.read_bytes()

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        MetricsLog.resume(path, 1)
    assert path.read_bytes() == before


def test_a_record_is_on_its_way_to_disk_before_append_returns(path: Path) -> None:
    log = MetricsLog.create(path)
    for count, record in enumerate(ONE_OF_EACH, start=1):
        log.append(record)
        assert read_records(path) == ONE_OF_EACH[:count]
    log.close()
    log.close()


def test_a_record_of_which_the_disk_takes_a_part_only_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a disk does that has just become full: it takes some bytes, and says nothing until the next ones."""
    log = MetricsLog.create(tmp_path / "metrics.jsonl")
    log.append(Scalars.of(1, {"train/loss": 1.0}))
    whole = (tmp_path / "metrics.jsonl").read_bytes()
    file = log._file

    class NearlyFull:
        name = file.name

        def __getattr__(self, name: str) -> Any:
            return getattr(file, name)

        def write(self, line: bytes) -> int:
            return file.write(line[:10]) or 0

    monkeypatch.setattr(log, "_file", NearlyFull())
    with pytest.raises(OSError, match="No space left"):
        log.append(Scalars.of(2, {"train/loss": 1.0}))
    monkeypatch.setattr(log, "_file", file)
    assert (tmp_path / "metrics.jsonl").read_bytes() == whole
    log.append(Scalars.of(3, {"train/loss": 1.0}))
    log.close()
    assert [record.step for record in read_records(tmp_path / "metrics.jsonl")] == [1, 3]
