"""Freed tensors leave their memory to the next ones."""

from __future__ import annotations

import subprocess
import sys

import pytest

# In a process of its own, because the setting cannot be taken back.
COUNT_FAULTS = """
import resource, sys, torch
from quintet.common.device import Device
from quintet.config import EngineConfig
if sys.argv[1] == "device":
    Device(EngineConfig(device="cpu"))
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
    assert 10 * faults("device") < faults("plain")


def faults(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", COUNT_FAULTS, how], capture_output=True, text=True, check=True)
    return int(done.stdout)
