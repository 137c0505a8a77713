"""Figures on their way to disk: means since the last reading, and trackers that are or are not installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from quintet.config import RunConfig
from quintet.errors import UsageError
from quintet.training.metrics import Meter, make_trackers


def test_means_since_the_last_reading() -> None:
    meter = Meter()
    for value in (1.0, 2.0, 6.0):
        meter.add({"loss": torch.tensor(value)})
    meter.add({"penalty": torch.tensor(5.0, dtype=torch.float64), "loss": torch.tensor(7)})
    assert meter.read() == {"loss": 4.0, "penalty": 5.0}  # each by the number of times it came
    assert meter.read() == {}
    meter.add({"loss": torch.tensor(9.0)})
    assert meter.read() == {"loss": 9.0}


def test_what_was_added_is_not_changed() -> None:
    meter, value = Meter(), torch.tensor(1.0)
    meter.add({"loss": value})
    meter.add({"loss": value})
    assert value == 1


@pytest.mark.parametrize("kind", ["wandb", "trackio"])
def test_a_tracker_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setitem(sys.modules, kind, None)  # as if it were not, also where it is
    config = RunConfig(recipe="toy").changed({"log.trackers": [kind]})
    with pytest.raises(UsageError, match=rf"contains {kind}, which is not installed: pip install 'quintet\[{kind}\]'"):
        make_trackers(config, tmp_path)
