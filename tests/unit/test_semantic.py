"""Semantic tokens: clusters of what the layers of a MuLaN, or of a HuBERT, hear, as files for SoundStorm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from audio_models import RATE, make_model, noise, sound_folder
from helpers import quintet, succeed
from quintet import semantic
from quintet.config import build
from quintet.data.token_files import read_semantic
from quintet.errors import UsageError
from quintet.families.mulan.config import MuLaNConfig
from quintet.families.mulan.features import MuLaNFeatures
from quintet.families.mulan.pipeline import MuLaNPipeline

STEP = 80 * 8
"""Samples of one step of the MuLaN below, which makes 25 of them a second."""
KEYS = {"hop_length": 80, "patch_size": 8, "n_mels": 16, "frequency_mask": 8}


@pytest.fixture(scope="module")
def mulan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As an export has it, untrained."""
    torch.manual_seed(0)
    config = build(MuLaNConfig, preset="debug", overrides={"model.audio": KEYS, "data.seconds": 1.0})
    folder = tmp_path_factory.mktemp("mulan") / "export"
    MuLaNPipeline(config, MuLaNPipeline.build_modules(config, {})).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def hubert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("hubert") / "model", "hubert")


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = sound_folder(tmp_path_factory.mktemp("clips") / "sounds", 1.0, 0.5, 2.5, 0.01)
    (folder / "broken.wav").write_bytes(b"this is no sound")
    return folder


# --- MuLaN --------------------------------------------------------------------------------------------------------


def features_of(folder: Path) -> MuLaNFeatures:
    extractor = semantic.open_audio_features(str(folder))
    assert isinstance(extractor, MuLaNFeatures)
    return extractor


