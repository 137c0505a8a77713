"""What runs on CUDA; by itself where there is a device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from helpers import TINY, error_line, quintet, step_folder, succeed, tensor_hashes, train_tiny

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

EXACT = ("engine.device=cuda", "engine.deterministic=true", "optim.decay_steps=12")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("quantizer", ["vq", "lfq", "fsq"])
def test_resume_is_exact_on_cuda(quantizer: str, precision: str, pictures: Path, tmp_path: Path) -> None:
    words = (*EXACT, f"engine.precision={precision}", f"model.quantizer={quantizer}")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train_tiny(pictures, whole, *words)
    train_tiny(pictures, parts, *words, "train.steps=6")
    succeed("resume", parts, "train.steps=12")

    assert tensor_hashes(parts, 12) == tensor_hashes(whole, 12)


def test_cuda_and_cpu_agree_in_fp64(pictures: Path, tmp_path: Path) -> None:
    figures = {}
    for device in ("cpu", "cuda"):
        run = tmp_path / device
        train_tiny(pictures, run, f"engine.device={device}", "engine.precision=fp64")
        succeed("eval", run)
        figures[device] = json.loads((run / "eval.json").read_text())
    assert figures["cuda"] == pytest.approx(figures["cpu"], rel=1e-6)


def test_a_run_of_the_gpu_goes_on_without_one(pictures: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train_tiny(pictures, run, "engine.device=cuda", "train.steps=6", "optim.decay_steps=12")
    succeed("resume", run, "train.steps=12", "engine.device=cpu")
    assert step_folder(run, 12).is_dir()


def test_samples_and_codes_on_cuda(pictures: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train_tiny(pictures, run, "engine.device=cuda", "train.steps=2")
    succeed("sample", run, "--num", 2, "--out", tmp_path / "out")
    succeed("encode", run, pictures, "--out", tmp_path / "codes")
    succeed("decode", run, tmp_path / "codes", "--out", tmp_path / "decoded")
    assert len(list((tmp_path / "decoded").iterdir())) == 48


def test_what_cannot_fit_on_cuda_is_refused_before_the_training(pictures: Path, tmp_path: Path) -> None:
    words = ("model.image_size=1024", "model.dim=64", "train.batch_size=1048576", "engine.device=cuda")
    outcome = quintet("train", "vqgan", pictures, "--out", tmp_path / "run", *TINY, *words)
    assert outcome.code == 2
    assert "use train.grad_accum_steps=" in error_line(outcome.errors)
    assert not (tmp_path / "run").exists()


def test_out_of_memory_on_cuda_is_one_sentence(pictures: Path, tmp_path: Path) -> None:
    words = ("model.image_size=512", "model.dim=64", "train.batch_size=32", "engine.device=cuda")
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(2**27 / total)  # a plan sees all of it
    try:
        outcome = quintet("train", "vqgan", pictures, "--out", tmp_path / "run", *TINY, *words)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert outcome.code == 1
    assert "train.grad_accum_steps" in error_line(outcome.errors)
