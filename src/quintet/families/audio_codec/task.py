"""`AudioCodecTask`: the codec's two phases on one forward pass, its validation metrics and samples."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from quintet.common.artifact import Artifact
from quintet.common.batch import Batch
from quintet.common.statistics import Statistics
from quintet.errors import UsageError
from quintet.families.audio_codec.config import AudioCodecConfig, AudioCodecLossConfig
from quintet.families.audio_codec.discriminators import (
    CodecDiscriminator,
    Maps,
    discriminator_loss,
    feature_distance,
    generator_loss,
    judged,
)
from quintet.families.audio_codec.measures import (
    MelDistance,
    audible,
    eval_mel_distance,
    si_sdr,
    stft_distance,
    waveform_distance,
)
from quintet.families.audio_codec.model import AudioCodec, Reconstruction
from quintet.families.audio_codec.pipeline import AudioCodecPipeline, Codec
from quintet.media.audio import write_audio
from quintet.media.chart import spectrogram
from quintet.media.image import image_grid, write_image
from quintet.nn.quantize import perplexity, usage
from quintet.pipelines.base import Frozen
from quintet.training.gan_task import GanTokenizerTask, count_codes, mean_metrics
from quintet.training.phase import Loss, Modules, Output, frozen
from quintet.training.task import Traits

FRAMES_OF_A_CODE = 16
"""From so many frames a code each of the codebooks starts."""
PER_CLIP = ("mel_distance", "stft_distance")
FLATTEST = 1e-20
"""Length of a gradient that points nowhere."""
SHOWN = 320
"""Pixels of the time axis of a spectrogram."""


class AudioCodecTask(GanTokenizerTask[AudioCodecConfig]):
    traits = Traits(best=("mel_distance", "min"))
    pipeline_class = AudioCodecPipeline
    revive_every = 25
    loss: AudioCodecLossConfig
    model: Codec

    def __init__(self, config: AudioCodecConfig, frozen: Frozen | None = None, modules: Modules | None = None) -> None:
        super().__init__(config, frozen, modules)
        self.mel = MelDistance(config.model.sample_rate, config.loss.mel_windows)
        self.eval_mel_distance = eval_mel_distance(config.model.sample_rate)

    @property
    def trainable(self) -> bool:
        return isinstance(self.model, AudioCodec)

    def make_discriminator(self) -> CodecDiscriminator:
        return CodecDiscriminator(self.loss)

    # --- training -------------------------------------------------------------------------------------------

    @property
    def num_init_batches(self) -> int:
        """As many as it takes for each code to begin as the mean of several frames."""
        model = self.config.model
        frames = self.config.train.batch_size * max(1, round(self.config.data.seconds * model.sample_rate / model.hop))
        return -(-FRAMES_OF_A_CODE * model.codebook_size // frames) if model.quantizer == "vq" else 1

    def latents(self, batch: Batch) -> Tensor:
        if not isinstance(self.model, AudioCodec):
            raise UsageError(
                "a codec of transformers is used as it is, and not trained: `quintet train soundstorm DATA --tokenizer "
                "FOLDER`"
            )
        return self.model.latents(*self.window(batch))

    def forward(self, modules: Modules, batch: Batch, step: int) -> Output:
        waves, lengths = self.window(batch)
        levels = self.active_levels(batch).to(waves.device)
        result: Reconstruction = modules["codec"](
            waves, lengths, levels, return_candidates=step % self.revive_every == 0
        )
        values = {"waves": waves, "lengths": lengths, "made": result.waves.to(waves.dtype), "quantizer": result.loss}
        return Output(values, result.statistics.with_prefix("quantizer"))

    def window(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The clips of a training batch and their lengths, padded to the length of a window whatever the batch holds:
        to the discriminators too a clip is then the same in every batch."""
        waves: Tensor = batch["wavs"]
        window = max(1, round(self.config.data.seconds * self.config.model.sample_rate))
        return F.pad(waves, (0, window - waves.shape[1])), batch["lengths"]

    def active_levels(self, batch: Batch) -> Tensor:
        """How many levels each clip uses: all, or as many as are drawn, so that any number can be decoded."""
        levels = self.config.model.num_quantizers
        drawn = batch.rng.integers("levels", 1, levels + 1)
        return torch.where(batch.rng.uniform("drop levels") < self.loss.quantizer_dropout, drawn, levels)

    def generator_loss(self, modules: Modules, batch: Batch, output: Output, step: int) -> Loss:
        waves, made, lengths = output["waves"], output["made"], output["lengths"]
        aims = {
            "waveform": (self.loss.waveform, waveform_distance(made, waves, lengths)),
            "mel": (self.loss.mel, self.mel.to(waves.device)(made, waves, lengths)),
        }
        if self.loss.is_adversarial(step):
            with frozen(self.discriminator) as discriminator:
                with torch.no_grad():
                    real: list[Maps] = discriminator(waves)
                fake: list[Maps] = discriminator(made)
            ramp = self.loss.adversarial_ramp(step)
            aims["adversarial"] = (ramp * self.loss.adversarial, generator_loss(self.loss.gan_loss, fake, lengths))
            aims["feature"] = (ramp * self.loss.feature_matching, feature_distance(real, fake, lengths))
        parts = {name: distances.detach().mean() for name, (_, distances) in aims.items()}
        parts["quantizer"] = output["quantizer"]
        return Loss(balance_gradients(made, aims.values()) + self.loss.quantizer * parts["quantizer"], parts)

    def discriminator_loss(self, modules: Modules, batch: Batch, output: Output, step: int) -> Loss:
        waves, lengths = output["waves"], output["lengths"]
        # One call for both: a module that DDP wraps may be called only once before its backward pass.
        both: list[Maps] = modules["discriminator"](torch.cat([waves, output["made"].detach()]))
        real, fake = ([[(each.chunk(2)[side], step) for each, step in maps] for maps in both] for side in (0, 1))
        loss = discriminator_loss(self.loss.gan_loss, real, fake, lengths)
        judgements = {"real": real, "fake": fake}
        parts = {name: judged(maps, lengths, torch.Tensor.detach).mean() for name, maps in judgements.items()}
        return Loss(loss.mean(), parts)

    # --- validation -----------------------------------------------------------------------------------------

    def measure(self, modules: Modules, batch: Batch) -> Statistics:
        waves, lengths = self.opening(batch)
        codes, made = round_trip(self.pipeline(modules).codec, waves, lengths)
        waves, made = (each.to(torch.promote_types(each.dtype, torch.float32)) for each in (waves, made))
        heard = audible(waves, lengths)
        sums = {
            "count": torch.tensor(float(len(waves)), device=waves.device),
            "mel_distance": self.eval_mel_distance.to(waves.device)(made, waves, lengths).double().sum(),
            "stft_distance": stft_distance(made, waves, lengths).double().sum(),
            # Of silence there is no such ratio.
            "heard": heard.sum().double(),
            "si_sdr": si_sdr(made, waves)[heard].double().sum(),
            "codes": count_codes(codes, self.model.num_codes, self.model.num_quantizers),
        }
        return Statistics(sums)

    def summarise(self, statistics: Statistics) -> dict[str, float]:
        sums = statistics.sums
        figures = mean_metrics(sums, PER_CLIP)
        if sums["heard"]:
            figures["si_sdr"] = float(sums["si_sdr"] / sums["heard"])
        for name, of_level in (("codebook_usage", usage), ("codebook_perplexity", perplexity)):
            levels = of_level(sums["codes"])
            figures[name] = float(levels.mean())
            figures |= {f"{name}_level_{number}": float(level) for number, level in enumerate(levels, start=1)}
        figures["bitrate_kbps"] = self.model.bitrate / 1000
        return figures

    def sample(self, modules: Modules, batch: Batch) -> list[Artifact]:
        """Each clip and what the codec makes of it, to listen to; and a sheet of their spectrograms, side by side."""
        waves, lengths = self.opening(batch)
        codec: Codec = self.pipeline(modules).codec
        _, made = round_trip(codec, waves, lengths)
        artifacts: list[Artifact] = []
        pictures = []
        for number, (name, length) in enumerate(zip(batch.names, lengths.tolist(), strict=True)):
            for what, sounds in (("input", waves), ("reconstruction", made)):
                wave = sounds[number, :length].float().cpu()
                write = partial(write_audio, wave, rate=codec.sample_rate)
                artifacts.append(Artifact(f"{number:03d}-{what}.wav", write, {"item": name, "what": what}))
                pictures.append(spectrogram(wave, codec.sample_rate, width=SHOWN))
        sheet = image_grid(pictures, columns=2)
        about = {"columns": "input, reconstruction", "items": list(batch.names)}
        picture = Artifact("spectrograms.png", partial(write_image, sheet), about, torch.from_numpy(sheet))
        return [picture, *artifacts]

    def opening(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The first `eval.seconds` of each clip, and their lengths."""
        most = max(1, round(self.config.eval.seconds * self.config.model.sample_rate))
        return batch["wavs"][:, :most], batch["lengths"].clamp(max=most)


def balance_gradients(made: Tensor, aims: Iterable[tuple[float, Tensor]]) -> Tensor:
    """The weighted sum of the aims' distances, with a gradient that draws each clip to each aim as its weight says.

    An aim is a weight and a distance (batch,) of what was made, (batch, samples). How steep a distance is changes by
    orders of magnitude in the course of a training and from clip to clip, and the steepest would hide the others; so
    the direction of its gradient alone counts (as in EnCodec, 2210.13438, but clip by clip, which needs no memory).
    """
    value, total = made.new_zeros(()), torch.zeros_like(made)
    for weight, distances in aims:
        (gradient,) = torch.autograd.grad(distances.sum(), made, retain_graph=True)
        total += weight * F.normalize(gradient, dim=1, eps=FLATTEST)
        value = value + weight * distances.detach().mean()
    drawn = (made * total).sum() / len(made)
    return value + (drawn - drawn.detach())


def round_trip(codec: Codec, waves: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Codes, and waves of the length of the input, with silence behind the end of each clip."""
    codes = codec.encode(waves, lengths)
    made = codec.decode(codes)[:, : waves.shape[1]].to(waves.dtype)
    return codes, made * (torch.arange(waves.shape[1], device=waves.device) < lengths[:, None])
