"""The audio codec: codes and waveforms, alone and in padded batches, whole and in chunks; losses, metrics, trainer."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
import torch.nn.functional as F
from torch import Tensor

from quintet import AudioCodec, AudioCodecTrainer, config, runs
from quintet.common.batch import Batch
from quintet.common.rng import ItemRNG
from quintet.config import AudioDataConfig, WindowedAudioDataConfig
from quintet.data.audio import audio_folder_splits, pad_windows, python_audio_splits
from quintet.data.splits import Splits
from quintet.errors import UsageError
from quintet.families.audio_codec import model as codec_model
from quintet.families.audio_codec.config import AudioCodecConfig, AudioCodecLossConfig
from quintet.families.audio_codec.discriminators import (
    CodecDiscriminator,
    discriminator_loss,
    feature_distance,
    generator_loss,
)
from quintet.families.audio_codec.measures import (
    MelDistance,
    audible,
    eval_mel_distance,
    si_sdr,
    stft_distance,
    waveform_distance,
)
from quintet.families.audio_codec.pipeline import AudioCodecPipeline
from quintet.families.audio_codec.polar import QUIET, FromPolar, ToPolar
from quintet.families.audio_codec.task import AudioCodecTask, balance_gradients
from quintet.training.engine import Engine

RATE = 8000
SMALL: dict[str, Any] = {
    "sample_rate": RATE,
    "strides": (5, 3, 2),
    "dim": 4,
    "num_residual_units": 2,
    "latent_dim": 8,
    "num_quantizers": 3,
    "codebook_size": 16,
}
HOP = 30
FRONTS: dict[str, dict[str, Any]] = {
    "samples": {},
    "transform": {"transform": 30, "strides": (), "latent_dim": None},
}
fronts = pytest.mark.parametrize("front", FRONTS)


def make_codec(**keywords: Any) -> AudioCodec:
    """A codec without layers that are the identity, as some of a new codec are."""
    torch.manual_seed(0)
    codec = AudioCodec(**{**SMALL, **keywords}).double()
    for name, parameter in codec.named_parameters():
        if "second.conv.weight" in name or (keywords.get("transform") and name.endswith("conv.weight")):
            with torch.no_grad():
                parameter.add_(0.1 * torch.randn_like(parameter))
    return codec


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 0.1


def padded(rows: list[Tensor], value: float = 0.0) -> tuple[Tensor, Tensor]:
    longest = max(map(len, rows))
    stacked = torch.stack([F.pad(row, (0, longest - len(row)), value=value) for row in rows])
    return stacked, torch.tensor([len(row) for row in rows])


# --- codes and waveforms ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("quantizer", "size"), [("vq", 16), ("lfq", 16), ("fsq", 256)])
@pytest.mark.parametrize("levels", [1, 3])
def test_decode_of_encode_equals_forward(quantizer: str, size: int, levels: int) -> None:
    codec = make_codec(quantizer=quantizer, codebook_size=size, num_quantizers=levels)
    waves = noise(2, 500)
    codes = codec.encode(waves)
    assert codes.shape == (2, math.ceil(500 / HOP), levels)
    assert 0 <= codes.min() <= codes.max() < codec.num_codes
    result = codec(waves, torch.tensor([500, 500]))
    assert torch.equal(result.codes, codes)
    torch.testing.assert_close(codec.decode(codes)[:, :500], result.waves.clamp(-1, 1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("samples", [1, HOP - 1, HOP, HOP + 1, 7 * HOP + 13])
@pytest.mark.parametrize("causal", [False, True])
def test_clips_of_any_length_have_whole_frames(samples: int, causal: bool) -> None:
    codec = make_codec(causal=causal)
    codes = codec.encode(noise(1, samples))
    frames = math.ceil(samples / HOP)
    assert codes.shape == (1, frames, 3)
    assert codec.decode(codes).shape == (1, frames * HOP)
    assert codec.frames(torch.tensor([samples])).tolist() == [frames]


def test_any_number_of_quantizers_decodes() -> None:
    codec = make_codec()
    waves, lengths = noise(2, 300), torch.tensor([300, 300])
    codes = codec.encode(waves)
    assert torch.equal(codec.encode(waves, num_quantizers=2), codes[..., :2])
    for levels in (1, 2, 3):
        trained = codec(waves, lengths, active_levels=torch.full((2,), levels))
        assert torch.equal(trained.codes[..., :levels], codes[..., :levels])
        assert (trained.codes[..., levels:] == -1).all()
        for subset in (codes[..., :levels], trained.codes):
            torch.testing.assert_close(codec.decode(subset), trained.waves.clamp(-1, 1), rtol=0, atol=1e-12)


@fronts
@pytest.mark.parametrize("causal", [False, True])
def test_a_clip_alone_equals_the_clip_in_a_padded_batch(causal: bool, front: str) -> None:
    codec = make_codec(causal=causal, **FRONTS[front])
    rows = [noise(length, seed=length) for length in (31, 700, 457, 1000)]
    waves, lengths = padded(rows, value=0.7)  # padding need not be silent
    codes = codec.encode(waves, lengths)
    decoded = codec.decode(codes)
    together = codec(waves, lengths)
    for number, row in enumerate(rows):
        alone = codec.encode(row[None])
        frames = alone.shape[1]
        assert torch.equal(codes[number, :frames], alone[0])
        assert (codes[number, frames:] == -1).all()
        torch.testing.assert_close(decoded[number, : frames * HOP], codec.decode(alone)[0], rtol=0, atol=1e-12)
        assert (decoded[number, frames * HOP :] == 0).all()
        single = codec(row[None], lengths[number : number + 1]).waves[0]
        torch.testing.assert_close(together.waves[number, : len(row)], single, rtol=0, atol=1e-12)
        assert (together.waves[number, len(row) :] == 0).all()


@fronts
def test_a_causal_codec_does_not_depend_on_later_samples(front: str) -> None:
    waves = noise(1, 40 * HOP)
    changed = waves.clone()
    changed[:, 20 * HOP :] += noise(1, 20 * HOP, seed=9)
    causal, other = (make_codec(causal=each, **FRONTS[front]) for each in (True, False))
    same = torch.full((1,), 40 * HOP)
    ours, theirs = (causal.latents(each, same) for each in (waves, changed))
    torch.testing.assert_close(ours[:20], theirs[:20], rtol=0, atol=1e-12)
    assert not torch.allclose(ours[20], theirs[20])
    ahead = [other.latents(each, same) for each in (waves, changed)]
    assert not torch.allclose(ahead[0][:20], ahead[1][:20])
    codes = causal.encode(waves)
    later = codes.clone()
    later[:, 20:] = (later[:, 20:] + 1) % 16
    first, second = causal.decode(codes), causal.decode(later)
    torch.testing.assert_close(first[:, : 20 * HOP], second[:, : 20 * HOP], rtol=0, atol=1e-12)
    assert not torch.allclose(first[:, 20 * HOP : 21 * HOP], second[:, 20 * HOP : 21 * HOP])


@fronts
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("samples", "chunk"), [(1, 1), (29, 7), (1001, 77), (1001, 1), (950, 400), (60, 1000)])
def test_a_stream_equals_the_whole_clip(samples: int, chunk: int, causal: bool, front: str) -> None:
    codec = make_codec(causal=causal, **FRONTS[front])
    waves = noise(2, samples)
    codes = codec.encode(waves)
    stream = codec.encode_stream()
    parts = [*(stream.push(part) for part in waves.split(chunk, dim=1)), stream.finish()]
    assert torch.equal(torch.cat(parts, dim=1), codes)
    whole = codec.decode(codes)
    back = codec.decode_stream()
    decoded = [*(back.push(part) for part in codes.split(max(1, chunk // HOP), dim=1)), back.finish()]
    torch.testing.assert_close(torch.cat(decoded, dim=1), whole, rtol=0, atol=1e-12)


def test_a_stream_in_single_precision_is_within_tolerance() -> None:
    codec = make_codec().float()
    codes = codec.encode(noise(1, 3001).float())
    stream = codec.decode_stream()
    parts = [*(stream.push(part) for part in codes.split(7, dim=1)), stream.finish()]
    torch.testing.assert_close(torch.cat(parts, dim=1), codec.decode(codes), rtol=0, atol=1e-5)


@fronts
def test_a_causal_stream_does_not_wait(front: str) -> None:
    codec = make_codec(causal=True, **FRONTS[front])
    stream, back = codec.encode_stream(), codec.decode_stream()
    for chunk in noise(1, 10 * HOP).split(HOP, dim=1):
        codes = stream.push(chunk)
        assert codes.shape[1] == 1
        assert back.push(codes).shape[1] == HOP


def test_long_clips_go_through_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    codec = make_codec()
    waves, lengths = padded([noise(1000), noise(301, seed=1)])
    codes = codec.encode(waves, lengths)
    decoded = codec.decode(codes)
    monkeypatch.setattr(codec_model, "MAX_SAMPLES_AT_ONCE", 400)
    monkeypatch.setattr(codec_model, "CHUNK", 128)
    assert torch.equal(codec.encode(waves, lengths), codes)
    torch.testing.assert_close(codec.decode(codes), decoded, rtol=0, atol=1e-12)


def test_invalid_waveforms_and_codes_are_refused() -> None:
    codec = make_codec()
    for shape in ((100,), (1, 2, 100), (1, 0)):
        with pytest.raises(UsageError, match="mono"):
            codec.encode(torch.zeros(*shape))
    for shape in ((5, 3), (1, 5, 4), (1, 0, 3)):
        with pytest.raises(UsageError, match="at most 3 quantizers"):
            codec.decode(torch.zeros(*shape, dtype=torch.long))
    with pytest.raises(UsageError, match="push samples before finish"):
        codec.encode_stream().finish()
    with pytest.raises(UsageError, match="push codes before finish"):
        codec.decode_stream().finish()
    with pytest.raises(UsageError, match=r"model\.codebook_size=100.*power of two"):
        AudioCodec(quantizer="lfq", codebook_size=100)
    with pytest.raises(UsageError, match="hop length of"):
        AudioCodec(strides=(64, 64, 64))


def test_the_small_preset_is_within_six_kilobits() -> None:
    keys = config.build(AudioCodecConfig, preset="small")
    codec = AudioCodec(keys.model)
    assert (codec.sample_rate, codec.frame_rate, codec.num_quantizers, codec.num_codes) == (16_000, 25, 24, 1024)
    assert codec.bitrate == pytest.approx(6000)


def test_export_and_from_pretrained_give_the_same_codes(tmp_path: Path) -> None:
    codec = AudioCodec(**SMALL)
    codec.save_pretrained(tmp_path / "hub")
    again = AudioCodec.from_pretrained(tmp_path / "hub")
    waves = noise(1, 400).float()
    assert torch.equal(codec.encode(waves), again.encode(waves))


# --- measures -----------------------------------------------------------------------------------------------------


def tone(hertz: float, samples: int = RATE) -> Tensor:
    return 0.5 * torch.sin(2 * math.pi * hertz * torch.arange(samples, dtype=torch.float64) / RATE)


def test_half_the_amplitude_is_six_decibels_in_every_audible_bin() -> None:
    waves = noise(1, RATE)
    distance = eval_mel_distance(RATE)(waves / 2, waves, torch.tensor([RATE]))
    torch.testing.assert_close(distance, torch.tensor([math.log(4)], dtype=torch.float64), rtol=1e-2, atol=0)
    plain = stft_distance(waves / 2, waves, torch.tensor([RATE]))
    torch.testing.assert_close(plain, torch.tensor([math.log(2)], dtype=torch.float64), rtol=1e-2, atol=0)


def test_the_distance_between_silence_and_a_whisper_is_finite() -> None:
    whisper, length = noise(1, RATE) * 0.01, torch.tensor([RATE])
    for distance in (eval_mel_distance(RATE), stft_distance):
        assert 0 < distance(whisper, 0 * whisper, length) < 10


def test_si_sdr_is_the_known_ratio_whatever_the_scale() -> None:
    signal, other = tone(200), tone(300)  # orthogonal over whole periods
    scaled = 3 * (signal + 0.1 * other)
    torch.testing.assert_close(si_sdr(scaled[None], signal[None]), torch.tensor([20.0], dtype=torch.float64))
    assert audible(torch.stack([signal, 0 * signal]), torch.tensor([RATE, RATE])).tolist() == [True, False]


def test_quiet_and_loud_clips_count_equally_down_to_silence() -> None:
    signal = tone(200)[None]
    length = torch.tensor([RATE])
    for scale in (1.0, 0.05):
        distance = waveform_distance(0.9 * scale * signal, scale * signal, length)
        torch.testing.assert_close(distance, torch.tensor([0.01], dtype=torch.float64))
    assert waveform_distance(0 * signal + 1e-3, 0 * signal, length).item() == pytest.approx(1 / 9)


@pytest.mark.parametrize("measure", ["mel", "stft", "waveform", "si_sdr"])
def test_the_distance_of_a_clip_does_not_depend_on_padding(measure: str) -> None:
    rows = [noise(length, seed=length) for length in (900, 4000)]
    others = [row + noise(len(row), seed=5) for row in rows]
    mel = MelDistance(RATE, [256, 64])

    def measured(decoded: Tensor, waves: Tensor, lengths: Tensor) -> Tensor:
        if measure == "si_sdr":
            return si_sdr(decoded, waves)
        return {"mel": mel, "stft": stft_distance, "waveform": waveform_distance}[measure](decoded, waves, lengths)

    together = measured(padded(others)[0], *padded(rows))
    for number, (other, row) in enumerate(zip(others, rows, strict=True)):
        alone = measured(other[None], row[None], torch.tensor([len(row)]))
        torch.testing.assert_close(together[number], alone[0], rtol=1e-9, atol=1e-9)
    assert (measured(padded(rows)[0], *padded(rows))[0] < 1e-9) == (measure != "si_sdr")


# --- both phases --------------------------------------------------------------------------------------------------

TINY: dict[str, Any] = {
    **{f"model.{name}": value for name, value in SMALL.items()},
    "data.seconds": 0.1,
    "eval.seconds": 0.2,
    "loss.mel_windows": [128, 64],
    "loss.discriminator_start": 0,
    "loss.discriminator_ramp": 0,
    "loss.discriminator_dim": 4,
    "loss.stft_windows": [128],
    "loss.periods": [3],
}


def make_task(**keys: Any) -> AudioCodecTask:
    task = runs.make_task(config.build(AudioCodecConfig, overrides={**TINY, "engine.precision": "fp64", **keys}), {})
    assert isinstance(task, AudioCodecTask)
    Engine(task.config.engine).to_device(task.modules)
    return task


def make_batch(*lengths: int) -> Batch:
    items = [
        {"wavs": noise(1, length, seed=number), "lengths": torch.tensor([length])}
        for number, length in enumerate(lengths)
    ]
    names = tuple(f"sound {number}" for number in range(len(items)))
    return Batch(pad_windows(items), names, ItemRNG(0, [0] * len(items), range(len(items))), torch.float64)


def test_no_phase_leaves_a_gradient_in_the_other() -> None:
    task = make_task()
    batch = make_batch(800, 500, 800)
    output = task.forward(task.modules, batch, 0)
    task.generator_loss(task.modules, batch, output, 0).value.backward()
    assert all(parameter.grad is None for parameter in task.discriminator.parameters())
    assert all(parameter.requires_grad for parameter in task.discriminator.parameters())
    assert all(parameter.grad is not None for parameter in task.model.parameters())
    before = {name: parameter.grad.clone() for name, parameter in task.model.named_parameters()}  # type: ignore[union-attr]
    task.discriminator_loss(task.modules, batch, output, 0).value.backward()
    for name, parameter in task.model.named_parameters():
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, before[name])
    assert all(parameter.grad is not None for parameter in task.discriminator.parameters())


def test_the_loss_is_its_weighted_parts_and_the_discriminators_come_late() -> None:
    task = make_task(**{"loss.discriminator_start": 10, "loss.discriminator_ramp": 4, "loss.quantizer": 2.0})
    batch = make_batch(800, 800)
    early, late = (
        task.generator_loss(task.modules, batch, task.forward(task.modules, batch, step), step) for step in (9, 10)
    )
    assert early.parts.keys() == {"waveform", "mel", "quantizer"}
    parts = early.parts
    torch.testing.assert_close(early.value, parts["waveform"] + 0.5 * parts["mel"] + 2 * parts["quantizer"])
    adversarial = 0.1 * late.parts["adversarial"] + 0.5 * late.parts["feature"]
    torch.testing.assert_close(late.value, early.value + 0.25 * adversarial)
    assert [task.loss.is_adversarial(step) for step in (9, 10)] == [False, True]


def test_balanced_gradients_are_weighted_per_loss_and_clip() -> None:
    decoded = noise(3, 50, seed=1).requires_grad_()
    first, second = decoded.square().sum(1), 1e6 * (decoded[:, :10] - 1).abs().sum(1)
    value = balance_gradients(decoded, [(1.0, first), (0.5, second)])
    torch.testing.assert_close(value, first.mean() + 0.5 * second.mean())
    (gradient,) = torch.autograd.grad(value, decoded)
    steep = torch.zeros_like(decoded)
    steep[:, :10] = (decoded.detach()[:, :10] - 1).sign() / math.sqrt(10)
    torch.testing.assert_close(3 * gradient, F.normalize(decoded.detach(), dim=1) + 0.5 * steep)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", [8, 9, 320])
def test_magnitude_and_phase_of_each_frequency_determine_the_waveform(size: int, causal: bool) -> None:
    waves = noise(2, 1, 12 * size)
    to_polar, back = ToPolar(size, causal=causal).double(), FromPolar(size, causal=causal).double()
    loudness, phase = to_polar(waves).chunk(2, dim=1)
    numbers = phase * (QUIET * loudness.exp()).sqrt()
    # A lapped transform needs a neighbour on both sides.
    inside = slice(None) if causal else slice(size, -size)
    torch.testing.assert_close(back.upsample(numbers)[..., inside], waves[..., inside], rtol=0, atol=1e-5)
    assert numbers.std().item() == pytest.approx(waves.std().item(), rel=0.1)


def test_the_magnitude_of_a_tone_does_not_vary_with_its_phase() -> None:
    to_polar = ToPolar(160, causal=False).double()
    loudness, phase = to_polar(0.2 * tone(1010)[None, None])[..., 2:-2].chunk(2, dim=1)
    loudest = int(loudness.mean(-1).argmax())
    assert loudness[0, loudest].std() < 0.02 * loudness[0, loudest].mean()
    assert phase[0, loudest].std() > 0.5 * phase[0, loudest].abs().max()


def test_an_untrained_codec_with_a_transform_passes_tones() -> None:
    codec = AudioCodec(**{**SMALL, "transform": 160, "strides": (), "latent_dim": None}).double()
    lengths = torch.tensor([RATE])
    for each in (0.2 * tone(440)[None], 0.2 * tone(3500)[None]):
        decoded = codec._waves(codec._latents(each, lengths, None), None)
        assert si_sdr(decoded[:, 500:-500], each[:, 500:-500]) > 15


def test_frequencies_without_a_coded_phase_stay_audible() -> None:
    codec = AudioCodec(**{**SMALL, "transform": 160, "strides": (), "latent_dim": None}).double()
    tones = 0.2 * tone(440)[None] + 0.2 * tone(1500)[None]
    vectors = codec._latents(tones, torch.tensor([RATE]), None)
    vectors[..., 160:] = 0
    decoded = codec._waves(vectors, None)
    assert 0.3 < decoded[:, 500:-500].square().mean() / tones[:, 500:-500].square().mean() < 3
    # The gap between the tones stays silent.
    power = torch.fft.rfft(decoded[0, 500:-500] * torch.hann_window(7000, dtype=torch.float64)).abs().square()
    frequencies = torch.fft.rfftfreq(7000, 1 / RATE)
    assert power[(frequencies > 700) & (frequencies < 1200)].sum() < 0.02 * power.sum()


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"strides": (2,)}, "model.strides"),
        ({"latent_dim": 8}, "model.latent_dim"),
        ({"num_quantizers": 1}, "the other quantizers encode phases"),
        ({"num_loudness_quantizers": 3, "num_quantizers": 3}, "the other quantizers encode phases"),
        ({"transform": None, "strides": (2, 2), "num_loudness_quantizers": 1}, "needs model.transform"),
    ],
)
def test_keys_that_contradict_a_transform_are_refused(keys: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        AudioCodec(**{"transform": 30, "strides": (), **keys})


def test_layers_keep_the_scale_of_their_input() -> None:
    torch.manual_seed(0)
    codec = AudioCodec(dim=16, num_residual_units=2).double()
    waves = noise(4, 8000, seed=0)
    latents = codec.latents(waves, torch.full((4,), 8000))
    assert 0.3 < latents.std() / waves.std() < 3


@pytest.mark.parametrize("kind", ["hinge", "least-squares"])
def test_losses_of_a_batch_are_means_over_its_clips(kind: str) -> None:
    task = make_task(**{"loss.gan_loss": kind, "model.quantizer": "fsq", "model.codebook_size": 256})
    lengths = (800, 333, 500, 7)
    whole = task.backward([make_batch(*lengths)], task.modules, Engine(task.config.engine), 0)
    items = make_batch(*lengths)
    halves = [
        Batch(
            {"wavs": items["wavs"][part, : max(lengths[part])], "lengths": items["lengths"][part]},
            items.names[part],
            ItemRNG(0, [0, 0], range(4)[part]),
            torch.float64,
        )
        for part in (slice(0, 2), slice(2, 4))
    ]
    parts = task.backward(halves, task.modules, Engine(task.config.engine), 0)
    for name, value in whole.metrics.items():
        torch.testing.assert_close(parts.metrics[name], value, rtol=1e-9, atol=1e-12, msg=name)


def test_padding_does_not_affect_discriminator_losses() -> None:
    torch.manual_seed(0)
    discriminator = CodecDiscriminator(
        AudioCodecLossConfig(discriminator_dim=4, stft_windows=(128,), periods=(3,))
    ).double()
    real, lengths = padded([noise(2000, seed=1), noise(600, seed=2)])
    fake = real + noise(*real.shape, seed=3) * (torch.arange(2000) < lengths[:, None])
    outputs = discriminator(real), discriminator(fake)
    with torch.no_grad():
        losses = [
            discriminator_loss("hinge", *outputs, lengths),
            generator_loss("hinge", outputs[1], lengths),
            feature_distance(*outputs, lengths),
        ]
        for maps in (*outputs[0], *outputs[1]):
            for values, hop in maps:
                values[1, :, -(-600 // hop) :] = torch.nan
        again = [
            discriminator_loss("hinge", *outputs, lengths),
            generator_loss("hinge", outputs[1], lengths),
            feature_distance(*outputs, lengths),
        ]
    assert all(torch.equal(before, after) for before, after in zip(losses, again, strict=True))


def test_quantizer_dropout_of_a_clip_is_the_same_in_every_batch() -> None:
    task = make_task(**{"loss.quantizer_dropout": 0.5})
    batch = make_batch(*[100] * 200)
    active = task.prepare(batch)["active_levels"]
    assert {1, 2, 3} == set(active.tolist())
    assert 100 < (active == 3).sum() < 160  # a half, and a third of the other half
    alone = Batch(batch.fields, ("sound 7",), ItemRNG(0, [0], [7]))
    assert task.prepare(alone)["active_levels"].tolist() == [active[7].item()]
    assert (make_task(**{"loss.quantizer_dropout": 0.0}).prepare(batch)["active_levels"] == 3).all()


def test_dead_codes_are_revived_and_the_codebook_starts_from_data() -> None:
    task = make_task(**{"loss.quantizer_dropout": 0.0})
    batch = make_batch(800, 800, 300)
    task.init_from_data(task.modules, [batch], Engine(task.config.engine))
    used = task.model.encode(*task.window(batch))
    assert len(used[used[..., 0] >= 0][:, 0].unique()) > 8
    first = task.model.quantizer.quantizers[0]  # type: ignore[union-attr, index]
    first.cluster_size[3] = 0.0
    before = first.codebook[3].clone()
    report = task.backward([batch], task.modules, Engine(task.config.engine), 0)
    task.after_step(report.statistics, 0)
    assert first.cluster_size[3] > 0.1
    assert not torch.equal(first.codebook[3], before)


# --- evaluation ---------------------------------------------------------------------------------------------------


def test_metrics_have_their_names_and_do_not_depend_on_the_batches() -> None:
    task = make_task()
    lengths = (3000, 900, 1300, 450)
    whole = task.summarise(task.measure(task.modules, make_batch(*lengths)))
    codes = {f"codebook_{what}{level}" for what in ("usage", "perplexity") for level in ("", "_level_1", "_level_3")}
    assert whole.keys() >= {"mel_distance", "stft_distance", "si_sdr", "bitrate_kbps", *codes}
    assert whole["bitrate_kbps"] == pytest.approx(RATE / HOP * 3 * 4 / 1000)
    rows = make_batch(*lengths)
    parts = [
        task.measure(
            task.modules,
            Batch({"wavs": rows["wavs"][n : n + 1, :length], "lengths": rows["lengths"][n : n + 1]}, ("a",), rows.rng),
        )
        for n, length in enumerate(lengths)
    ]
    assert task.summarise(parts[0] + parts[1] + parts[2] + parts[3]) == pytest.approx(whole, rel=1e-6)


def test_silent_clips_are_left_out_of_si_sdr() -> None:
    task = make_task()
    batch = make_batch(900, 900)
    loud = task.summarise(task.measure(task.modules, make_batch(900)))
    batch["wavs"][1] = 0
    assert task.summarise(task.measure(task.modules, batch))["si_sdr"] == pytest.approx(loud["si_sdr"])
    batch["wavs"][0] = 0
    assert "si_sdr" not in task.summarise(task.measure(task.modules, batch))


def test_samples_are_pairs_of_clips_and_a_sheet(tmp_path: Path) -> None:
    task = make_task()
    artifacts = task.sample(task.modules, make_batch(1600, 700))
    for artifact in artifacts:
        artifact.write(tmp_path / artifact.file)
    assert {artifact.file for artifact in artifacts} == {
        "spectrograms.png",
        *(f"00{number}-{what}.wav" for number in (0, 1) for what in ("input", "reconstruction")),
    }
    for number, length in ((0, 1600), (1, 700)):
        for what in ("input", "reconstruction"):
            samples, rate = soundfile.read(tmp_path / f"00{number}-{what}.wav")
            assert (len(samples), rate) == (length, RATE)


def test_codes_become_files_of_whole_frames(tmp_path: Path) -> None:
    task = make_task()
    pipeline = task.pipeline(task.modules)
    codes = pipeline.encode_batch(make_batch(901, 400))
    assert codes.shape == (2, 31, 3)
    artifacts = pipeline.decode_files(codes, "name")
    assert [artifact.file for artifact in artifacts] == ["name-0.wav", "name-1.wav"]
    artifacts[1].write(tmp_path / "short.wav")
    assert soundfile.info(tmp_path / "short.wav").frames == 14 * HOP


# --- the pipeline -------------------------------------------------------------------------------------------------


@pytest.fixture
def pipeline(tmp_path: Path) -> AudioCodecPipeline:
    torch.manual_seed(0)
    model = AudioCodec(**SMALL)
    pipeline = AudioCodecPipeline(config.build(AudioCodecConfig, overrides=TINY), {"codec": model})
    pipeline.save_pretrained(tmp_path / "hub")
    return AudioCodecPipeline.from_pretrained(tmp_path / "hub")


def test_an_exported_codec_encodes_and_decodes(pipeline: AudioCodecPipeline) -> None:
    waves = noise(2, 901).float()
    codes = pipeline.encode(waves, torch.tensor([901, 400]))
    assert codes.shape == (2, 31, 3)
    assert (codes[1, 14:] == -1).all()
    assert not (codes[1, :14] < 0).any()
    decoded = pipeline.decode(codes)
    assert decoded.shape == (2, 31 * HOP)
    assert decoded.abs().max() <= 1
    assert pipeline.sample_rate == RATE
    assert torch.equal(codes, pipeline.codec.encode(waves, torch.tensor([901, 400])))
    assert torch.equal(pipeline.encode(waves, torch.tensor([901, 400]), num_quantizers=2), codes[..., :2])


def test_a_clip_has_the_same_codes_alone_and_in_a_batch(pipeline: AudioCodecPipeline) -> None:
    waves = noise(3, 901).float()
    alone = pipeline.encode(waves[1:2, :400])
    assert torch.equal(pipeline.encode(waves, torch.tensor([901, 400, 777]))[1:2, :14], alone)


def test_fewer_quantizers_have_their_own_cache_key(pipeline: AudioCodecPipeline) -> None:
    whole, two = pipeline.token_encoder(), pipeline.token_encoder(2)
    assert whole.digest == pipeline.digest == pipeline.token_encoder(3).digest == pipeline.token_encoder(9).digest
    assert two.digest == f"{pipeline.digest} 2 levels"
    batch = make_batch(901, 400)
    assert torch.equal(two.encode(batch), whole.encode(batch)[..., :2])


def test_clips_split_into_windows_cannot_be_encoded(pipeline: AudioCodecPipeline) -> None:
    batch = make_batch(800, 800)
    with pytest.raises(UsageError, match="load them as whole clips"):
        pipeline.encode_batch(Batch(batch.fields, ("one",), batch.rng))


# --- data and the trainer in Python -------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    target = tmp_path / "data"
    target.mkdir()
    for number, seconds in enumerate((0.05, 0.3, 2.0, 0.5)):
        samples = 0.3 * np.sin(np.arange(int(seconds * 11_025)) * (0.05 + 0.02 * number))
        soundfile.write(target / f"{number}.wav", np.stack([samples, samples], 1), 11_025)
    return target


def test_validation_clips_are_loaded_whole(folder: Path) -> None:
    data = AudioDataConfig(path=str(folder), seconds=0.1, validation_fraction=0)
    waves = [noise(400).float(), noise(16_000).float()]
    for splits in (audio_folder_splits(data, RATE), python_audio_splits(waves, data, RATE, captioned=False)):
        item = len(splits.train) // 2
        assert splits.train.load(item, ItemRNG(0, [0], [item]))["lengths"].tolist() == [800]
        assert splits.validation.load(item, ItemRNG(0, [0], [item]))["wavs"].shape == (1, 16_000)
    windowed: Splits = audio_folder_splits(WindowedAudioDataConfig(**{**data.model_dump(), "max_windows": 3}), RATE)
    assert windowed.validation.load(2, ItemRNG(0, [0], [2]))["lengths"].tolist() == [800] * 3


QUICK: dict[str, Any] = {
    **{key: value for key, value in TINY.items() if not key.startswith("model.")},
    "data.num_workers": 0,
    "log.trackers": [],
    "eval.batches": 1,
    "sample.num": 2,
}


@pytest.mark.parametrize("form", ["folder", "waves", "names", "tuples"])
def test_a_folder_or_a_dataset_without_captions_trains(tmp_path: Path, folder: Path, form: str) -> None:
    waves = [tone(200 + 50 * number, 400 + 300 * number).float() for number in range(8)]
    data: Any = {
        "folder": folder,
        "waves": waves,
        "names": [{"wavs": wave} for wave in waves],
        "tuples": [(wave, "a tone") for wave in waves],
    }[form]
    torch.manual_seed(0)
    trainer = AudioCodecTrainer(
        AudioCodec(**SMALL), data=data, out=tmp_path / "run", steps=2, batch_size=2, config=QUICK
    )
    trainer.train()
    trainer.close()
    assert trainer.step == 2
    assert isinstance(trainer.ema_model, AudioCodec)
    assert trainer.ema_model is not trainer.unwrapped_model
