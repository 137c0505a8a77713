"""Fixtures for all training tests: process-wide settings of an engine are restored."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from toy import OPENED


@pytest.fixture(autouse=True)
def process_settings_restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for variable in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(variable, raising=False)
    deterministic, threads = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    yield
    if torch.are_deterministic_algorithms_enabled() != deterministic:
        torch.use_deterministic_algorithms(deterministic)
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def runs_closed() -> Iterator[None]:
    yield
    while OPENED:
        OPENED.pop().close()
