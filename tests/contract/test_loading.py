"""Every recipe: which weights a command reads. Frozen models once, and for inference the averaged weights alone."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from contract.cases import Case
from helpers import succeed
from quintet import registry
from quintet.common.weights import tensor_groups

Read = Counter[tuple[str, str]]
"""Folder and group of tensors, to how often it was read."""


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Read:
    """Filled while commands run."""
    counted: Read = Counter()
    original = tensor_groups.read_tensors

    def counting(folder: Path, name: str) -> dict[str, Tensor]:
        counted[str(folder.resolve()), name] += 1
        return original(folder, name)

    monkeypatch.setattr(tensor_groups, "read_tensors", counting)
    return counted


def test_inference_reads_only_the_ema_weights(
    recipe: str, case: Case, finished: Path, tmp_path: Path, read: Read
) -> None:
    succeed("export", finished, tmp_path / "hub")
    newest = str((finished / "checkpoints" / "step-00000012").resolve())
    own = {name for folder, name in read if folder == newest}
    pipeline_class: Any = registry.find(recipe).pipeline_class()
    assert f"ema/{pipeline_class.exported}" in own
    assert pipeline_class.exported not in own
    assert all(name.startswith("ema/") or name in pipeline_class.auxiliary_modules for name in own)
    assert max(read.values()) == 1


def test_frozen_models_are_read_once_when_a_run_starts(case: Case, train: Any, tmp_path: Path, read: Read) -> None:
    if not case.links:
        pytest.skip("it builds on no other model")
    train(tmp_path / "run", "train.steps=1")
    assert set(read.values()) <= {1}
