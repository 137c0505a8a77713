"""The script for a rented GPU works, as far as it can be tried on a CPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]


def gpu_hour(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu_hour.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_short_training_becomes_a_row_of_the_page(tmp_path: Path) -> None:
    page = tmp_path / "gpu.md"
    words = ("--device", "cpu", "--card", "cpu", "--preset", "debug", "--steps", "10", "--recipes", "vqgan")
    done = gpu_hour(*words, "--page", str(page))

    assert done.returncode == 0, done.stderr
    row = next(line for line in page.read_text().splitlines() if line.startswith("| vqgan"))
    speed, _, gigabytes = (cell.strip() for cell in row.strip("|").split("|")[1:])
    assert float(speed) > 0
    assert float(gigabytes) > 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_a_machine_without_a_gpu_is_refused_in_one_sentence(tmp_path: Path) -> None:
    done = gpu_hour("--page", str(tmp_path / "gpu.md"))

    assert done.returncode == 1
    assert done.stderr == "error: this machine has no CUDA device; try the script itself with --device cpu\n"
    assert not (tmp_path / "gpu.md").exists()
