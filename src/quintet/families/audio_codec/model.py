"""`AudioCodec`: convolutional encoder, residual quantizer, convolutional decoder (SoundStream, 2107.03312).

Waveforms are (batch, samples), or (batch, 2, samples) if the codec is stereo (`stereo.py`).

A clip is padded with zeros to whole frames of `hop` samples. Every layer sees zeros in the padding of a batch, so that
a clip has the same codes alone and in a batch with longer clips.
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
from quintet.families.audio_codec.stereo import from_signals, joined, per_signal, separated, to_signals
from quintet.nn.quantize import ProductQuantizer, Quantized, Quantizer, ResidualQuantizer, configured_quantizer

__all__ = ["AudioCodec", "DecodeStream", "EncodeStream", "PretrainedCodec", "Reconstruction"]

MAX_SAMPLES_AT_ONCE = 2**20
"""About a minute; a batch with longer clips is processed clip by clip, in chunks."""
CHUNK = 2**18
"""Samples per chunk."""


@dataclass
class Reconstruction:
    """Output of one pass through the codec."""

    waves: Tensor
    """As the input, zero in its padding."""
    codes: Tensor
    """(batch, frames, num_quantizers)"""
    loss: Tensor
    statistics: Statistics


class AudioCodec(CodecProperties, Pretrained, nn.Module):
    """Waveforms (batch, samples), or (batch, 2, samples) in stereo, to codes (batch, frames, num_quantizers) and back.

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
        """The vectors of the codes of each quantizer, (num_quantizers, num_codes, dim)."""
        quantizers: list[Quantizer] = [self.quantizer]
        if isinstance(self.quantizer, ResidualQuantizer | ProductQuantizer):
            quantizers = [self.quantizer.level(level) for level in range(self.num_quantizers)]
        codes = torch.arange(self.num_codes, device=next(self.parameters()).device)
        return torch.stack([quantizer.look_up(codes) for quantizer in quantizers]).detach()

    # --- training -------------------------------------------------------------------------------------------

    def forward(
        self, waves: Tensor, lengths: Tensor, active_levels: Tensor | None = None, return_candidates: bool = False
    ) -> Reconstruction:
        """Encode and decode `waves` with `lengths` (batch,) in samples. Changes no state.

        `active_levels` (batch,) is the number of quantizers that each clip uses; None: all.
        `return_candidates` adds candidates for dead codes to the statistics.
        """
        self.check_waves(waves)
        valid = self._valid_frames(waves, lengths)
        mask = _frame_mask(valid)
        latents = self._latents(waves, lengths, mask)
        quantized = self._quantized(latents, valid, active_levels, return_candidates)
        decoded = self._waves(quantized.vectors, mask)[..., : waves.shape[-1]]
        decoded = decoded.masked_fill(_is_padding(decoded, lengths), 0)
        return Reconstruction(decoded, self._with_quantizer_axis(quantized.codes), quantized.loss, quantized.statistics)

    def latents(self, waves: Tensor, lengths: Tensor) -> Tensor:
        """Encoder outputs (frames, dim) of all valid frames of a batch, from which a codebook can be initialised."""
        valid = self._valid_frames(waves, lengths)
        return self._latents(waves, lengths, FrameMask(valid))[valid]

    # --- codes ----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def encode(self, waves: Tensor, lengths: Tensor | None = None, num_quantizers: int | None = None) -> Tensor:
        """Codes (batch, frames, num_quantizers) of waveforms, of the first quantizers or of all.

        `lengths` (batch,) are in samples; frames behind the end of a clip are -1.
        """
        self.check_waves(waves)
        if lengths is None:
            lengths = torch.full((len(waves),), waves.shape[-1], device=waves.device)
        if waves.shape[-1] > MAX_SAMPLES_AT_ONCE:
            rows = zip(waves, lengths.tolist(), strict=True)
            return _padded([self._encoded_in_chunks(wave[..., :length], num_quantizers) for wave, length in rows], -1)
        valid = self._valid_frames(waves, lengths)
        codes = self.quantizer.encode(self._latents(waves, lengths, _frame_mask(valid)), valid, num_quantizers)
        return self._with_quantizer_axis(codes)

    @torch.no_grad()
    def decode(self, codes: Tensor) -> Tensor:
        """Waveforms of whole frames, in [-1, 1], of codes (batch, frames, quantizers).

        Codes of only the first quantizers are enough; frames of -1 become silence.
        """
        self._check(codes)
        valid = (codes >= 0).any(-1)
        if codes.shape[1] * self.hop > MAX_SAMPLES_AT_ONCE:
            parts = [self._decoded_in_chunks(row[:count]) for row, count in zip(codes, valid.sum(1), strict=True)]
            samples = codes.shape[1] * self.hop
            return torch.stack([F.pad(wave, (0, samples - wave.shape[-1])) for wave in parts])
        decoded = self._waves(self._vectors(codes), None if valid.all() else FrameMask(valid))
        padding = _like_waves(~valid.repeat_interleave(self.hop, dim=1), decoded)
        return decoded.masked_fill(padding, 0).clamp(-1, 1)

    def encode_stream(self, num_quantizers: int | None = None) -> EncodeStream:
        """A streaming encoder: takes a clip chunk by chunk and returns the same codes as `encode`."""
        return EncodeStream(self, num_quantizers)

    def decode_stream(self) -> DecodeStream:
        """A streaming decoder: takes codes frame by frame and returns the same waveform as `decode`."""
        return DecodeStream(self)

    def _encoded_in_chunks(self, wave: Tensor, num_quantizers: int | None) -> Tensor:
        stream = self.encode_stream(num_quantizers)
        parts = [stream.push(chunk[None]) for chunk in torch.split(wave, CHUNK, dim=-1)]
        return torch.cat([*parts, stream.finish()], dim=1)[0]

    def _decoded_in_chunks(self, codes: Tensor) -> Tensor:
        stream = self.decode_stream()
        parts = [stream.push(chunk[None]) for chunk in torch.split(codes, max(1, CHUNK // self.hop))]
        return torch.cat([*parts, stream.finish()], dim=-1)[0]

    # --- parts ----------------------------------------------------------------------------------------------

    def _valid_frames(self, waves: Tensor, lengths: Tensor) -> Tensor:
        """Mask (batch, frames) of the frames within each clip."""
        count = -(-waves.shape[-1] // self.hop)
        return torch.arange(count, device=waves.device) < self.frames(lengths)[:, None]

    def _latents(self, waves: Tensor, lengths: Tensor, mask: FrameMask | None) -> Tensor:
        """Encoder outputs (batch, frames, dim)."""
        masked = waves.masked_fill(_is_padding(waves, lengths), 0)
        signals = to_signals(F.pad(masked, (0, -waves.shape[-1] % self.hop)))
        return self._joined(self.encoder(signals[:, None], self._of_signals(mask)))

    def _joined(self, latents: Tensor) -> Tensor:
        return joined(latents, self.channels, _parts(self.config))

    def _separated(self, vectors: Tensor) -> Tensor:
        return separated(vectors, self.channels, _parts(self.config))

    def _of_signals(self, mask: FrameMask | None) -> FrameMask | None:
        return mask if mask is None or self.channels == 1 else FrameMask(per_signal(mask.valid, self.channels))

    def _quantized(
        self, latents: Tensor, valid: Tensor, active_levels: Tensor | None, return_candidates: bool
    ) -> Quantized:
        if isinstance(self.quantizer, ResidualQuantizer | ProductQuantizer):
            return self.quantizer(latents, valid, return_candidates, active_levels)  # type: ignore[no-any-return]
        return self.quantizer(latents, valid, return_candidates)  # type: ignore[no-any-return]

    def _with_quantizer_axis(self, codes: Tensor) -> Tensor:
        return codes if self.quantizer.code_axes else codes[..., None]

    def _vectors(self, codes: Tensor) -> Tensor:
        return self.quantizer.codes_to_vectors(codes if self.quantizer.code_axes else codes[..., 0])

    def _waves(self, vectors: Tensor, mask: FrameMask | None) -> Tensor:
        signals: Tensor = self.decoder(self._separated(vectors), self._of_signals(mask))
        return from_signals(signals[:, 0], self.channels)

    def _check(self, codes: Tensor) -> None:
        if codes.ndim != 3 or not codes.shape[1] or not 1 <= codes.shape[2] <= self.num_quantizers:
            raise UsageError(
                f"the codec expects codes of shape (batch, frames, quantizers) with at most {self.num_quantizers} "
                f"quantizers, not {tuple(codes.shape)}"
            )


class EncodeStream:
    """Encodes a clip, or several of equal length, chunk by chunk; see `AudioCodec.encode_stream`."""

    def __init__(self, codec: AudioCodec, num_quantizers: int | None) -> None:
        self.codec = codec
        self.num_quantizers = num_quantizers
        self._memory: Memory = {}
        self._samples = 0
        self._rest: Tensor | None = None

    def push(self, waves: Tensor) -> Tensor:
        """The codes (batch, frames, num_quantizers) that the next samples of waveforms complete; perhaps none."""
        if waves.shape[-1]:
            self.codec.check_waves(waves)
        self._samples += waves.shape[-1]
        self._rest = waves[..., :0]
        return self._codes(waves, last=False)

    def finish(self) -> Tensor:
        """The codes of the remaining frames."""
        if self._rest is None or not self._samples:
            raise UsageError("the stream is empty; push samples before finish")
        return self._codes(F.pad(self._rest, (0, -self._samples % self.codec.hop)), last=True)

    @torch.no_grad()
    def _codes(self, waves: Tensor, last: bool) -> Tensor:
        latents = self.codec._joined(self.codec.encoder.stream(to_signals(waves)[:, None], self._memory, last))
        return self.codec._with_quantizer_axis(self.codec.quantizer.encode(latents, levels=self.num_quantizers))


class DecodeStream:
    """Decodes the codes of one clip, or of several of equal length, frame by frame; see `AudioCodec.decode_stream`."""

    def __init__(self, codec: AudioCodec) -> None:
        self.codec = codec
        self._memory: Memory = {}
        self._rest: Tensor | None = None

    @torch.no_grad()
    def push(self, codes: Tensor) -> Tensor:
        """The samples of waveforms that the next codes (batch, frames, quantizers) complete; perhaps none."""
        self.codec._check(codes)
        vectors = self.codec._separated(self.codec._vectors(codes))
        self._rest = vectors[..., :0]
        return self._waves(vectors, last=False)

    @torch.no_grad()
    def finish(self) -> Tensor:
        """The remaining samples."""
        if self._rest is None:
            raise UsageError("the stream is empty; push codes before finish")
        return self._waves(self._rest, last=True)

    def _waves(self, vectors: Tensor, last: bool) -> Tensor:
        signals = self.codec.decoder.stream(vectors, self._memory, last)[:, 0]
        return from_signals(signals, self.codec.channels).clamp(-1, 1)


def _frame_mask(valid: Tensor) -> FrameMask | None:
    """None if no frame is padding. Checked on the CPU only: on a GPU the check would synchronise."""
    return None if valid.device.type == "cpu" and valid.all() else FrameMask(valid)


def _is_padding(waves: Tensor, lengths: Tensor) -> Tensor:
    """Mask (batch, samples), or (batch, 1, samples) in stereo, of the samples behind the end of their clip."""
    return _like_waves(torch.arange(waves.shape[-1], device=waves.device) >= lengths[:, None], waves)


def _like_waves(mask: Tensor, waves: Tensor) -> Tensor:
    """A mask (batch, samples) with an axis of channels, if the waveforms have one."""
    return mask if waves.ndim == 2 else mask[:, None]


def _padded(rows: Iterable[Tensor], value: float) -> Tensor:
    return nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=value)


def _quantizer(config: AudioCodecModelConfig) -> Quantizer:
    """Of all signals together: first the loudness of each signal, then the phase of each; without a transform, each."""
    loudness, signals = config.loudness_quantizers, config.channels
    counts = (config.num_quantizers,) if config.transform is None else (loudness, config.num_quantizers - loudness)
    of_signals = [count // signals for count in counts for _ in range(signals)]
    dim = signals * config.quantizer_dim
    return configured_quantizer(config, dim, of_signals if len(of_signals) > 1 else of_signals[0])


def _parts(config: AudioCodecModelConfig) -> int:
    """Parts of the latent vector of a signal that have quantizers of their own."""
    return 1 if config.transform is None else 2


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
    return Stack([*layers, Conv(widths[-1], config.quantizer_dim, 3, **style)])


def _decoder(config: AudioCodecModelConfig, widths: list[int]) -> Stack:
    if config.transform is not None:
        return Stack([_residual(config), FromPolar(config.transform, causal=config.causal)])
    style: dict[str, Any] = {"causal": config.causal, "activation": config.activation}
    layers: list[Layer] = [Conv(config.quantizer_dim, widths[-1], 7, causal=config.causal)]
    for (after, before), stride in zip(reversed(list(pairwise(widths))), reversed(config.strides), strict=True):
        layers += _units(config, before)
        layers.append(Upsample(before, after, stride, **style))
    return Stack([*layers, Conv(widths[0], 1, 7, **style)])


def _residual(config: AudioCodecModelConfig) -> Residual:
    """The learned residual branch around a transform; it is zero at the start of training."""
    into = Conv(config.quantizer_dim, config.dim, 3, causal=config.causal)
    out = Conv(config.dim, config.quantizer_dim, 3, causal=config.causal, activation=config.activation)
    return Residual([into, *_units(config, config.dim), out.zero_init()])
