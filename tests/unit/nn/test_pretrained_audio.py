"""Tiny random speech models of `transformers`: hidden states of clips of any length."""

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
def test_hidden_states_equal_those_of_transformers(kind: str, folders: dict[str, Path]) -> None:
    from transformers import AutoModel, SeamlessM4TFeatureExtractor, Wav2Vec2FeatureExtractor

    encoder = PretrainedAudioEncoder(folders[kind])
    assert (encoder.sample_rate, encoder.token_rate, encoder.depth) == (RATE, 50, 2)
    (wave,) = noise(8000)
    own = AutoModel.from_pretrained(folders[kind]).eval()
    prepare = Wav2Vec2FeatureExtractor() if kind == "hubert" else SeamlessM4TFeatureExtractor()
    prepared = prepare(wave.numpy(), sampling_rate=RATE, return_tensors="pt")
    expected = own(**prepared, output_hidden_states=True).hidden_states
    for layer in (1, 2):
        states = encoder.hidden_states(wave, layer)
        torch.testing.assert_close(states, expected[layer][0, : len(states)])
        assert len(states) == {"hubert": 24, "wav2vec2-bert": 24}[kind]
    assert not torch.allclose(encoder.hidden_states(wave, 1), encoder.hidden_states(wave, 2))


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_clip_is_encoded_in_contiguous_parts(
    kind: str, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = PretrainedAudioEncoder(folders[kind])
    (wave,) = noise(20_000)
    full = encoder.hidden_states(wave, 1)
    monkeypatch.setattr(pretrained_audio, "MAX_SECONDS", 0.3)
    parts = encoder.hidden_states(wave, 1)
    assert parts.shape == full.shape
    assert not torch.equal(parts, full)
    # A hidden state depends mostly on the audio at its own time.
    nearest = torch.cdist(parts, full).argmin(1)
    assert (nearest == torch.arange(len(full))).float().mean() > 0.5


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("samples", [1, 300, 561])
def test_a_short_clip_has_at_least_one_step(kind: str, samples: int, folders: dict[str, Path]) -> None:
    (wave,) = noise(samples)
    states = PretrainedAudioEncoder(folders[kind]).hidden_states(wave, 2)
    assert len(states) == 1
    assert states.isfinite().all()


def test_the_preprocessor_of_the_folder_is_used(folders: dict[str, Path], tmp_path: Path) -> None:
    from transformers import Wav2Vec2FeatureExtractor

    position = shutil.copytree(folders["hubert"], tmp_path / "hubert")
    Wav2Vec2FeatureExtractor(do_normalize=False, sampling_rate=8000).save_pretrained(position)
    plain, scaled = PretrainedAudioEncoder(position), PretrainedAudioEncoder(folders["hubert"])
    assert (plain.sample_rate, plain.token_rate) == (8000, 25)
    assert plain.digest != scaled.digest
    (wave,) = noise(2000)
    assert not torch.allclose(plain.hidden_states(wave, 1), plain.hidden_states(wave * 0.01, 1), atol=1e-4)
    torch.testing.assert_close(scaled.hidden_states(wave, 1), scaled.hidden_states(wave * 0.5, 1), rtol=1e-3, atol=1e-3)


def test_pickles_and_missing_weights_are_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    position = shutil.copytree(folders["hubert"], tmp_path / "hubert")
    weights = load_file(position / "model.safetensors")
    (position / "model.safetensors").unlink()
    torch.save(weights, position / "pytorch_model.bin")
    with pytest.raises(UsageError, match="reads no pickle"):
        PretrainedAudioEncoder(position)
    weights.pop("masked_spec_embed")  # is for training alone
    save_file(weights, position / "model.safetensors", metadata={"format": "pt"})
    assert PretrainedAudioEncoder(position).depth == 2
    weights.pop("feature_projection.projection.weight")
    save_file(weights, position / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UsageError, match="lacks weights of its speech model"):
        PretrainedAudioEncoder(position)
