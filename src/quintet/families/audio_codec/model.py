"""`AudioCodec`: convolutional encoder, residual quantizer, convolutional decoder (SoundStream, 2107.03312).

A clip is padded with silence to whole frames of `hop` samples. What lies behind it in a padded batch is silence to
every layer, so that a clip has the same codes alone and beside longer ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quintet.common.statistics import Statistics
from quintet.common.weights.pretrained import Pretrained
from quintet.config import validate
from quintet.errors import UsageError
from quintet.families.audio_codec.config import AudioCodecModelConfig
from quintet.families.audio_codec.layers import Conv, FrameMask, Layer, Memory, Residual, ResidualUnit, Stack, Upsample
from quintet.families.audio_codec.polar import FromPolar, ToPolar
from quintet.families.audio_codec.pretrained import CodecProperties, PretrainedCodec
from quintet.nn.quantize import PartedQuantizer, Quantized, Quantizer, ResidualQuantizer, configured_quantizer

__all__ = ["AudioCodec", "DecodeStream", "EncodeStream", "PretrainedCodec", "Reconstruction"]

AT_ONCE = 2**20
"""Samples of the longest clips that go through at once, about a minute; longer ones come in chunks, one by one."""
CHUNK = 2**18


@dataclass
class Reconstruction:
    """One pass through the codec; `waves` has the shape of the input, and silence where that has padding."""

    waves: Tensor
    codes: Tensor
    loss: Tensor
    statistics: Statistics


class AudioCodec(CodecProperties, Pretrained, nn.Module):
    """Waves (batch, samples) to codes (batch, frames, levels) and back.

    Keyword arguments are the keys of `model.*`; see `AudioCodecModelConfig`.
    """

    CONFIG = AudioCodecModelConfig

    def __init__(self, config: AudioCodecModelConfig | None = None, **keywords: Any) -> None:
        super().__init__()
        self.config = config or validate(AudioCodecModelConfig, keywords)
        self.hop = self.config.hop
        widths = [self.config.dim * min(2**number, 8) for number in range(len(self.config.strides) + 1)]
        self.encoder = _encoder(self.config, widths)
        self.quantizer = _quantizer(self.config)
        self.decoder = _decoder(self.config, widths)

    @property
    def codebooks(self) -> Tensor:
        """What the codes of each level stand for, (levels, codes, width)."""
        levels: list[Quantizer] = [self.quantizer]
        if isinstance(self.quantizer, ResidualQuantizer | PartedQuantizer):
            levels = [self.quantizer.level(level) for level in range(self.num_quantizers)]
        codes = torch.arange(self.num_codes, device=next(self.parameters()).device)
        return torch.stack([level.look_up(codes) for level in levels]).detach()

    # --- training -------------------------------------------------------------------------------------------

    def forward(
        self, waves: Tensor, lengths: Tensor, active_levels: Tensor | None = None, return_candidates: bool = False
    ) -> Reconstruction:
        """Encode and decode. Changes no state.

        Of each row so many samples are sound. `active_levels (batch,)`: a clip uses only its first so many levels.
        `return_candidates` adds candidates for dead codes to the statistics.
        """
        present = self._present(waves, lengths)
        mask = _needed(present)
        latents = self._latents(waves, lengths, mask)
        quantized = self._quantized(latents, present, active_levels, return_candidates)
        made = self._waves(quantized.vectors, mask)[:, : waves.shape[1]]
        made = made.masked_fill(_beyond(made, lengths), 0)
        return Reconstruction(made, self._with_levels(quantized.codes), quantized.loss, quantized.statistics)

    def latents(self, waves: Tensor, lengths: Tensor) -> Tensor:
        """The encoder's vectors of all frames that hold sound, one row each: what a codebook can start from."""
        present = self._present(waves, lengths)
        return self._latents(waves, lengths, FrameMask(present))[present]

    # --- codes ----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def encode(self, waves: Tensor, lengths: Tensor | None = None, num_quantizers: int | None = None) -> Tensor:
        """Codes of the first `levels`, or of all; -1 in frames beyond the `lengths`, in samples, of the clips."""
        if waves.ndim != 2 or not waves.shape[1]:
            raise UsageError(f"the codec takes mono sound, (batch, samples), not the shape {tuple(waves.shape)}")
        if lengths is None:
            lengths = torch.full((len(waves),), waves.shape[1], device=waves.device)
        if waves.shape[1] > AT_ONCE:
            rows = zip(waves, lengths.tolist(), strict=True)
            return _padded([self._encoded_in_chunks(wave[:length], num_quantizers) for wave, length in rows], -1)
        present = self._present(waves, lengths)
        codes = self.quantizer.encode(self._latents(waves, lengths, _needed(present)), present, num_quantizers)
        return self._with_levels(codes)

    @torch.no_grad()
    def decode(self, codes: Tensor) -> Tensor:
        """Waves (batch, frames * hop) in [-1, 1] of codes of all levels or only the first; frames of -1 are silence."""
        self._check(codes)
        present = (codes >= 0).any(-1)
        if codes.shape[1] * self.hop > AT_ONCE:
            parts = [self._decoded_in_chunks(row[:count]) for row, count in zip(codes, present.sum(1), strict=True)]
            waves = _padded(parts, 0.0)
            return F.pad(waves, (0, codes.shape[1] * self.hop - waves.shape[1]))
        made = self._waves(self._vectors(codes), None if present.all() else FrameMask(present))
        return made.masked_fill(~present.repeat_interleave(self.hop, dim=1), 0).clamp(-1, 1)

    def encode_stream(self, num_quantizers: int | None = None) -> EncodeStream:
        """Takes a clip chunk by chunk, gives codes as soon as they are known; together they are those of `encode`."""
        return EncodeStream(self, num_quantizers)

    def decode_stream(self) -> DecodeStream:
        """Takes codes frame by frame and gives waves as soon as they are known; together they are those of `decode`."""
        return DecodeStream(self)

    def _encoded_in_chunks(self, wave: Tensor, num_quantizers: int | None) -> Tensor:
        stream = self.encode_stream(num_quantizers)
        parts = [stream.push(chunk[None]) for chunk in torch.split(wave, CHUNK)]
        return torch.cat([*parts, stream.finish()], dim=1)[0]

    def _decoded_in_chunks(self, codes: Tensor) -> Tensor:
        stream = self.decode_stream()
        parts = [stream.push(chunk[None]) for chunk in torch.split(codes, max(1, CHUNK // self.hop))]
        return torch.cat([*parts, stream.finish()], dim=1)[0]

    # --- parts ----------------------------------------------------------------------------------------------

    def _present(self, waves: Tensor, lengths: Tensor) -> Tensor:
        """Which frames hold sound, (batch, frames)."""
        count = -(-waves.shape[1] // self.hop)
        return torch.arange(count, device=waves.device) < self.frames(lengths)[:, None]

    def _latents(self, waves: Tensor, lengths: Tensor, mask: FrameMask | None) -> Tensor:
        """(batch, frames, width)"""
        sound = waves.masked_fill(_beyond(waves, lengths), 0)
        latents: Tensor = self.encoder(F.pad(sound, (0, -waves.shape[1] % self.hop))[:, None], mask)
        return latents.transpose(1, 2)

    def _quantized(
        self, latents: Tensor, present: Tensor, active_levels: Tensor | None, return_candidates: bool
    ) -> Quantized:
        if isinstance(self.quantizer, ResidualQuantizer | PartedQuantizer):
            return self.quantizer(latents, present, return_candidates, active_levels)  # type: ignore[no-any-return]
        return self.quantizer(latents, present, return_candidates)  # type: ignore[no-any-return]

    def _with_levels(self, codes: Tensor) -> Tensor:
        return codes if self.quantizer.code_axes else codes[..., None]

    def _vectors(self, codes: Tensor) -> Tensor:
        return self.quantizer.codes_to_vectors(codes if self.quantizer.code_axes else codes[..., 0])

    def _waves(self, vectors: Tensor, mask: FrameMask | None) -> Tensor:
        waves: Tensor = self.decoder(vectors.transpose(1, 2), mask)
        return waves[:, 0]

    def _check(self, codes: Tensor) -> None:
        if codes.ndim != 3 or not codes.shape[1] or not 1 <= codes.shape[2] <= self.num_quantizers:
            raise UsageError(
                f"the codec takes codes (batch, frames, levels) of at most {self.num_quantizers} levels, "
                f"not the shape {tuple(codes.shape)}"
            )


class EncodeStream:
    """A clip, or several of one length, chunk by chunk to codes; made by `AudioCodec.encode_stream`."""

    def __init__(self, codec: AudioCodec, num_quantizers: int | None) -> None:
        self.codec = codec
        self.num_quantizers = num_quantizers
        self._memory: Memory = {}
        self._samples = 0
        self._rest: Tensor | None = None

    def push(self, waves: Tensor) -> Tensor:
        """The codes (batch, frames, levels) that are known once (batch, samples) more are; perhaps of no frame."""
        self._samples += waves.shape[1]
        self._rest = waves[:, :0]
        return self._codes(waves, last=False)

    def finish(self) -> Tensor:
        """The codes of the last frames."""
        if self._rest is None or not self._samples:
            raise UsageError("this stream has no samples; push some before it is finished")
        return self._codes(F.pad(self._rest, (0, -self._samples % self.codec.hop)), last=True)

    @torch.no_grad()
    def _codes(self, waves: Tensor, last: bool) -> Tensor:
        latents = self.codec.encoder.stream(waves[:, None], self._memory, last).transpose(1, 2)
        return self.codec._with_levels(self.codec.quantizer.encode(latents, levels=self.num_quantizers))


class DecodeStream:
    """Codes of one clip, or of several of one length, frame by frame to waves; made by `AudioCodec.decode_stream`."""

    def __init__(self, codec: AudioCodec) -> None:
        self.codec = codec
        self._memory: Memory = {}
        self._rest: Tensor | None = None

    @torch.no_grad()
    def push(self, codes: Tensor) -> Tensor:
        """The waves (batch, samples) that are known once codes (batch, frames, levels) of more frames are."""
        self.codec._check(codes)
        vectors = self.codec._vectors(codes).transpose(1, 2)
        self._rest = vectors[..., :0]
        return self._waves(vectors, last=False)

    @torch.no_grad()
    def finish(self) -> Tensor:
        """The last of the waves."""
        if self._rest is None:
            raise UsageError("this stream has no codes; push some before it is finished")
        return self._waves(self._rest, last=True)

    def _waves(self, vectors: Tensor, last: bool) -> Tensor:
        return self.codec.decoder.stream(vectors, self._memory, last)[:, 0].clamp(-1, 1)


def _needed(present: Tensor) -> FrameMask | None:
    """None where no frame is padding. A GPU would have to wait for the answer, so there it is not asked."""
    return None if present.device.type == "cpu" and present.all() else FrameMask(present)


def _beyond(waves: Tensor, lengths: Tensor) -> Tensor:
    """Which samples lie behind the end of their clip."""
    return torch.arange(waves.shape[1], device=waves.device) >= lengths[:, None]


def _padded(rows: Iterable[Tensor], value: float) -> Tensor:
    return nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=value)


def _quantizer(config: AudioCodecModelConfig) -> Quantizer:
    loud = config.loudness_quantizers
    levels = config.num_quantizers if config.transform is None else (loud, config.num_quantizers - loud)
    return configured_quantizer(config, config.width, levels)


def _units(config: AudioCodecModelConfig, dim: int) -> list[ResidualUnit]:
    return [
        ResidualUnit(dim, 3**number, causal=config.causal, activation=config.activation)
        for number in range(config.num_residual_units)
    ]


def _encoder(config: AudioCodecModelConfig, widths: list[int]) -> Stack:
    if config.transform is not None:
        return Stack([ToPolar(config.transform, causal=config.causal), _residual(config)])
    style: dict[str, Any] = {"causal": config.causal, "activation": config.activation}
    layers: list[Layer] = [Conv(1, widths[0], 7, causal=config.causal)]
    for (before, after), stride in zip(pairwise(widths), config.strides, strict=True):
        layers.append(Conv(before, after, 2 * stride, stride=stride, **style))
        layers += _units(config, after)
    return Stack([*layers, Conv(widths[-1], config.width, 3, **style)])


def _decoder(config: AudioCodecModelConfig, widths: list[int]) -> Stack:
    if config.transform is not None:
        return Stack([_residual(config), FromPolar(config.transform, causal=config.causal)])
    style: dict[str, Any] = {"causal": config.causal, "activation": config.activation}
    layers: list[Layer] = [Conv(config.width, widths[-1], 7, causal=config.causal)]
    for (after, before), stride in zip(reversed(list(pairwise(widths))), reversed(config.strides), strict=True):
        layers += _units(config, before)
        layers.append(Upsample(before, after, stride, **style))
    return Stack([*layers, Conv(widths[0], 1, 7, **style)])


def _residual(config: AudioCodecModelConfig) -> Residual:
    """What is learned beside a transform, which passes as it is from the beginning."""
    into = Conv(config.width, config.dim, 3, causal=config.causal)
    out = Conv(config.dim, config.width, 3, causal=config.causal, activation=config.activation)
    return Residual([into, *_units(config, config.dim), out.zero_init()])
