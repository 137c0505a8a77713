"""Out of memory ends in one sentence that proposes a larger `train.accumulate`."""

from __future__ import annotations

import resource
from functools import partial
from pathlib import Path

import pytest

from helpers import TINY, error_line, forked

LIMIT = 3 * 2**30
"""Bytes of address space: several times what a tiny training takes, a fraction of what these ask for."""


@pytest.mark.parametrize(
    "too_much",
    [
        pytest.param("model.image_size=256 model.layers=1 model.blocks=30 train.batch_size=32", id="in a step"),
        pytest.param("model.image_size=1024 model.dim=128 train.batch_size=32", id="before the first step"),
    ],
)
def test_out_of_memory_proposes_smaller_micro_batches(too_much: str, pictures: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ("train", "vqgan", pictures, "--out", run, *TINY, *too_much.split())
    limit = partial(resource.setrlimit, resource.RLIMIT_AS, (LIMIT, LIMIT))
    with forked(words, tmp_path / "said", limit) as process:
        assert process.end() == 1, process.seen

    sentence = error_line(process.seen)

    assert "out of memory" in sentence
    assert "train.accumulate" in sentence
