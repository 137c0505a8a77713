"""`SoundStream`: quintet's audio codec with the names that `SoundStorm` of soundstorm-pytorch uses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from quintet.compat.model import CompatModel, TrainingParts, notify, refuse_pickle, refuse_unless
from quintet.errors import UsageError
from quintet.families.audio_codec.config import AudioCodecConfig
from quintet.families.audio_codec.model import AudioCodec
from quintet.families.audio_codec.pipeline import AudioCodecPipeline
from quintet.families.audio_codec.task import AudioCodecTask

NAME = "SoundStream"
ATTENTION = "use_local_attn", "attn_window_size", "attn_dim_head", "attn_heads", "attn_depth"
HOW_TO_TRAIN = "train quintet's recipe audio-codec, and open its run with SoundStream.init_and_load_from(RUN)"


class SoundStream(CompatModel):
    """Waveforms (batch, samples) to codes (batch, frames, quantizers) and back.

    The original is a class of audiolm-pytorch. This one encodes and decodes; it is trained with quintet's recipe
    `audio-codec`, or with `quintet.AudioCodecTrainer(soundstream.model, …)`.
    """

    config_class = AudioCodecConfig
    task_class = AudioCodecTask

    def __init__(
        self,
        *,
        channels: int = 32,
        strides: Sequence[int] = (2, 4, 5, 8),
        codebook_dim: int = 512,
        codebook_size: int = 1024,
        rq_num_quantizers: int = 8,
        rq_groups: int = 1,
        use_lookup_free_quantizer: bool = False,
        use_finite_scalar_quantizer: bool = False,
        input_channels: int = 1,
        target_sample_hz: int = 16_000,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        refuse_unless(
            NAME,
            "rq_groups",
            rq_groups,
            (1,),
            "the codec has one group; codes of other codecs work without SoundStream",
        )
        refuse_unless(NAME, "input_channels", input_channels, (1,), "the codec is mono")
        known = {name: kwargs.pop(name) for name in ATTENTION if name in kwargs}
        if kwargs:
            raise UsageError(f"{NAME}: {next(iter(kwargs))} is refused: quintet's codec has no such setting")
        if known:
            notify(NAME, f"{', '.join(known)} has no effect: the codec is convolutional")
        kind = "lfq" if use_lookup_free_quantizer else "fsq" if use_finite_scalar_quantizer else "vq"
        self.model = AudioCodec(
            sample_rate=target_sample_hz,
            strides=tuple(strides),
            dim=channels,
            latent_dim=codebook_dim,
            quantizer=kind,
            codebook_size=codebook_size,
            num_quantizers=rq_num_quantizers,
        )

    @classmethod
    def init_and_load_from(cls, path: str | Path, strict: bool = True) -> Self:
        """The codec of a run or export of the recipe `audio-codec`, or of a folder that `save` wrote."""
        if Path(path).is_file():
            refuse_pickle(Path(path))
        return cls.from_codec(AudioCodecPipeline.from_pretrained(str(path)).codec)

    @classmethod
    def from_codec(cls, codec: Any) -> Self:
        """A `SoundStream` of quintet's own codec."""
        if not isinstance(codec, AudioCodec):
            raise UsageError(f"{NAME} takes a quintet.AudioCodec, not a {type(codec).__name__}")
        made = cls.__new__(cls)
        CompatModel.__init__(made)
        made.model = codec
        made._initialised = True
        return made

    def training_parts(self) -> TrainingParts:
        return TrainingParts(self.model, trained=self._initialised)

    def pipeline(self) -> AudioCodecPipeline:
        """quintet's frozen pipeline of this codec."""
        config = AudioCodecConfig.model_validate({"model": self.model.config.model_dump(mode="json")})
        return AudioCodecPipeline(config, {"codec": self.model}).freeze()

    # --- what SoundStorm uses -----------------------------------------------------------------------------------

    @property
    def target_sample_hz(self) -> int:
        return self.model.sample_rate

    @property
    def downsample_factor(self) -> int:
        """Samples per frame."""
        return self.model.hop

    seq_len_multiple_of = downsample_factor

    @property
    def codebook_size(self) -> int:
        return self.model.num_codes

    @property
    def num_quantizers(self) -> int:
        return self.model.num_quantizers

    @property
    def rq_groups(self) -> int:
        return 1

    @torch.no_grad()
    def tokenize(self, audio: Tensor) -> Tensor:
        """Codes (batch, frames, quantizers) of waveforms (batch, samples), without an incomplete last frame."""
        waves = audio[:, 0] if audio.ndim == 3 and audio.shape[1] == 1 else audio
        if waves.ndim != 2 or waves.shape[1] < self.downsample_factor:
            raise UsageError(
                f"{NAME} takes waveforms (batch, samples) of at least one frame, {self.downsample_factor} samples, not "
                f"{tuple(audio.shape)}"
            )
        whole = waves[:, : waves.shape[1] // self.downsample_factor * self.downsample_factor]
        return self.model.encode(whole.to(self.device, self.dtype))

    @torch.no_grad()
    def decode_from_codebook_indices(self, quantized_indices: Tensor) -> Tensor:
        """Waveforms (batch, 1, samples) of codes (batch, frames, quantizers)."""
        return self.model.decode(quantized_indices)[:, None]

    def forward(
        self,
        x: Tensor,
        return_encoded: bool = False,
        return_codes_only: bool = False,
        return_recons_only: bool = False,
    ) -> Any:
        """Quantized vectors, codes and a loss of 0 with `return_encoded`; or only the codes; or the reconstruction."""
        if not (return_encoded or return_codes_only or return_recons_only):
            raise UsageError(f"{NAME} has no loss of its own here: {HOW_TO_TRAIN}")
        codes = self.tokenize(x)
        if return_codes_only:
            return codes
        if return_recons_only:
            return self.decode_from_codebook_indices(codes)
        vectors = self.model.quantizer.codes_to_vectors(codes if self.model.quantizer.code_axes else codes[..., 0])
        return vectors, codes, vectors.new_zeros(self.num_quantizers)
