"""`engine.precision=auto` is chosen once, when a run starts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from helpers import TINY, copied, error_line, forked, quintet, renew_sums, succeed, tensor_hashes, train_tiny
from quintet import VQGanVAE, VQGanVAETrainer
from quintet.common.precision import choose_precision, has_bf16
from quintet.doctor import precisions
from quintet.registry import read_config


def pretend_bf16(monkeypatch: pytest.MonkeyPatch, supported: bool) -> None:
    """Another machine: one whose CPU has bf16 instructions, or one whose CPU has none."""
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: supported)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)


def recorded(run: Path) -> str:
    return read_config(run / "config.yaml").engine.precision


@pytest.mark.parametrize(("supported", "expected"), [(True, "bf16"), (False, "fp32")])
def test_auto_is_recorded_as_chosen_and_trains_the_same_weights(
    supported: bool, expected: str, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_bf16(monkeypatch, supported)
    train_tiny(pictures, tmp_path / "auto", "train.steps=4", "engine.precision=auto")
    train_tiny(pictures, tmp_path / "named", "train.steps=4", f"engine.precision={expected}")
    assert recorded(tmp_path / "auto") == expected
    assert read_config(tmp_path / "auto/checkpoints/step-00000004/config.yaml").engine.precision == expected
    assert tensor_hashes(tmp_path / "auto", 4) == tensor_hashes(tmp_path / "named", 4)


@pytest.mark.parametrize("words", [(), ("engine.precision=auto",)], ids=["no key", "auto again"])
def test_a_run_resumed_on_another_machine_keeps_its_precision(
    words: tuple[str, ...], pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    pretend_bf16(monkeypatch, supported=True)
    train_tiny(pictures, run, "train.steps=4", "engine.precision=auto")
    pretend_bf16(monkeypatch, supported=False)
    said = succeed("resume", run, "train.steps=6", *words).errors
    assert recorded(run) == "bf16"
    assert "engine.precision" not in said


def test_a_trainer_in_python_records_its_choice(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_bf16(monkeypatch, supported=True)
    model = VQGanVAE(dim=8, image_size=16, layers=2)
    keys = {"engine.precision": "auto", "engine.device": "cpu", "log.trackers": []}
    trainer = VQGanVAETrainer(model, data=pictures, out=tmp_path / "run", steps=2, batch_size=2, config=keys)
    trainer.close()
    assert trainer.engine.precision == recorded(tmp_path / "run") == "bf16"


def test_devices_without_known_instructions_use_fp32() -> None:
    assert choose_precision("auto", "mps") == "fp32"
    assert choose_precision("bf16", "mps") == "bf16"
    assert not has_bf16("mps")


@pytest.mark.parametrize(
    ("capability", "bf16", "expected"), [((7, 5), False, "fp16"), ((8, 0), True, "bf16"), ((6, 1), False, "fp32")]
)
def test_auto_is_the_best_that_a_card_has(
    capability: tuple[int, int], bf16: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: bf16)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    assert choose_precision("auto", "cuda") == expected
    assert f"fast in {expected}" in precisions(capability)


def test_training_in_fp16_on_a_cpu_is_refused(pictures: Path, tmp_path: Path) -> None:
    outcome = quintet("train", "vqgan", pictures, "--out", tmp_path / "run", *TINY, "engine.precision=fp16")
    assert outcome.code == 2
    said = "error: engine.precision=fp16 needs a GPU, and this process uses the CPU; set engine.precision=fp32"
    assert error_line(outcome.errors) == said
    assert not (tmp_path / "run").exists()


def pretend_one_gpu() -> None:
    """In a process of its own: the machine has one CUDA device."""
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: 1


def test_two_processes_on_one_gpu_are_refused(pictures: Path, tmp_path: Path) -> None:
    words = ("train", "vqgan", pictures, "--out", tmp_path / "run", *TINY, "engine.device=cuda")
    with forked(words, tmp_path / "said", pretend_one_gpu, RANK=1, LOCAL_RANK=1, WORLD_SIZE=2) as process:
        assert process.end() == 2, process.seen
    said = "local rank 1 has no CUDA device: this machine has 1; start fewer processes"
    assert said in error_line(process.seen)
    assert not (tmp_path / "run").exists()


def test_a_model_of_fp16_is_used_in_fp32_on_a_cpu(trained: Path, tmp_path: Path) -> None:
    run = copied(trained, tmp_path / "run")
    succeed("eval", run)
    expected = (run / "eval.json").read_text()
    for file in (run / "checkpoints").glob("*/config.yaml"):
        text = file.read_text()
        assert "precision: fp32" in text
        file.write_text(text.replace("precision: fp32", "precision: fp16"))
        renew_sums(file.parent)
    succeed("eval", run)
    assert (run / "eval.json").read_text() == expected
    outcome = quintet("resume", run, "train.steps=16", "engine.precision=fp16")
    assert outcome.code == 2
    assert "engine.precision=fp16 needs a GPU" in error_line(outcome.errors)


def test_the_doctor_names_the_precision_of_auto() -> None:
    assert f"engine.precision=auto is {choose_precision('auto', 'cpu')}" in succeed("doctor").output
