"""The way that golden runs are made leads to one that the tests of golden runs can use."""

from __future__ import annotations

import json
from pathlib import Path

from faults.make_golden import build
from helpers import succeed


def test_a_golden_run_has_the_required_files(tmp_path: Path) -> None:
    succeed("data", "make", "shapes", tmp_path / "few", "--num", 6, "--size", 32)
    golden = tmp_path / "vqgan-format-1"
    build("vqgan", tmp_path / "few", golden)
    assert json.loads((golden / "run" / "eval.json").read_text())["psnr"] > 0
    assert (golden / "hub" / "model.safetensors").is_file()
    assert (golden / "codes" / "codes.safetensors").is_file()
    assert str(tmp_path) not in (golden / "run" / "config.yaml").read_text()
