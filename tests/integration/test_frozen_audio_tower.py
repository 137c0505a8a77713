"""MuLaN with a frozen audio encoder of `transformers`: training, embedding, resuming, and folders that do not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from audio_models import RATE, make_model, noise
from contract.cases import TINY_MULAN
from helpers import error_line, quintet, succeed
from quintet import MuLaN, MuLaNPipeline
from quintet.errors import UsageError
from quintet.families.mulan.config import MuLaNConfig
from quintet.media.audio import write_audio
from quintet.nn.pretrained_audio import FrozenAudio
from quintet.registry import read_config

SHORT = ("train.batch_size=4", "train.steps=2", "eval.every=2", "sample.every=2", "checkpoint.every=2")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("encoders")
    return {kind: make_model(root / kind, kind) for kind in ("hubert", "clap")}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clips")
    for number, wave in enumerate(noise(*(4000 + 700 * number for number in range(8)))):
        write_audio(wave, folder / f"{number}.wav", RATE)
        (folder / f"{number}.txt").write_text(f"a noise, number {number}")
    return folder


def command(data: Path, out: Path, encoder: Path | str, *more: str) -> tuple[object, ...]:
    keys = (*TINY_MULAN, *SHORT, "data.validation_fraction=0.25", "optim.decay_steps=4")
    return ("train", "mulan", data, "--out", out, *keys, f"model.audio.encoder=hf:{encoder}", *more)


@pytest.mark.parametrize("kind", ["hubert", "clap"])
def test_a_projection_of_a_frozen_encoder_is_trained(
    kind: str, folders: dict[str, Path], data: Path, tmp_path: Path
) -> None:
    half, whole = tmp_path / "half", tmp_path / "whole"
    swaps = "data.text_swap_prob=0.5"
    succeed(*command(data, half, folders[kind], swaps))
    succeed("resume", half, "train.steps=4")
    succeed(*command(data, whole, folders[kind], swaps, "train.steps=4"))
    weights = [run / "checkpoints" / "step-00000004" / "mulan.safetensors" for run in (half, whole)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert weights[0].stat().st_size < 50_000  # without the encoder
    succeed("eval", whole)
    assert "text_to_audio_mrr" in json.loads((whole / "eval.json").read_text())
    succeed("search", whole, data, "--text", "a noise", "--top", 3)
    succeed("export", whole, tmp_path / "hub")
    mulan = MuLaNPipeline.from_pretrained(tmp_path / "hub")
    assert mulan.sample_rate == RATE
    clips = noise(4000, 9000)
    together = mulan.embed_audio(clips, RATE)
    alone = torch.cat([mulan.embed_audio([clip], RATE) for clip in clips])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-6)


def test_an_encoder_with_other_weights_is_refused(folders: dict[str, Path], data: Path, tmp_path: Path) -> None:
    encoder = make_model(tmp_path / "hubert", "hubert")
    run = tmp_path / "run"
    succeed(*command(data, run, encoder))
    make_model(encoder, "hubert", seed=1)
    outcome = quintet("eval", run)
    assert outcome.code == 2
    assert "model.audio.encoder_hash=" in error_line(outcome.errors)
    config = read_config(run / "config.yaml")
    assert isinstance(config, MuLaNConfig)
    with pytest.raises(UsageError, match="encoder_hash"):
        MuLaN(config.model)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (("model.audio.encoder=hf:nowhere-at-all",), "is neither a folder nor"),
        (("model.audio.encoder=letters",), "choose spectrogram, or hf:PATH_OR_NAME"),
        (("model.intermediate_losses=1",), "has no blocks for model.intermediate_losses; set it to 0"),
    ],
)
def test_invalid_encoders_are_refused(
    keys: tuple[str, ...], message: str, folders: dict[str, Path], data: Path, tmp_path: Path
) -> None:
    outcome = quintet(*command(data, tmp_path / "run", folders["hubert"], *keys))
    assert outcome.code == 2
    assert message in error_line(outcome.errors)
    assert not (tmp_path / "run").exists()


def test_a_model_that_is_no_audio_encoder_is_refused(data: Path, tmp_path: Path) -> None:
    from text_models import make_folder

    outcome = quintet(*command(data, tmp_path / "run", make_folder(tmp_path / "t5")))
    assert outcome.code == 2
    assert "holds a model of type t5, which is none of clap, hubert" in error_line(outcome.errors)


def test_a_plan_refuses_a_frozen_encoder(folders: dict[str, Path]) -> None:
    encoder = f"model.audio.encoder=hf:{folders['hubert']}"
    outcome = quintet("plan", "mulan", "--preset", "debug", "--device", "4090", encoder)
    assert outcome.code == 2
    assert "a plan cannot contain model.audio.encoder=hf:" in error_line(outcome.errors)


def test_semantic_tokens_of_a_frozen_encoder_are_those_of_its_folder(
    folders: dict[str, Path], data: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    succeed(*command(data, run, folders["hubert"]))
    outcome = quintet("encode", run, data, "--layer", 1, "--clusters", 2, "--out", tmp_path / "tokens")
    assert outcome.code == 2
    assert "the audio tower of this mulan is frozen: use " in error_line(outcome.errors)


def test_the_frozen_encoder_is_in_no_optimizer_and_shared_by_copies(folders: dict[str, Path]) -> None:
    keys: dict[str, Any] = {"dim": 16, "sample_rate": RATE, "encoder": f"hf:{folders['hubert']}"}
    mulan = MuLaN(audio=keys, text={"dim": 16, "depth": 1, "heads": 2, "head_dim": 8}, latent_dim=8)
    audio = [name for name, _ in mulan.named_parameters() if name.startswith("audio.")]
    assert audio == ["audio.project.weight", "audio.project.bias"]


def test_clips_that_are_longer_than_clap_takes_are_encoded_in_parts(folders: dict[str, Path]) -> None:
    encoder = FrozenAudio(str(folders["clap"]))
    (wave,) = noise(3 * RATE // 2)
    states = encoder.states(wave)
    assert states.shape == (2, 8)
    assert torch.equal(states, encoder.states(wave))  # no random crop
    torch.testing.assert_close(states[:1], encoder.states(wave[:RATE]))
