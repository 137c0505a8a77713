"""`PretrainedCodec`: tiny random codecs of `transformers`, whose codes and waveforms equal those of the library."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import soundfile
import torch

from audio_models import CODES, RATE, make_model, noise, sound_folder
from helpers import quintet, succeed
from quintet import PretrainedCodec
from quintet.errors import UsageError
from quintet.families.audio_codec.pipeline import AudioCodecPipeline
from quintet.pipelines.loading import open_pipeline

KINDS = ("encodec", "dac", "mimi")
HOPS = {"encodec": 320, "dac": 320, "mimi": 160}
LEVELS = {"encodec": 4, "dac": 3, "mimi": 5}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("codecs")
    return {kind: make_model(root / kind, kind) for kind in KINDS}


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    def refuse(*_: Any) -> None:
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def own_codes(model: Any, waves: torch.Tensor) -> torch.Tensor:
    """The codes of the library, (batch, quantizers, frames)."""
    encodec = model.config.model_type == "encodec"
    codes: torch.Tensor = model.encode(waves, bandwidth=0.8)[0][0] if encodec else model.encode(waves).audio_codes
    return codes


def own_waves(model: Any, codes: torch.Tensor) -> torch.Tensor:
    if model.config.model_type == "dac":
        waves: torch.Tensor = model.decode(audio_codes=codes).audio_values
        return waves
    return (model.decode(codes[None], [None]) if model.config.model_type == "encodec" else model.decode(codes))[0][:, 0]


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_codes_and_waveforms_equal_those_of_the_library(kind: str, folders: dict[str, Path]) -> None:
    from transformers import AutoModel

    codec, own = PretrainedCodec.from_transformers(folders[kind]), AutoModel.from_pretrained(folders[kind]).eval()
    hop, levels = HOPS[kind], LEVELS[kind]
    assert (codec.sample_rate, codec.hop, codec.num_quantizers, codec.num_codes) == (RATE, hop, levels, CODES)
    assert codec.frame_rate == RATE / hop
    assert codec.bitrate == RATE / hop * levels * 4
    waves = torch.stack(noise(9 * hop, 9 * hop))
    codes = codec.encode(waves)
    assert codes.shape == (2, 9, levels)
    assert torch.equal(codes.transpose(1, 2), own_codes(own, waves[:, None]))
    assert len(codes.unique()) > 4
    expected = own_waves(own, codes.transpose(1, 2)).clamp(-1, 1)
    decoded = codec.decode(codes)
    assert decoded.shape == (2, 9 * hop)
    torch.testing.assert_close(decoded[:, : expected.shape[1]], expected)
    assert expected.shape[1] > 9 * hop - 20
    assert not decoded[:, expected.shape[1] :].any()
    assert not codec.training
    assert not any(parameter.requires_grad for parameter in codec.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_a_clip_is_the_same_alone_and_in_a_padded_batch(kind: str, folders: dict[str, Path]) -> None:
    """Includes a clip shorter than a frame, and clips that end in the middle of a frame."""
    codec, hop = PretrainedCodec.from_transformers(folders[kind]), HOPS[kind]
    rows = noise(7 * hop, 5, 3 * hop + 11, 3 * hop + 11)
    lengths = torch.tensor([len(row) for row in rows])
    codes = codec.encode(torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), lengths)
    assert (codes >= 0).all(-1).sum(1).tolist() == codec.frames(lengths).tolist() == [7, 1, 4, 4]
    decoded = codec.decode(codes)
    for row, alone in enumerate(rows):
        frames = int(codec.frames(lengths[row]))
        assert torch.equal(codec.encode(alone[None])[0], codes[row, :frames])
        assert (codes[row, frames:] == -1).all()
        torch.testing.assert_close(codec.decode(codes[row : row + 1, :frames])[0], decoded[row, : frames * hop])
        assert not decoded[row, frames * hop :].any()


@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_quantizers_decodes(kind: str, folders: dict[str, Path]) -> None:
    codec = PretrainedCodec.from_transformers(folders[kind])
    waves = torch.stack(noise(5 * codec.hop))
    whole = codec.encode(waves)
    decoded = []
    for levels in range(1, codec.num_quantizers + 1):
        assert torch.equal(codec.encode(waves, num_quantizers=levels), whole[..., :levels])
        decoded.append(codec.decode(whole[..., :levels]))
    assert all(wave.shape == (1, 5 * codec.hop) for wave in decoded)
    assert not torch.allclose(decoded[0], decoded[-1])


@pytest.mark.parametrize("kind", KINDS)
def test_codebooks_have_distinct_vectors_for_every_quantizer(kind: str, folders: dict[str, Path]) -> None:
    books = PretrainedCodec.from_transformers(folders[kind]).codebooks
    assert books.shape[:2] == (LEVELS[kind], CODES)
    assert all(len(book.unique(dim=0)) == CODES for book in books)


def test_invalid_codes_are_refused(folders: dict[str, Path]) -> None:
    codec = PretrainedCodec.from_transformers(folders["dac"])
    codes = torch.zeros(1, 4, 3, dtype=torch.int64)
    for wrong in (codes.index_fill(1, torch.tensor([1]), -1), codes + CODES, codes - torch.tensor([0, 0, 1])):
        with pytest.raises(UsageError, match="from 0 to 15, and -1 for all quantizers"):
            codec.decode(wrong)
    with pytest.raises(UsageError, match="at most 3 quantizers"):
        codec.decode(torch.zeros(1, 4, 4, dtype=torch.int64))
    with pytest.raises(UsageError, match="mono audio"):
        codec.encode(torch.zeros(1, 1, 320))


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_copy_does_not_need_the_original_folder(kind: str, folders: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(folders[kind], tmp_path / "codec")
    original = open_pipeline(folder)
    original.save_pretrained(tmp_path / "copy")
    shutil.rmtree(folder)
    again = open_pipeline(tmp_path / "copy")
    assert again.digest == original.digest
    assert (again.model.sample_rate, again.model.hop, again.model.num_quantizers) == (RATE, HOPS[kind], LEVELS[kind])
    waves = torch.stack(noise(2000))
    assert torch.equal(again.model.encode(waves), original.model.encode(waves))
    assert torch.equal(PretrainedCodec.from_pretrained(tmp_path / "copy").encode(waves), original.model.encode(waves))


@pytest.mark.parametrize("kind", KINDS)
def test_its_folder_opens_as_a_pipeline(kind: str, folders: dict[str, Path]) -> None:
    pipeline = AudioCodecPipeline.from_pretrained(folders[kind])
    assert pipeline.sample_rate == RATE
    waves = torch.stack(noise(2000))
    codes = pipeline.encode(waves)
    assert codes.shape == (1, -(-2000 // HOPS[kind]), LEVELS[kind])
    assert torch.equal(codes, PretrainedCodec.from_transformers(folders[kind]).encode(waves))
    assert pipeline.decode(codes).shape == (1, codes.shape[1] * HOPS[kind])


def test_other_weights_or_settings_have_another_digest(folders: dict[str, Path], tmp_path: Path) -> None:
    other = make_model(tmp_path / "other", "mimi", seed=1)
    wider = shutil.copytree(folders["mimi"], tmp_path / "wider")
    settings = json.loads((wider / "config.json").read_text())
    (wider / "config.json").write_text(json.dumps({**settings, "sliding_window": 2}))
    assert len({open_pipeline(each).digest for each in (folders["mimi"], other, wider)}) == 3


def test_the_commands_take_its_folder(folders: dict[str, Path], tmp_path: Path) -> None:
    sounds = sound_folder(tmp_path / "sounds", 0.3, 0.21, 0.5)
    succeed("encode", folders["dac"], sounds, "--out", tmp_path / "codes")
    succeed("decode", folders["dac"], tmp_path / "codes", "--out", tmp_path / "decoded")
    files = sorted((tmp_path / "decoded").glob("[!.]*"))
    assert [soundfile.info(file).samplerate for file in files] == [RATE] * 3
    assert [soundfile.info(file).frames for file in files] == [15 * 320, 11 * 320, 25 * 320]
    succeed("eval", folders["dac"], "--data", sounds, "--out", tmp_path / "metrics.json")
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert metrics["bitrate_kbps"] == pytest.approx(RATE / 320 * 3 * 4 / 1000)
    assert metrics["mel_distance"] > 0


def test_soundstorm_trains_on_it_and_saves_a_copy(folders: dict[str, Path], tmp_path: Path) -> None:
    sounds = sound_folder(tmp_path / "sounds", *[0.3] * 10)
    folder = shutil.copytree(folders["mimi"], tmp_path / "mimi")
    words = (
        "--preset",
        "debug",
        "train.steps=2",
        "train.batch_size=2",
        "data.seconds=0.2",
        f"data.cache_dir={tmp_path}",
    )
    succeed("train", "soundstorm", sounds, "--tokenizer", folder, *words, "--out", tmp_path / "run")
    digest = open_pipeline(folder).digest
    shutil.rmtree(folder)
    assert open_pipeline(tmp_path / "run" / "tokenizer").digest == digest
    saved = {path.name for path in (tmp_path / "run" / "checkpoints" / "step-00000002").glob("*.safetensors")}
    assert saved == {"soundstorm.safetensors"}
    succeed("sample", tmp_path / "run", "--seconds", 0.1, "--num", 1, "--out", tmp_path / "samples")
    assert soundfile.info(tmp_path / "samples" / "000.wav").frames == 10 * HOPS["mimi"]


def test_training_it_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    sounds = sound_folder(tmp_path / "sounds", *[0.3] * 10)
    codec = PretrainedCodec.from_transformers(folders["dac"])
    outcome = quintet(
        "train", "audio-codec", sounds, "--preset", "debug",
        f"model.transformers_config='{codec.config.transformers_config}'",
        "--out", tmp_path / "run",
    )  # fmt: skip
    assert outcome.code != 0
    assert "a pretrained transformers codec cannot be trained" in outcome.errors


@pytest.mark.parametrize(
    ("kind", "changes", "reason"),
    [
        ("encodec", {"audio_channels": 2}, "has 2 channels"),
        ("encodec", {"normalize": True}, "stores more than codes"),
        ("hubert", {}, "of type hubert; supported types: .*encodec, dac, mimi; use `quintet encode"),
    ],
)
def test_folders_of_other_models_are_refused(kind: str, changes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=reason):
        open_pipeline(make_model(tmp_path / "model", kind, **changes))


def test_pickles_and_missing_weights_are_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(folders["dac"], tmp_path / "dac")
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    with pytest.raises(UsageError, match="reads no pickle"):
        open_pipeline(folder)
    weights.pop("quantizer.quantizers.1.codebook.weight")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UsageError, match="lacks weights of its neural audio codec"):
        open_pipeline(folder)
    with pytest.raises(UsageError, match="neither a folder nor in the local Hugging Face cache"):
        open_pipeline("hf:nobody/nothing")
