"""Out of memory ends in one sentence that proposes a larger `train.accumulate`."""

from __future__ import annotations

import resource
from functools import partial
from pathlib import Path

from helpers import TINY, error_line, forked, succeed

LIMIT = 3 * 2**30
"""Bytes of address space: about twice what a tiny training takes, a fraction of what these ask for."""


def sentence_of(words: tuple[object, ...], output: Path) -> str:
    """What the command says at its end when memory is limited."""
    limit = partial(resource.setrlimit, resource.RLIMIT_AS, (LIMIT, LIMIT))
    with forked(words, output, limit) as process:
        assert process.end() == 1, process.seen
    return error_line(process.seen)


def test_out_of_memory_in_a_step(pictures: Path, trained: Path, tmp_path: Path) -> None:
    # Fine-tuning, because a new run would look at its first batch before the first step.
    succeed("export", trained, tmp_path / "hub")
    large = ("--init", tmp_path / "hub", "model.image_size=1024", "train.batch_size=32")
    words = ("train", "vqgan", pictures, "--out", tmp_path / "run", *TINY, *large)
    sentence = sentence_of(words, tmp_path / "said")
    assert "out of memory" in sentence
    assert "train.accumulate" in sentence


def test_out_of_memory_before_the_first_step(pictures: Path, tmp_path: Path) -> None:
    large = ("model.image_size=1024", "model.dim=128", "train.batch_size=32")
    words = ("train", "vqgan", pictures, "--out", tmp_path / "run", *TINY, *large)
    sentence = sentence_of(words, tmp_path / "said")
    assert "out of memory" in sentence
    assert "train.accumulate" in sentence
    assert not (tmp_path / "run").exists()
