"""Running out of memory ends with one error message that proposes a larger `train.grad_accum_steps`."""

from __future__ import annotations

import resource
from importlib import import_module
from pathlib import Path

import pytest
import torch

from helpers import TINY, error_line, forked, quintet, succeed

ALLOWED = 600 * 2**20
"""Bytes beyond the memory at the start: enough for a tiny training, far less than these need."""


def limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + ALLOWED
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def sentence_of(words: tuple[object, ...], output: Path) -> str:
    """The error message of the command with limited memory."""
    with forked(words, output, limit_memory) as process:
        assert process.end() == 1, process.seen
    return error_line(process.seen)


def test_out_of_memory_in_a_step(pictures: Path, trained: Path, tmp_path: Path) -> None:
    # Fine-tuning, because a new run reads its first batch before the first step.
    succeed("export", trained, tmp_path / "hub")
    large = ("--init", tmp_path / "hub", "model.image_size=512", "train.batch_size=32")
    words = ("train", "vqgan", pictures, "--out", tmp_path / "run", *TINY, *large)
    sentence = sentence_of(words, tmp_path / "said")
    assert "out of memory" in sentence
    assert "train.grad_accum_steps" in sentence


def test_out_of_memory_before_the_first_step(pictures: Path, tmp_path: Path) -> None:
    large = ("model.image_size=512", "model.dim=128", "train.batch_size=32")
    words = ("train", "vqgan", pictures, "--out", tmp_path / "run", *TINY, *large)
    sentence = sentence_of(words, tmp_path / "said")
    assert "out of memory" in sentence
    assert "train.grad_accum_steps" in sentence
    assert not (tmp_path / "run").exists()


def test_out_of_memory_while_a_model_is_built_names_its_sizes(pictures: Path, tmp_path: Path) -> None:
    for key, size in (("model.dim", 4096), ("model.dim", 2**61)):
        words = ("train", "vqgan", pictures, "--out", tmp_path / "run", *TINY, f"{key}={size}")
        sentence = sentence_of(words, tmp_path / "said")
        assert "out of memory while the model of recipe 'vqgan' is built" in sentence
        assert f"{key}={size}" in sentence
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("command", "fix"), [("sample", "--num"), ("eval", "eval.batch_size"), ("embed", "smaller")])
def test_out_of_memory_in_another_command_is_one_sentence(
    command: str, fix: str, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def allocate(*arguments: object) -> None:
        torch.empty(2**60, dtype=torch.uint8)

    # Both are imported before one is changed: one that is imported later would keep the changed function for ever.
    for module in [import_module(f"quintet.{name}") for name in ("pipelines.loading", "evaluation")]:
        monkeypatch.setattr(module, "open_pipeline", allocate)
    words = (command, trained, *(("--text", "x", "--out", "x.npz") if command == "embed" else ()))
    outcome = quintet(*words)
    assert outcome.code == 1
    assert error_line(outcome.errors).startswith("error: out of memory; ")
    assert fix in outcome.errors


def test_a_tiny_training_fits(pictures: Path, tmp_path: Path) -> None:
    words = ("train", "vqgan", pictures, "--out", tmp_path / "run", *TINY)
    with forked(words, tmp_path / "said", limit_memory) as process:
        assert process.end() == 0, process.seen
