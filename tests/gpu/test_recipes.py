"""Every recipe on a real CUDA device: what `contract/test_device.py` tries on a fake one. Runs by itself where there is
a device."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from contract.cases import Case
from contract.test_device import KEYS, commands, inputs, results_of  # noqa: F401
from helpers import steps_saved, succeed, tensor_hashes

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

ON_CUDA = ("engine.device=cuda", "engine.deterministic=true")
TOLERANCE = 1e-2
"""Kernels of another device add in another order, and a code may then change; other faults differ by more."""
COMPARED = ("loss", "psnr", "accuracy")
"""Parts of the names of metrics that do not depend on single generated items."""


def test_a_recipe_does_everything_on_cuda(
    recipe: str,
    case: Case,
    data: Path,
    inputs: Mapping[str, Path],  # noqa: F811
    tmp_path: Path,
) -> None:
    cpu, cuda = tmp_path / "cpu", tmp_path / "cuda"
    words = ("train", recipe, data, *case.tiny, *case.brief, *KEYS)
    for run, keys in ((cpu, ("engine.device=cpu",)), (cuda, ON_CUDA)):
        succeed(*words, *keys, "--out", run)
        for each in commands(recipe, case, run, inputs):
            succeed(*each)

    ours, theirs = (json.loads((run / "eval.json").read_text()) for run in (cuda, cpu))
    assert ours.keys() == theirs.keys()
    for name in (name for name in theirs if any(part in name for part in COMPARED)):
        assert ours[name] == pytest.approx(theirs[name], rel=TOLERANCE, abs=TOLERANCE), name
    files = [
        sorted(path.relative_to(out).as_posix() for path in out.rglob("*")) for out in map(results_of, (cuda, cpu))
    ]
    assert files[0] == files[1]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_recipe_resumes_exactly_on_cuda(recipe: str, precision: str, case: Case, data: Path, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    words = ("train", recipe, data, *case.tiny, *case.brief, *KEYS, *ON_CUDA, f"engine.precision={precision}")
    succeed(*words, "--out", whole)
    succeed(*words, "train.steps=2", "--out", parts)
    succeed("resume", parts, "train.steps=4")

    assert steps_saved(parts) == steps_saved(whole)
    assert tensor_hashes(parts, 4) == tensor_hashes(whole, 4)
