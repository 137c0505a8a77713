"""Freed tensors leave their memory to the next ones."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# In a process of its own, because the setting cannot be taken back.
COUNT_FAULTS = """
import resource, sys, torch
from quintet.config import EngineConfig
from quintet.training.engine import Engine
if sys.argv[1] == "engine":
    Engine(EngineConfig(device="cpu"))
x = torch.ones(10 * 2**20)
def work():
    return (x * 2 + x.roll(1) * 3).to(torch.bfloat16)
for _ in range(4):
    work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(8):
    work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no setting for this")
def test_large_tensors_cost_few_page_faults_a_second_time() -> None:
    assert 10 * faults("engine") < faults("plain")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no setting for this")
def test_a_setting_of_the_user_is_left_as_it_is() -> None:
    assert faults("engine", MALLOC_TRIM_THRESHOLD_="131072") > 10 * faults("engine")


def faults(how: str, **settings: str) -> int:
    command = [sys.executable, "-c", COUNT_FAULTS, how]
    environment = {**os.environ, **settings}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return int(done.stdout)
