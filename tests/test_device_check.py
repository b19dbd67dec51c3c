"""The check that a user runs on a GPU, run here on the CPU: what holds is said, what cannot be is said too."""

from __future__ import annotations

from pathlib import Path

import paddle
import pytest

from paddle_stable.device_check import Check, DeviceCheck, counted_reads

RECIPE = str(Path(__file__).parents[1] / "configs" / "lstm_forecast.yaml")


@pytest.fixture(scope="module")
def checks(tmp_path_factory: pytest.TempPathFactory) -> list[Check]:
    return list(DeviceCheck(RECIPE, "cpu", tmp_path_factory.mktemp("check")).run())


def test_every_promise_holds_in_float32_and_in_emulated_float16(checks: list[Check]) -> None:
    for precision in ("float32", "float16 emulated"):
        results = {check.promise: (check.held, check.detail) for check in checks if check.precision == precision}
        assert results == dict.fromkeys(results, (True, ""))
        assert len(results) == 5


def test_what_a_cpu_cannot_do_is_not_called_broken(checks: list[Check]) -> None:
    impossible = [check for check in checks if check.held is None]
    assert [check.precision for check in impossible] == ["float16 O1", "float16 O2", "bfloat16 O1", "bfloat16 O2"]
    assert all("needs a GPU" in check.detail for check in impossible)


def test_reads_are_counted_and_the_tensor_is_as_before() -> None:
    tensor = paddle.ones([1])
    with counted_reads() as reads:
        tensor.numpy()
        tensor.item()
    tensor.numpy()
    assert reads == ["numpy", "item"]
