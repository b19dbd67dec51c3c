from __future__ import annotations

import os
import signal

import paddle
import pytest

from paddle_stable.stop_signal import StopSignal


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_of_several_signals_is_remembered_and_the_process_lives(number: signal.Signals) -> None:
    with StopSignal() as stop:
        assert stop.received is None
        for _ in range(3):
            os.kill(os.getpid(), number)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.received == number.name


def test_the_old_handlers_come_back() -> None:
    before = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)}
    with StopSignal():
        assert signal.getsignal(signal.SIGTERM) != before[signal.SIGTERM]
    assert {n: signal.getsignal(n) for n in before} == before


def test_handlers_that_an_import_has_taken_away_come_back() -> None:
    """What PaddleNLP does when it is imported; Python's own books do not show it."""
    with StopSignal() as stop:
        before = signal.getsignal(signal.SIGTERM)
        paddle.disable_signal_handler()
        assert signal.getsignal(signal.SIGTERM) == before
        stop.install_again()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.received == "SIGTERM"


def test_a_process_on_its_way_out_ignores_late_signals() -> None:
    before = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)}
    try:
        with StopSignal() as stop:
            os.kill(os.getpid(), signal.SIGTERM)
            stop.stay_deaf()
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
