"""`AudioCodecTask`: trains the codec and its discriminators on one forward pass; validation metrics and samples."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from quintet.common.artifact import Artifact
from quintet.common.batch import Batch, Item, Prepare
from quintet.common.precision import as_float64
from quintet.common.statistics import Statistics
from quintet.errors import UsageError
from quintet.families.audio_codec.config import AudioCodecConfig, AudioCodecLossConfig
from quintet.families.audio_codec.discriminators import (
    CodecDiscriminator,
    Maps,
    discriminator_loss,
    feature_distance,
    generator_loss,
    mean_over_logits,
)
from quintet.families.audio_codec.measures import (
    SILENCE_POWER,
    MelDistance,
    audible,
    eval_mel_distance,
    si_sdr,
    stft_distance,
    waveform_distance,
)
from quintet.families.audio_codec.model import AudioCodec, Reconstruction
from quintet.families.audio_codec.pipeline import AudioCodecPipeline, Codec
from quintet.families.audio_codec.stereo import per_signal, to_signals
from quintet.media.audio import write_audio
from quintet.media.chart import spectrogram
from quintet.media.image import image_grid, write_image
from quintet.nn.quantize import perplexity, usage
from quintet.pipelines.base import Frozen
from quintet.training.gan_task import GanTokenizerTask, count_codes, mean_metrics
from quintet.training.phase import Loss, Modules, Output, frozen
from quintet.training.task import Traits

FRAMES_PER_CODE = 16
"""Frames per code from which the codebooks are initialised."""
SIGNALS = ("", "_side")
"""Suffixes of the metrics of mid and side."""
PER_CLIP = ("mel_distance", "stft_distance")
MIN_GRADIENT_NORM = 1e-20
"""Smallest norm that a gradient is divided by."""
SPECTROGRAM_WIDTH = 320
"""Pixels of the time axis of a spectrogram."""


class AudioCodecTask(GanTokenizerTask[AudioCodecConfig]):
    traits = Traits(best=("mel_distance", "min"), takes_gradients=True)
    pipeline_class = AudioCodecPipeline
    revive_every = 25
    loss: AudioCodecLossConfig
    model: Codec

    def __init__(self, config: AudioCodecConfig, frozen: Frozen | None = None, modules: Modules | None = None) -> None:
        super().__init__(config, frozen, modules)
        self.mel = MelDistance(config.model.sample_rate, config.loss.mel_windows)
        self.eval_mel_distance = eval_mel_distance(config.model.sample_rate)

    @property
    def channels(self) -> int:
        return self.config.model.channels

    @property
    def trainable(self) -> bool:
        return isinstance(self.model, AudioCodec)

    def make_discriminator(self) -> CodecDiscriminator:
        return CodecDiscriminator(self.loss)

    def example_item(self) -> Item:
        samples = max(1, round(self.config.data.seconds * self.config.model.sample_rate))
        axes = (1, samples) if self.channels == 1 else (1, self.channels, samples)
        return {"wavs": torch.zeros(axes), "lengths": torch.tensor([samples])}

    # --- training -------------------------------------------------------------------------------------------

    @property
    def num_init_batches(self) -> int:
        """Enough batches that each code can be initialised as the mean of several frames."""
        model = self.config.model
        frames = self.config.train.batch_size * max(1, round(self.config.data.seconds * model.sample_rate / model.hop))
        return -(-FRAMES_PER_CODE * model.codebook_size // frames) if model.quantizer == "vq" else 1

    def num_tokens(self, batch: Batch) -> int:
        frames = -(-batch["lengths"] // self.config.model.hop)
        return int(frames.sum()) * self.config.model.num_quantizers

    @property
    def prepare(self) -> Prepare:
        return partial(drop_levels, self.config.model.num_quantizers, self.config.loss.quantizer_dropout)

    def latents(self, batch: Batch) -> Tensor:
        if not isinstance(self.model, AudioCodec):
            raise UsageError(
                "a pretrained transformers codec cannot be trained; use it as it is: `quintet train soundstorm DATA "
                "--tokenizer FOLDER`"
            )
        return self.model.latents(*self.window(batch))

    def forward(self, modules: Modules, batch: Batch, step: int) -> Output:
        waves, lengths = self.window(batch)
        levels = batch.prepared(self.prepare)["active_levels"]
        result: Reconstruction = modules["codec"](
            waves, lengths, levels, return_candidates=step % self.revive_every == 0
        )
        # In stereo the losses compare mid and side, so that a faint difference of the channels counts as well.
        values = {
            "waves": to_signals(waves),
            "lengths": per_signal(lengths, self.channels),
            "decoded": to_signals(result.waves.to(waves.dtype)),
            "quantizer": result.loss,
        }
        return Output(values, result.statistics.with_prefix("quantizer"))

    def window(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Waveforms of a training batch, (batch, samples) or (batch, 2, samples), and their lengths (batch,).

        Padded to the length of a training window, so that the discriminators see a clip the same in every batch.
        """
        waves: Tensor = batch["wavs"]
        window = max(1, round(self.config.data.seconds * self.config.model.sample_rate))
        return F.pad(waves, (0, window - waves.shape[-1])), batch["lengths"]

    def generator_loss(self, modules: Modules, batch: Batch, output: Output, step: int) -> Loss:
        waves, decoded, lengths = output["waves"], output["decoded"], output["lengths"]
        terms = {
            "waveform": (self.loss.waveform, waveform_distance(decoded, waves, lengths)),
            "mel": (self.loss.mel, self.mel.to(waves.device)(decoded, waves, lengths)),
        }
        if self.loss.is_adversarial(step):
            with frozen(self.discriminator) as discriminator:
                with torch.no_grad():
                    real: list[Maps] = discriminator(waves)
                fake: list[Maps] = discriminator(decoded)
            ramp = self.loss.adversarial_ramp(step)
            terms["adversarial"] = (ramp * self.loss.adversarial, generator_loss(self.loss.gan_loss, fake, lengths))
            terms["feature"] = (ramp * self.loss.feature_matching, feature_distance(real, fake, lengths))
        parts = {name: distances.detach().mean() for name, (_, distances) in terms.items()}
        parts["quantizer"] = output["quantizer"]
        # The side of a mono clip is silent; silence of a mono codec is rare, and is trained as it always was.
        scale = None if self.channels == 1 else audibility(decoded, waves)
        return Loss(balance_gradients(decoded, terms.values(), scale) + self.loss.quantizer * parts["quantizer"], parts)

    def discriminator_loss(self, modules: Modules, batch: Batch, output: Output, step: int) -> Loss:
        waves, lengths = output["waves"], output["lengths"]
        # One call for both: a DDP module may be called only once before its backward pass.
        both: list[Maps] = modules["discriminator"](torch.cat([waves, output["decoded"].detach()]))
        real, fake = ([[(each.chunk(2)[side], hop) for each, hop in maps] for maps in both] for side in (0, 1))
        loss = discriminator_loss(self.loss.gan_loss, real, fake, lengths)
        logits = {"real": real, "fake": fake}
        parts = {name: mean_over_logits(maps, lengths, torch.Tensor.detach).mean() for name, maps in logits.items()}
        return Loss(loss.mean(), parts)

    # --- validation -----------------------------------------------------------------------------------------

    def measure(self, modules: Modules, batch: Batch) -> Statistics:
        waves, lengths = self.first_seconds(batch)
        codes, decoded = round_trip(self.pipeline(modules).codec, waves, lengths)
        waves, decoded = (each.to(torch.promote_types(each.dtype, torch.float32)) for each in (waves, decoded))
        sums = self._si_sdr_sums(decoded, waves, lengths)
        # In stereo each channel counts as a clip.
        waves, decoded, lengths = waves.flatten(0, -2), decoded.flatten(0, -2), per_signal(lengths, self.channels)
        sums |= {
            "count": torch.tensor(float(len(waves))),
            "mel_distance": as_float64(self.eval_mel_distance.to(waves.device)(decoded, waves, lengths)).sum(),
            "stft_distance": as_float64(stft_distance(decoded, waves, lengths)).sum(),
            "codes": count_codes(codes, self.model.num_codes, self.model.num_quantizers),
        }
        return Statistics(sums)

    def _si_sdr_sums(self, decoded: Tensor, waves: Tensor, lengths: Tensor) -> dict[str, Tensor]:
        """Sums over audible clips of the SI-SDR, and their number; in stereo of the mean of the channels, and, with the
        suffix `_side`, of their difference. SI-SDR is undefined for silence."""
        sums: dict[str, Tensor] = {}
        for number, suffix in enumerate(SIGNALS[: self.channels]):
            ours, target = (to_signals(each)[number :: self.channels] for each in (decoded, waves))
            is_audible = audible(target, lengths)
            sums[f"audible{suffix}"] = as_float64(is_audible.sum())
            sums[f"si_sdr{suffix}"] = as_float64(si_sdr(ours, target)[is_audible]).sum()
        return sums

    def summarise(self, statistics: Statistics) -> dict[str, float]:
        sums = statistics.sums
        metrics = mean_metrics(sums, PER_CLIP)
        for suffix in SIGNALS[: self.channels]:
            if sums[f"audible{suffix}"]:
                metrics[f"si_sdr{suffix}"] = float(sums[f"si_sdr{suffix}"] / sums[f"audible{suffix}"])
        for name, per_level in (("codebook_usage", usage), ("codebook_perplexity", perplexity)):
            levels = per_level(sums["codes"])
            metrics[name] = float(levels.mean())
            metrics |= {f"{name}_level_{number}": float(level) for number, level in enumerate(levels, start=1)}
        metrics["bitrate_kbps"] = self.model.bitrate / 1000
        return metrics

    def sample(self, modules: Modules, batch: Batch) -> list[Artifact]:
        """Each clip and its reconstruction as WAV files, and a sheet of their spectrograms side by side."""
        waves, lengths = self.first_seconds(batch)
        codec: Codec = self.pipeline(modules).codec
        _, decoded = round_trip(codec, waves, lengths)
        artifacts: list[Artifact] = []
        images = []
        for number, (name, length) in enumerate(zip(batch.names, lengths.tolist(), strict=True)):
            for what, source in (("input", waves), ("reconstruction", decoded)):
                wave = source[number, ..., :length].float().cpu()
                write = partial(write_audio, wave, rate=codec.sample_rate)
                artifacts.append(Artifact(f"{number:03d}-{what}.wav", write, {"item": name, "what": what}))
                images.append(spectrogram(wave, codec.sample_rate, width=SPECTROGRAM_WIDTH))
        sheet = image_grid(images, columns=2)
        metadata = {"columns": "input, reconstruction", "items": list(batch.names)}
        image = Artifact("spectrograms.png", partial(write_image, sheet), metadata, torch.from_numpy(sheet))
        return [image, *artifacts]

    def first_seconds(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The first `eval.seconds` of the waveforms, and their lengths (batch,)."""
        limit = max(1, round(self.config.eval.seconds * self.config.model.sample_rate))
        return batch["wavs"][..., :limit], batch["lengths"].clamp(max=limit)


def drop_levels(num_quantizers: int, quantizer_dropout: float, batch: Batch) -> dict[str, Any]:
    """`active_levels` (batch,): the number of quantizers each clip uses, so that any number can be decoded (quantizer
    dropout)."""
    random = batch.rng.integers("levels", 1, num_quantizers + 1)
    dropped = batch.rng.uniform("drop levels") < quantizer_dropout
    return {"active_levels": torch.where(dropped, random, num_quantizers)}


def audibility(decoded: Tensor, waves: Tensor) -> Tensor:
    """1 (rows,), and less where silence is decoded as silence: the gradient there is rounding, which balancing would
    make as large as any other."""
    power = torch.maximum(decoded.detach().square().mean(1), waves.square().mean(1))
    return (power / SILENCE_POWER).clamp(max=1).sqrt()


def balance_gradients(decoded: Tensor, terms: Iterable[tuple[float, Tensor]], scale: Tensor | None = None) -> Tensor:
    """The weighted sum of loss terms, whose gradients are normalised per clip, so that the weights alone balance them.

    A term is a weight and a loss (batch,) of the decoded waveforms (batch, samples); `scale` (batch,) is a further
    weight of each clip's gradient. Gradient norms differ by orders of
    magnitude during training and between clips, and the largest would dominate. This is the loss balancer of EnCodec
    (2210.13438), but per clip instead of with a moving average, so that it has no state.
    """
    value, total = decoded.new_zeros(()), torch.zeros_like(decoded)
    for weight, distances in terms:
        (gradient,) = torch.autograd.grad(distances.sum(), decoded, retain_graph=True)
        total += weight * F.normalize(gradient, dim=1, eps=MIN_GRADIENT_NORM)
        value = value + weight * distances.detach().mean()
    total = total if scale is None else total * scale[:, None]
    surrogate = (decoded * total).sum() / len(decoded)
    return value + (surrogate - surrogate.detach())


def round_trip(codec: Codec, waves: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Codes (batch, frames, quantizers) and decoded waveforms as the input, zero behind the end of each clip."""
    codes = codec.encode(waves, lengths)
    decoded = codec.decode(codes)[..., : waves.shape[-1]].to(waves.dtype)
    inside = torch.arange(waves.shape[-1], device=waves.device) < lengths[:, None]
    return codes, decoded * (inside if waves.ndim == 2 else inside[:, None])
