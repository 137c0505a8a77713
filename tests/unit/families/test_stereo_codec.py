"""The audio codec in stereo: codes of the mean and of the difference of the channels, as a whole and in chunks."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from quintet import AudioCodec, AudioCodecTrainer, config, runs
from quintet.common.batch import Batch
from quintet.common.rng import ItemRNG
from quintet.config import AudioDataConfig
from quintet.data.audio import pad_windows, python_audio_splits
from quintet.errors import UnreadableItem, UsageError
from quintet.families.audio_codec import model as codec_model
from quintet.families.audio_codec.config import AudioCodecConfig
from quintet.families.audio_codec.stereo import from_signals, joined, separated, to_signals
from quintet.families.audio_codec.task import AudioCodecTask, audibility, balance_gradients
from quintet.media.audio import read_channels, write_audio
from quintet.training.engine import Engine

RATE, HOP = 8000, 30
SMALL: dict[str, Any] = {
    "sample_rate": RATE,
    "channels": 2,
    "strides": (5, 3, 2),
    "dim": 4,
    "num_residual_units": 2,
    "latent_dim": 8,
    "num_quantizers": 4,
    "codebook_size": 16,
}
FRONTS: dict[str, dict[str, Any]] = {
    "samples": {},
    "transform": {"transform": 30, "strides": (), "latent_dim": None},
}
fronts = pytest.mark.parametrize("front", FRONTS)


def make_codec(**keywords: Any) -> AudioCodec:
    torch.manual_seed(0)
    codec = AudioCodec(**{**SMALL, **keywords}).double()
    for name, parameter in codec.named_parameters():
        if "second.conv.weight" in name or (keywords.get("transform") and name.endswith("conv.weight")):
            with torch.no_grad():
                parameter.add_(0.1 * torch.randn_like(parameter))
    return codec


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 0.1


def test_mid_and_side_are_the_mean_and_half_the_difference() -> None:
    waves = noise(3, 2, 50)
    signals = to_signals(waves)
    torch.testing.assert_close(signals[0::2], waves.mean(1))
    torch.testing.assert_close(signals[1::2], (waves[:, 0] - waves[:, 1]) / 2)
    torch.testing.assert_close(from_signals(signals, 2), waves)
    latents = noise(6, 8, 5)
    vectors = joined(latents, 2, 2)
    assert vectors.shape == (3, 5, 16)
    # The first part (loudness) of mid, that of side, then the second part (phase) of mid, and of side.
    expected = torch.cat([latents[0, :4], latents[1, :4], latents[0, 4:], latents[1, 4:]])
    torch.testing.assert_close(vectors[0], expected.t())
    assert torch.equal(separated(vectors, 2, 2), latents)


@fronts
@pytest.mark.parametrize("causal", [False, True])
def test_a_stereo_clip_alone_equals_the_clip_in_a_padded_batch(front: str, causal: bool) -> None:
    codec = make_codec(causal=causal, **FRONTS[front])
    rows = [noise(2, length, seed=length) for length in (31, 700, 1000)]
    waves = torch.stack([F.pad(row, (0, 1000 - row.shape[1]), value=0.7) for row in rows])
    lengths = torch.tensor([31, 700, 1000])
    codes, together = codec.encode(waves, lengths), codec(waves, lengths)
    decoded = codec.decode(codes)
    assert decoded.shape == (3, 2, math.ceil(1000 / HOP) * HOP)
    for number, row in enumerate(rows):
        alone = codec.encode(row[None])
        frames = alone.shape[1]
        assert alone.shape == (1, math.ceil(row.shape[1] / HOP), 4)
        assert torch.equal(codes[number, :frames], alone[0])
        assert (codes[number, frames:] == -1).all()
        torch.testing.assert_close(decoded[number, :, : frames * HOP], codec.decode(alone)[0], rtol=0, atol=1e-12)
        assert (decoded[number, :, frames * HOP :] == 0).all()
        whole = codec.decode(alone)[0, :, : row.shape[1]]
        torch.testing.assert_close(together.waves[number, :, : row.shape[1]].clamp(-1, 1), whole, rtol=0, atol=1e-12)
        assert (together.waves[number, :, row.shape[1] :] == 0).all()


@fronts
@pytest.mark.parametrize(("samples", "chunk"), [(29, 7), (1001, 77), (60, 1000)])
def test_a_stereo_stream_equals_the_whole_clip(samples: int, chunk: int, front: str) -> None:
    codec = make_codec(**FRONTS[front])
    waves = noise(2, 2, samples)
    codes = codec.encode(waves)
    stream = codec.encode_stream()
    parts = [*(stream.push(part) for part in waves.split(chunk, dim=2)), stream.finish()]
    assert torch.equal(torch.cat(parts, dim=1), codes)
    back = codec.decode_stream()
    decoded = [*(back.push(part) for part in codes.split(3, dim=1)), back.finish()]
    torch.testing.assert_close(torch.cat(decoded, dim=2), codec.decode(codes), rtol=0, atol=1e-12)


def test_long_stereo_clips_go_through_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    codec = make_codec()
    waves, lengths = noise(2, 2, 1000), torch.tensor([1000, 301])
    codes = codec.encode(waves, lengths)
    decoded = codec.decode(codes)
    monkeypatch.setattr(codec_model, "MAX_SAMPLES_AT_ONCE", 400)
    monkeypatch.setattr(codec_model, "CHUNK", 128)
    assert torch.equal(codec.encode(waves, lengths), codes)
    torch.testing.assert_close(codec.decode(codes), decoded, rtol=0, atol=1e-12)


@fronts
def test_each_signal_has_its_own_quantizers(front: str) -> None:
    codec = make_codec(**FRONTS[front])
    mid, side = noise(1, 600), noise(1, 600, seed=1)
    stereo, mono = (
        codec.encode(torch.stack([mid + part, mid - part], dim=1)) for part in (side, torch.zeros_like(side))
    )
    own = [0, 1] if front == "samples" else [0, 2]
    others = [number for number in range(4) if number not in own]
    # Adding and halving rounds: a code at the edge of two cells may differ.
    assert (stereo[..., own] == mono[..., own]).double().mean() > 0.95
    assert (stereo[..., others] != mono[..., others]).double().mean() > 0.2


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"num_quantizers": 3}, r"model\.num_quantizers=3 must be even with model\.channels=2"),
        ({"channels": 3}, "input should be 1 or 2"),
        (
            {**FRONTS["transform"], "num_loudness_quantizers": 1},
            r"model\.num_loudness_quantizers=1 must be even with model\.channels=2",
        ),
        ({**FRONTS["transform"], "num_quantizers": 2}, "the other quantizers encode phases"),
    ],
)
def test_quantizers_that_cannot_be_halved_are_refused(keys: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        AudioCodec(**{**SMALL, **keys})


def test_audio_without_two_channels_is_refused_by_a_stereo_codec() -> None:
    codec = make_codec()
    for shape in ((100,), (2, 100), (1, 1, 100), (1, 3, 100), (1, 2, 0)):
        with pytest.raises(UsageError, match=r"stereo audio of shape \(batch, 2, samples\), not"):
            codec.encode(torch.zeros(*shape))
    with pytest.raises(UsageError, match="stereo audio of shape"):
        codec.encode_stream().push(torch.zeros(2, 600))
    with pytest.raises(UsageError, match="stereo audio of shape"):
        codec(torch.zeros(2, 600), torch.tensor([600, 600]))
    with pytest.raises(UsageError, match="mono audio of shape"):
        make_codec(channels=1).encode_stream().push(torch.zeros(1, 2, 600))


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_files_of_any_number_of_channels_are_read_in_stereo(channels: int, tmp_path: Path) -> None:
    samples = noise(channels, 400).numpy()
    path = write_audio(samples, tmp_path / "a.wav", RATE)
    expected = samples if channels == 2 else samples.mean(0, keepdims=True).repeat(2, 0)
    np.testing.assert_allclose(read_channels(path, 2, RATE), expected, atol=1e-4)
    np.testing.assert_allclose(read_channels(path, 1, RATE), samples.mean(0, keepdims=True), atol=1e-4)
    np.testing.assert_allclose(read_channels(path, 2, RATE, start=100, frames=50), expected[:, 100:150], atol=1e-4)


def test_items_of_a_python_dataset_may_be_mono_or_stereo() -> None:
    waves = [noise(500).float(), noise(1, 500).float(), noise(2, 500).float(), noise(3, 500).float()]
    keys = AudioDataConfig(seconds=0.05, validation_fraction=0.0)
    source = python_audio_splits(waves, keys, RATE, captioned=False, channels=2).train
    for item in range(3):
        assert source.load(item, ItemRNG(0, [0], [item]))["wavs"].shape == (1, 2, 400)
    first = source.load(0, ItemRNG(0, [0], [0]))["wavs"][0]
    assert torch.equal(first[0], first[1])
    with pytest.raises(UnreadableItem, match="has 3 channels; mix them to one or two"):
        source.load(3, ItemRNG(0, [0], [3]))


def make_task(**keys: Any) -> AudioCodecTask:
    overrides = {
        **{f"model.{name}": value for name, value in SMALL.items()},
        **{"data.seconds": 0.1, "eval.seconds": 0.2, "loss.mel_windows": [128, 64], "engine.precision": "fp64"},
        **{"loss.discriminator_start": 0, "loss.discriminator_ramp": 0, "loss.discriminator_dim": 4},
        **{"loss.stft_windows": [128], "loss.periods": [3], **keys},
    }
    task = runs.make_task(config.build(AudioCodecConfig, overrides=overrides), {})
    assert isinstance(task, AudioCodecTask)
    Engine(task.config.engine).to_device(task.modules)
    return task


def batch_of(waves: Tensor) -> Batch:
    items = [{"wavs": wave[None], "lengths": torch.tensor([wave.shape[1]])} for wave in waves]
    names = tuple(map(str, range(len(items))))
    return Batch(pad_windows(items), names, ItemRNG(0, [0] * len(items), range(len(items))), torch.float64)


def test_the_losses_compare_mid_and_side() -> None:
    task = make_task()
    waves = noise(3, 2, 800)
    output = task.forward(task.modules, batch_of(waves), 0)
    assert torch.equal(output["waves"], to_signals(waves))
    assert output["decoded"].shape == (6, 800)
    assert output["lengths"].tolist() == [800] * 6
    loss = task.generator_loss(task.modules, batch_of(waves), output, 0).value
    loss.backward()
    assert torch.isfinite(loss)
    assert all(parameter.grad is not None for parameter in task.model.parameters() if parameter.requires_grad)


def test_silence_that_is_decoded_as_silence_has_no_balanced_gradient() -> None:
    waves = torch.stack([noise(50), torch.zeros(50), torch.zeros(50)])
    decoded = torch.stack([noise(50, seed=1), 1e-4 * torch.ones(50), 1e-16 * torch.ones(50)]).requires_grad_()
    scale = audibility(decoded, waves)
    value = balance_gradients(decoded, [(1.0, decoded.square().sum(1))], scale)
    (gradient,) = torch.autograd.grad(value, decoded)
    expected = torch.tensor([1 / 3, 1 / 3, 0], dtype=torch.float64)
    torch.testing.assert_close(gradient.norm(dim=1), expected, rtol=1e-6, atol=1e-11)


def test_the_difference_of_the_channels_has_a_metric_of_its_own() -> None:
    task = make_task()
    waves = noise(3, 2, 800)
    waves[2, 1] = waves[2, 0]  # no difference: the metric is undefined
    sums = task.measure(task.modules, batch_of(waves))
    assert (int(sums.sums["audible"]), int(sums.sums["audible_side"]), int(sums.sums["count"])) == (3, 2, 6)
    metrics = task.summarise(sums)
    assert math.isfinite(metrics["si_sdr_side"])
    mono = task.summarise(task.measure(task.modules, batch_of(waves[2:])))
    assert "si_sdr_side" not in mono


def test_a_stereo_codec_trains_from_python_and_is_exported(tmp_path: Path) -> None:
    waves = [noise(2, 800, seed=seed).float() for seed in range(8)]
    codec = AudioCodec(**SMALL)
    trainer = AudioCodecTrainer(codec, data=waves, out=tmp_path / "run", steps=2, batch_size=4)
    trainer.train()
    trainer.close()
    codec.save_pretrained(tmp_path / "hub")
    again = AudioCodec.from_pretrained(tmp_path / "hub")
    clip = waves[0][None]
    assert again.channels == 2
    assert torch.equal(codec.encode(clip), again.encode(clip))