@pytest.mark.parametrize("samples", [1, STEP - 1, STEP, STEP + 1, 7 * STEP, RATE, RATE + 1, 40 * RATE + 3 * STEP])
def test_mulan_makes_a_step_of_every_column_of_patches(samples: int, mulan: Path) -> None:
    extractor = features_of(mulan)
    assert (extractor.sample_rate, extractor.token_rate, extractor.depth) == (RATE, 25, 2)
    assert extractor.hidden_states(torch.zeros(samples), 2).shape == (-(-samples // STEP), 32)


def test_a_step_of_mulan_is_the_mean_over_its_bands(mulan: Path) -> None:
    """Taken from the blocks themselves; and windows of training length are heard one by one."""
    extractor = features_of(mulan)
    tower = extractor.tower
    (wave,) = noise(2 * RATE)
    outputs: list[torch.Tensor] = []
    hook = tower.transformer.blocks[0].register_forward_hook(lambda *parts: outputs.append(parts[2].detach()))
    states = extractor.hidden_states(wave, 1)
    hook.remove()
    rows, columns = tower.config.grid[0], outputs[0].shape[1] // tower.config.grid[0]
    expected = outputs[0].view(2, rows, columns, -1).mean(1)[:, :25].flatten(0, 1)
    torch.testing.assert_close(states, expected)
    torch.testing.assert_close(states[25:], extractor.hidden_states(wave[RATE:], 1), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(states, extractor.hidden_states(wave, 2))


def test_tokens_of_a_folder(mulan: Path, clips: Path, tmp_path: Path) -> None:
    told = succeed("encode", mulan, clips, "--layer", 2, "--clusters", 16, "--out", tmp_path / "tokens")
    assert "16 clusters of 102 steps" in told.output
    assert f"data.semantic_tokens={tmp_path / 'tokens'}" in told.output
    tokens = read_semantic(tmp_path / "tokens")
    assert (tokens.num_codes, tokens.rate) == (16, 25)
    assert {file: len(row) for file, row in tokens.of_file.items()} == {
        "00.wav": 25, "01.wav": 13, "02.wav": 63, "03.wav": 1,
    }  # fmt: skip
    assert len(torch.cat(list(tokens.of_file.values())).unique()) == 16
    lines = [json.loads(line) for line in (tmp_path / "tokens" / "items.jsonl").read_text().splitlines()]
    assert [line["file"] for line in lines if "skipped" in line] == ["broken.wav"]
    about = json.loads((tmp_path / "tokens" / "codes.json").read_text())
    assert (about["layer"], about["model"]) == (2, str(mulan))
    # The nearest centre, after scaling; from the file alone.
    found = semantic.read_centroids(tmp_path / "tokens" / "centroids.safetensors")
    states = features_of(mulan).hidden_states(semantic._wave(semantic._folder(str(clips), features_of(mulan)), 1), 2)
    expected = torch.cdist((states - found.mean) / found.deviation, found.centres).argmin(1)
    names = [line["file"] for line in lines]
    assert torch.equal(tokens.of_file[names[1]], expected)


def test_another_folder_is_given_the_same_tokens(mulan: Path, clips: Path, tmp_path: Path) -> None:
    succeed("encode", mulan, clips, "--layer", 1, "--clusters", 8, "--out", tmp_path / "first")
    first = read_semantic(tmp_path / "first")
    other = sound_folder(tmp_path / "sounds", 1.0)
    for number, place in enumerate((tmp_path / "first", tmp_path / "first" / "centroids.safetensors")):
        succeed("encode", mulan, other, "--centroids", place, "--out", tmp_path / f"again-{number}")
        again = read_semantic(tmp_path / f"again-{number}")
        assert torch.equal(again.of_file["00.wav"], first.of_file["00.wav"])
        assert again.num_codes == 8


def test_the_same_seed_gives_the_same_tokens(mulan: Path, clips: Path, tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        succeed("encode", mulan, clips, "--layer", 2, "--clusters", 8, "--seed", seed, "--out", tmp_path / name)
    first, again, other = ((tmp_path / name / "centroids.safetensors").read_bytes() for name in "abc")
    assert first == again
    assert first != other


def test_of_much_sound_a_share_is_heard(mulan: Path, clips: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extractor = features_of(mulan)
    folder = semantic._folder(str(clips), extractor)
    everything = torch.cat(list(semantic._sample_states(extractor, folder, 1, 0)))
    assert len(everything) == 102
    monkeypatch.setattr(semantic, "NUM_SAMPLED", 40)
    some = torch.cat(list(semantic._sample_states(extractor, folder, 1, 0)))
    assert 20 <= len(some) <= 60
    apart = torch.cdist(some, everything, compute_mode="donot_use_mm_for_euclid_dist")
    assert apart.min(1).values.max() < 1e-4
    monkeypatch.setattr(semantic, "NUM_SAMPLED", 2)
    assert len(list(semantic._sample_states(extractor, folder, 1, 0))) < 4


# --- HuBERT -------------------------------------------------------------------------------------------------------


def test_tokens_of_a_hubert(hubert: Path, clips: Path, tmp_path: Path) -> None:
    succeed("encode", hubert, clips, "--layer", 1, "--clusters", 12, "--out", tmp_path / "tokens")
    tokens = read_semantic(tmp_path / "tokens")
    assert (tokens.num_codes, tokens.rate) == (12, 50)
    assert {file: len(row) for file, row in tokens.of_file.items()} == {
        "00.wav": 49, "01.wav": 24, "02.wav": 124, "03.wav": 1,
    }  # fmt: skip


# --- mistakes -----------------------------------------------------------------------------------------------------


def test_what_does_not_fit_is_refused_before_anything_is_written(
    mulan: Path, hubert: Path, clips: Path, tmp_path: Path
) -> None:
    succeed("encode", mulan, clips, "--layer", 1, "--clusters", 8, "--out", tmp_path / "tokens")
    given = ("--centroids", tmp_path / "tokens")
    wrong: list[tuple[Path, tuple[object, ...], str]] = [
        (mulan, ("--layer", 3), "has layers 1 to 2"),
        (mulan, ("--layer", 0), "has layers 1 to 2"),
        (mulan, ("--layer", 1, "--clusters", 1), "at least 2"),
        (mulan, ("--layer", 1, "--clusters", 104), "is more than the 102 time steps"),
        (mulan, ("--clusters", 8), "also name a layer"),
        (mulan, (), "recipe 'mulan' is not a tokenizer; use --layer N to encode semantic tokens"),
        (hubert, (), "--layer N"),
        (hubert, given, "are from another model"),
        (mulan, (*given, "--layer", 2), "are from layer 1"),
        (mulan, (*given, "--clusters", 9), "there are 8 --centroids"),
        (mulan, ("--centroids", clips / "00.wav"), "does not contain clusters"),
        (mulan, ("--centroids", mulan), "does not contain clusters"),
    ]
    for model, words, reason in wrong:
        told = quintet("encode", model, clips, *words, "--out", tmp_path / "none")
        assert told.code != 0
        assert reason in told.errors, words
        assert not (tmp_path / "none").exists()
    told = quintet("encode", mulan, clips, "--layer", 1, "--out", tmp_path / "tokens")
    assert "exists already" in told.errors


def test_a_model_that_hears_nothing_is_refused(trained: Path, clips: Path, tmp_path: Path) -> None:
    told = quintet("encode", trained, clips, "--layer", 1, "--out", tmp_path / "none")
    assert "has no audio encoder layers" in told.errors


def test_token_files_that_are_not_what_they_say_are_refused(mulan: Path, clips: Path, tmp_path: Path) -> None:
    semantic.encode_folder(str(mulan), str(clips), tmp_path / "tokens", layer=1, clusters=8)
    about = tmp_path / "tokens" / "codes.json"
    kept = json.loads(about.read_text())
    (about.parent / "SHA256SUMS").unlink()  # otherwise the hashes say that they were changed
    for change in ({"num_codes": 3}, {"num_codes": "8"}, {"rate": 0}, {"rate": None}):
        about.write_text(json.dumps({**kept, **change}))
        with pytest.raises(UsageError, match="does not hold semantic tokens"):
            read_semantic(tmp_path / "tokens")
    about.unlink()
    with pytest.raises(UsageError, match="does not hold semantic tokens"):
        read_semantic(tmp_path / "tokens")
