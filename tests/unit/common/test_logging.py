"""Console messages are printed once, by rank 0."""

from __future__ import annotations

import subprocess
import sys

import pytest

from helpers import LAUNCHER_VARIABLES
from quintet.common.logging import say

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2"}
SRUN = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}  # without an address: the others cannot be reached


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*LAUNCHER_VARIABLES, *SRUN):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("launcher", [TORCHRUN, SRUN], ids=["torchrun", "srun"])
def test_only_rank_0_prints(
    launcher: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in launcher.items():
        monkeypatch.setenv(name, value)
    say("a message of all ranks")
    say("a message of one rank", any_rank=True)
    assert capsys.readouterr().err == "a message of one rank\n"
    for name in launcher.keys() & {"RANK", "SLURM_PROCID"}:
        monkeypatch.setenv(name, "0")
    say("a message of all ranks")
    assert capsys.readouterr().err == "a message of all ranks\n"


def test_a_single_process_prints(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    say("a line \n")
    monkeypatch.setenv("RANK", "1")  # not set by a launcher, which also sets WORLD_SIZE
    monkeypatch.setenv("SLURM_PROCID", "1")  # a batch job of one task
    say("another")
    assert capsys.readouterr().err == "a line\nanother\n"


def test_printing_does_not_import_torch() -> None:
    code = "import sys, quintet.common.logging; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
