"""Processes that train together: alone, and as a launched pair."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest

from paddle_stable.distributed import World, let_first_process_leave
from paddle_stable.stop_signal import SIGNALS, StopSignal

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What two launched processes found, by rank."""
    folder = tmp_path_factory.mktemp("pair")
    command = [sys.executable, "-m", "paddle.distributed.launch", "--nproc_per_node", "2", "--log_dir", str(folder)]
    command += [str(REPOSITORY / "tests/integration/two_ranks.py"), str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    launcher = subprocess.Popen(command, env=environment, cwd=folder, start_new_session=True)
    try:
        code = launcher.wait(timeout=300)
    except subprocess.TimeoutExpired:
        os.killpg(launcher.pid, signal.SIGKILL)
        raise
    logs = "\n".join(path.read_text() for path in sorted(folder.glob("workerlog.*")))
    assert code == 0, logs
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


def test_launched_processes_know_their_places(pair: list[dict[str, Any]]) -> None:
    assert [(found["rank"], found["size"], found["is_main"]) for found in pair] == [(0, 2, True), (1, 2, False)]


def test_wrapping_takes_over_rank_zeros_weights_frozen_ones_and_statistics(pair: list[dict[str, Any]]) -> None:
    assert {"2.weight", "3._mean", "3._variance"} <= set(pair[0]["own"])
    differing = {name for name in pair[0]["own"] if pair[0]["own"][name] != pair[1]["own"][name]}
    assert {"0.weight", "2.weight", "3._mean", "3._variance"} <= differing
    assert pair[0]["shared"] == pair[1]["shared"] == pair[0]["own"]


def test_sums_are_the_same_on_all_ranks(pair: list[dict[str, Any]]) -> None:
    expected = [["float64", [2], [4.5, -6.0]], ["float64", [], 9.0], ["int64", [1, 1], [[12]]], ["float64", [0], []]]
    assert pair[0]["sums"] == pair[1]["sums"] == expected
    twice = (2 * np.array([0.1, 0.2], np.float32)).tolist()
    assert pair[0]["float32_sum"] == pair[1]["float32_sum"] == ["float32", [2], twice]


def test_arrays_of_any_number_shape_and_type_are_gathered_bit_for_bit(pair: list[dict[str, Any]]) -> None:
    arrays = [
        np.array([[0, 2], [3, 5]]),
        np.zeros((0, 4), dtype=np.float32),
        np.array(-0.0),
        np.array([np.nan, np.inf, 1e-300]),
        np.array(["读书", "a"]),
        np.array([[True], [False]]),
    ]
    expected = [[], [f"{array.dtype}{array.shape}{array.tobytes().hex()}" for array in arrays]]
    assert pair[0]["gathered"] == pair[1]["gathered"] == expected
    assert pair[0]["nothing_gathered"] == pair[1]["nothing_gathered"] == [0, 0]


def test_ranks_agree_on_the_largest_flag(pair: list[dict[str, Any]]) -> None:
    assert pair[0]["agreed"] == pair[1]["agreed"] == [3, 0, 0]


def test_gradients_of_two_processes_equal_those_of_one(pair: list[dict[str, Any]]) -> None:
    """For windows of every size, with accumulation, and with a rank that has no sample of its own."""
    for found in pair:
        assert [size for size, one in enumerate(found["gradients"], start=1) if one["difference"] > 1e-6] == []
    assert len(pair[0]["gradients"]) == 8
    assert sum(one["stand_ins"] for found in pair for one in found["gradients"]) == 1


def test_gradients_are_exchanged_with_the_last_micro_batch_only(pair: list[dict[str, Any]]) -> None:
    assert pair[0]["keeps_to_itself"] is pair[1]["keeps_to_itself"] is True


def test_an_evaluation_by_two_processes_equals_one_by_one_bit_for_bit(pair: list[dict[str, Any]]) -> None:
    assert pair[0]["evaluated"] == pair[1]["evaluated"] == pair[0]["evaluated_alone"] == pair[1]["evaluated_alone"]
    assert pair[0]["evaluated"]["y"].startswith("float32(13, 1)")


def test_a_rank_without_evaluation_batches_gets_the_outputs_too(pair: list[dict[str, Any]]) -> None:
    assert pair[0]["one_batch_only"] == pair[1]["one_batch_only"] == [2, 1]
    assert pair[0]["metrics"] == pair[1]["metrics"] == {"rank": 0.0}


def test_nobody_leaves_a_meeting_before_all_have_come(pair: list[dict[str, Any]]) -> None:
    assert pair[0]["meets"] == pair[1]["meets"] == [True] * 4


@pytest.mark.parametrize("number", ["1", None])
def test_without_a_launcher_a_process_is_alone(number: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PADDLE_TRAINERS_NUM", raising=False)
    if number is not None:
        monkeypatch.setenv("PADDLE_TRAINERS_NUM", number)
    assert World.from_environment() == World.single() == World(0, 1)


def test_a_process_alone_answers_by_itself() -> None:
    world = World.single()
    model = paddle.nn.Linear(2, 1)
    tensor = paddle.to_tensor([1.0, 2.0])
    world.sum_(tensor)
    arrays = [np.arange(3), np.array("text")]
    assert world.wrap(model) is model
    assert tensor.tolist() == [1.0, 2.0]
    assert world.gather_arrays(arrays) == [arrays]
    assert world.agree_max(2) == 2
    assert (world.is_main, world.gradient_scale) == (True, 1.0)
    world.meet()
    world.close()


@pytest.mark.parametrize("enabled", [True, False])
def test_a_process_alone_has_its_gradients_with_every_micro_batch(enabled: bool) -> None:
    world = World.single()
    model = paddle.nn.Linear(1, 1, bias_attr=False)
    for _ in range(2):
        with world.sync_gradients(model, enabled=enabled):
            model(paddle.to_tensor([[3.0]])).sum().backward()
    assert model.weight.grad.tolist() == [[6.0]]


@pytest.mark.parametrize("size", [1, 2])
def test_arrays_of_python_objects_are_refused_before_anything_is_sent(size: int) -> None:
    with pytest.raises(ValueError, match="arrays of Python objects cannot be gathered"):
        World(0, size).gather_arrays([np.array([{}])])


def test_the_first_process_of_a_machine_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PADDLE_RANK_IN_NODE", "0")
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("it waits"))
    let_first_process_leave(StopSignal())


@pytest.mark.parametrize("stops", [True, False])
def test_the_others_stay_until_they_are_told_to_stop_but_not_for_ever(
    stops: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PADDLE_RANK_IN_NODE", "1")
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        with StopSignal() as stop:
            if stops:
                monkeypatch.setattr(time, "sleep", lambda _: signal.raise_signal(signal.SIGTERM))
            let_first_process_leave(stop, 3600.0 if stops else 0.3)
            assert (stop.received is not None) == stops
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN  # the launcher sends it three times
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
