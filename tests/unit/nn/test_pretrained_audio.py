"""Models of speech of `transformers`, tiny and random, from a folder: what their layers hear of clips of any length."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from audio_models import RATE, make_model, noise
from quintet.errors import UsageError
from quintet.nn import pretrained_audio
from quintet.nn.pretrained_audio import PretrainedAudioEncoder

KINDS = ("hubert", "wav2vec2-bert")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("speech")
    return {kind: make_model(root / kind, kind) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_states_are_the_models_own(kind: str, folders: dict[str, Path]) -> None:
    from transformers import AutoModel, SeamlessM4TFeatureExtractor, Wav2Vec2FeatureExtractor

    hearing = PretrainedAudioEncoder(folders[kind])
    assert (hearing.sample_rate, hearing.token_rate, hearing.depth) == (RATE, 50, 2)
    (wave,) = noise(8000)
    own = AutoModel.from_pretrained(folders[kind]).eval()
    prepare = Wav2Vec2FeatureExtractor() if kind == "hubert" else SeamlessM4TFeatureExtractor()
    prepared = prepare(wave.numpy(), sampling_rate=RATE, return_tensors="pt")
    expected = own(**prepared, output_hidden_states=True).hidden_states
    for layer in (1, 2):
        states = hearing.hidden_states(wave, layer)
        torch.testing.assert_close(states, expected[layer][0, : len(states)])
        assert len(states) == {"hubert": 24, "wav2vec2-bert": 24}[kind]
    assert not torch.allclose(hearing.hidden_states(wave, 1), hearing.hidden_states(wave, 2))


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_clip_is_heard_in_parts_without_a_gap(
    kind: str, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    hearing = PretrainedAudioEncoder(folders[kind])
    (wave,) = noise(20_000)
    whole = hearing.hidden_states(wave, 1)
    monkeypatch.setattr(pretrained_audio, "MAX_SECONDS", 0.3)
    parts = hearing.hidden_states(wave, 1)
    assert parts.shape == whole.shape
    assert not torch.equal(parts, whole)
    # What a step hears of its own moment outweighs what it hears of others.
    nearest = torch.cdist(parts, whole).argmin(1)
    assert (nearest == torch.arange(len(whole))).float().mean() > 0.5


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("samples", [1, 300, 561])
def test_a_short_clip_has_at_least_one_step(kind: str, samples: int, folders: dict[str, Path]) -> None:
    (wave,) = noise(samples)
    states = PretrainedAudioEncoder(folders[kind]).hidden_states(wave, 2)
    assert len(states) == 1
    assert states.isfinite().all()


def test_the_folders_own_preprocessor_is_used(folders: dict[str, Path], tmp_path: Path) -> None:
    from transformers import Wav2Vec2FeatureExtractor

    place = shutil.copytree(folders["hubert"], tmp_path / "hubert")
    Wav2Vec2FeatureExtractor(do_normalize=False, sampling_rate=8000).save_pretrained(place)
    plain, scaled = PretrainedAudioEncoder(place), PretrainedAudioEncoder(folders["hubert"])
    assert (plain.sample_rate, plain.token_rate) == (8000, 25)
    assert plain.digest != scaled.digest
    (wave,) = noise(2000)
    assert not torch.allclose(plain.hidden_states(wave, 1), plain.hidden_states(wave * 0.01, 1), atol=1e-4)
    torch.testing.assert_close(scaled.hidden_states(wave, 1), scaled.hidden_states(wave * 0.5, 1), rtol=1e-3, atol=1e-3)


def test_pickles_and_missing_weights_are_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    place = shutil.copytree(folders["hubert"], tmp_path / "hubert")
    weights = load_file(place / "model.safetensors")
    (place / "model.safetensors").unlink()
    torch.save(weights, place / "pytorch_model.bin")
    with pytest.raises(UsageError, match="reads no pickle"):
        PretrainedAudioEncoder(place)
    weights.pop("masked_spec_embed")  # is for training alone
    save_file(weights, place / "model.safetensors", metadata={"format": "pt"})
    assert PretrainedAudioEncoder(place).depth == 2
    weights.pop("feature_projection.projection.weight")
    save_file(weights, place / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UsageError, match="lacks weights of its speech model"):
        PretrainedAudioEncoder(place)
