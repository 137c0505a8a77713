"""Writing a synthetic dataset in several processes."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from quintet.errors import RunError
from quintet.synthetic import workers
from quintet.synthetic.shapes import make_shapes
from quintet.synthetic.workers import call_for_all


@pytest.fixture
def three_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "MIN_PER_WORKER", 2)
    monkeypatch.setattr(workers, "usable_cores", lambda: 3)


@pytest.mark.usefixtures("three_workers")
def test_results_are_in_the_order_of_the_numbers() -> None:
    processes = call_for_all(lambda index: (index, os.getpid()), 10)
    assert [index for index, _ in processes] == list(range(10))
    assert len({process for _, process in processes} - {os.getpid()}) == 3


def _fail_at_seven(index: int) -> int:
    if index == 7:
        raise OSError(28, "No space left on device")
    return index


@pytest.mark.usefixtures("three_workers")
def test_an_error_of_a_worker_is_the_error_of_the_call() -> None:
    with pytest.raises(OSError, match="No space left on device"):
        call_for_all(_fail_at_seven, 10)


def _die_at_seven(index: int) -> int:
    if index == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    return index


@pytest.mark.usefixtures("three_workers")
def test_a_killed_worker_is_an_error() -> None:
    with pytest.raises(RunError, match="was killed"):
        call_for_all(_die_at_seven, 10)


def test_a_dataset_does_not_depend_on_the_number_of_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_shapes(tmp_path / "one", num=12, size=32)
    monkeypatch.setattr(workers, "MIN_PER_WORKER", 2)
    monkeypatch.setattr(workers, "usable_cores", lambda: 3)
    make_shapes(tmp_path / "three", num=12, size=32)
    one, three = (
        {
            path.relative_to(tmp_path / name): path.read_bytes()
            for path in (tmp_path / name).rglob("*")
            if path.is_file()
        }
        for name in ("one", "three")
    )
    assert one == three
