"""The first signal is a request, the second an order; the time limit is a request too."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from quintet.common.workers import SIGNALS
from quintet.training.signals import StopRequest


@pytest.fixture(autouse=True)
def handlers_restored() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_is_recorded(number: signal.Signals) -> None:
    with StopRequest() as stop:
        assert stop.received is None
        os.kill(os.getpid(), number)
        assert stop.received is number
        assert not stop.out_of_time


def test_handlers_are_restored() -> None:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    with StopRequest():
        assert all(signal.getsignal(number) != handler for number, handler in before.items())
    assert {number: signal.getsignal(number) for number in SIGNALS} == before
    with StopRequest():
        os.kill(os.getpid(), signal.SIGTERM)
    assert {number: signal.getsignal(number) for number in SIGNALS} == before


def test_handlers_are_restored_after_a_failure() -> None:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    with pytest.raises(ZeroDivisionError), StopRequest():
        raise ZeroDivisionError
    assert {number: signal.getsignal(number) for number in SIGNALS} == before


TWO_SIGNALS = """
import os, signal, sys
from quintet.training.signals import StopRequest
first, second = (signal.Signals[name] for name in sys.argv[1:])
with StopRequest() as stop:
    os.kill(os.getpid(), first)
    print(stop.received.name, flush=True)
    os.kill(os.getpid(), second)
    print("still here", flush=True)
"""


@pytest.mark.parametrize("names", [("SIGTERM", "SIGTERM"), ("SIGINT", "SIGINT"), ("SIGUSR1", "SIGINT")])
def test_the_second_signal_has_its_ordinary_effect(names: tuple[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TWO_SIGNALS, *names], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout == f"{names[0]}\n"
    assert done.returncode == -signal.Signals[names[1]]


def test_the_time_limit_is_a_request() -> None:
    assert StopRequest(minutes=1e-9).out_of_time
    assert StopRequest(minutes=1e-9).received is None
    assert not StopRequest(minutes=1e9).out_of_time
    assert not StopRequest().out_of_time


def test_a_thread_that_may_not_handle_signals_still_has_the_time_limit() -> None:
    found: list[bool] = []

    def work() -> None:
        with StopRequest(minutes=1e-9) as stop:
            found.append(stop.out_of_time)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [True]
