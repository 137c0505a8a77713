"""Out of memory ends in one sentence that proposes a larger `train.accumulate`."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from helpers import TINY, error_line, running

LIMIT = 2 * 2**30
"""Bytes of address space: several times what a tiny training takes, a fraction of what these ask for."""


def limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT))


@pytest.mark.parametrize(
    "too_much",
    [
        pytest.param("model.image_size=256 model.layers=1 model.blocks=20 train.batch_size=32", id="in a step"),
        pytest.param("model.image_size=1024 model.dim=128 train.batch_size=8", id="before the first step"),
    ],
)
def test_out_of_memory_proposes_smaller_micro_batches(too_much: str, pictures: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ("train", "vqgan", pictures, "--out", run, *TINY, *too_much.split())
    with running(*words, preexec_fn=limit_memory) as process:
        assert process.end() == 1, process.seen

    sentence = error_line(process.seen)

    assert "out of memory" in sentence
    assert "train.accumulate" in sentence
    # A resumed run may not change train.accumulate, so resuming would be no help.
    assert "resume" not in sentence
