"""`PretrainedCodec`: EnCodec, DAC and Mimi of `transformers`, frozen, with the interface of `AudioCodec`.

These codecs do not support padding, so only clips of equal length are encoded or decoded together. `CodecProperties` is
the base class of all codecs.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quintet.common.weights import checkpoint
from quintet.common.weights.pretrained import Pretrained
from quintet.config import validate
from quintet.errors import UsageError
from quintet.families.audio_codec.config import AudioCodecConfig, AudioCodecModelConfig
from quintet.nn.transformers_folder import check_settings, frozen, load_model, load_part, load_transformers, loading


class CodecProperties:
    """Properties that follow from the configuration and the hop length of a codec."""

    config: AudioCodecModelConfig
    hop: int
    """Hop length: samples per frame."""

    @property
    def num_codes(self) -> int:
        """Vocabulary size of each quantizer."""
        return self.config.codebook_size

    @property
    def num_quantizers(self) -> int:
        """Residual quantizers per frame."""
        return self.config.num_quantizers

    @property
    def channels(self) -> int:
        """1: waveforms are (batch, samples); 2: stereo, (batch, 2, samples)."""
        return self.config.channels

    @property
    def sample_rate(self) -> int:
        """Sampling rate in Hz."""
        return self.config.sample_rate

    @property
    def frame_rate(self) -> float:
        """Frames per second."""
        return self.sample_rate / self.hop

    @property
    def bitrate(self) -> float:
        """Bits per second of the codes of all quantizers."""
        return self.frame_rate * self.num_quantizers * math.log2(self.num_codes)

    def check_waves(self, waves: Tensor) -> None:
        """`UsageError` unless waveforms have the axes of the codec, and samples."""
        if self.channels == 1:
            fits, shape = waves.ndim == 2, "mono audio of shape (batch, samples)"
        else:
            fits, shape = waves.ndim == 3 and waves.shape[1] == 2, "stereo audio of shape (batch, 2, samples)"
        if not fits or not waves.shape[-1]:
            raise UsageError(f"the codec expects {shape}, not {tuple(waves.shape)}")

    def frames(self, samples: Tensor) -> Tensor:
        """Number of frames of clips with these numbers of samples."""
        return (samples + self.hop - 1) // self.hop


MODEL_KIND = "neural audio codec"
IGNORED_SETTINGS = ("_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version")
"""Settings of a configuration that do not describe the codec."""


class PretrainedCodec(CodecProperties, Pretrained, nn.Module):
    """A pretrained codec: waveforms (batch, samples) to codes (batch, frames, num_quantizers) and back.

        PretrainedCodec.from_transformers("encodec_24khz/")

    `model.transformers_config` defines the codec; `model.sample_rate`, `model.num_quantizers` and `model.codebook_size`
    are recorded from it.
    """

    about: Tensor

    CONFIG = AudioCodecModelConfig

    def __init__(
        self, config: AudioCodecModelConfig | None = None, model: nn.Module | None = None, **keywords: Any
    ) -> None:
        super().__init__()
        self.config = config = config or validate(AudioCodecModelConfig, keywords)
        if config.transformers_config is None:
            raise UsageError(
                "PretrainedCodec needs model.transformers_config: use PretrainedCodec.from_transformers(FOLDER)"
            )
        settings = json.loads(config.transformers_config)
        self.kind: str = settings["model_type"]
        self.model: Any = frozen(model or _untrained(settings))
        self.hop = _hop(self.model.config)
        # The same weights with other settings are another codec, so the settings are part of the hashed state.
        content = hashlib.sha256(config.transformers_config.encode()).digest()
        self.register_buffer("about", torch.tensor(list(content), dtype=torch.uint8))
        self.eval()

    @classmethod
    def from_transformers(cls, folder: str | Path) -> Self:
        """Load the codec of a folder with config.json and model.safetensors, on the CPU."""
        _check_supported(Path(folder))
        model = load_model(Path(folder), MODEL_KIND)
        settings = model.config
        found = {
            "transformers_config": _settings_text(Path(folder)),
            "sample_rate": int(settings.sampling_rate),
            "num_quantizers": _num_quantizers(model),
            "codebook_size": int(settings.codebook_size),
        }
        return cls(validate(AudioCodecModelConfig, found), model)

    @property
    def codebooks(self) -> Tensor:
        """The vectors of the codes of each quantizer, (num_quantizers, num_codes, dim)."""
        quantizer = self.model.quantizer
        if self.kind == "dac":
            return torch.stack([level.codebook.weight for level in quantizer.quantizers]).detach()
        if self.kind == "encodec":
            return torch.stack([level.codebook.embed for level in quantizer.layers[: self.num_quantizers]]).detach()
        halves = (quantizer.semantic_residual_vector_quantizer, quantizer.acoustic_residual_vector_quantizer)
        return torch.stack([level.codebook.embed for half in halves for level in half.layers]).detach()

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """Move to another device or precision."""
        moved: Self = super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for module in self.modules():
            if getattr(module, "_embed", None) is not None:
                module._embed = None  # type: ignore[assignment]  # Mimi caches a codebook here and does not move it
        return moved

    @torch.no_grad()
    def encode(self, waves: Tensor, lengths: Tensor | None = None, num_quantizers: int | None = None) -> Tensor:
        """Codes (batch, frames, num_quantizers) of waveforms (batch, samples), of the first quantizers or of all.

        `lengths` (batch,) are in samples; frames behind the end of a clip are -1.
        """
        self.check_waves(waves)
        sizes = [waves.shape[1]] * len(waves) if lengths is None else lengths.tolist()
        count = -(-waves.shape[1] // self.hop)
        codes = torch.full((len(waves), count, self.num_quantizers), -1, dtype=torch.int64, device=waves.device)
        for size, rows in _rows_by_size(sizes).items():
            encoded = self._codes(waves[rows, :size])
            codes[rows, : encoded.shape[1]] = encoded
        return codes[..., :num_quantizers]

    @torch.no_grad()
    def decode(self, codes: Tensor) -> Tensor:
        """Waveforms (batch, frames * hop) in [-1, 1] of codes (batch, frames, quantizers).

        Codes of only the first quantizers are enough; frames of -1 become silence.
        """
        counts = self._frame_counts(codes)
        waves = torch.zeros(len(codes), codes.shape[1] * self.hop, device=codes.device)
        for count, rows in _rows_by_size(counts).items():
            if count:
                waves[rows, : count * self.hop] = self._waves(codes[rows, :count])
        return waves.clamp(-1, 1)

    def _codes(self, waves: Tensor) -> Tensor:
        """Codes (clips, frames, quantizers) of clips (clips, samples) of equal length."""
        # DAC drops an incomplete last frame; the other codecs pad it themselves.
        padded = F.pad(waves, (0, -waves.shape[1] % self.hop)) if self.kind == "dac" else waves
        audio = padded[:, None].to(next(self.model.parameters()).dtype)
        if self.kind == "encodec":
            codes: Tensor = self.model.encode(audio, bandwidth=max(self.model.config.target_bandwidths)).audio_codes[0]
        else:
            codes = self.model.encode(audio).audio_codes
        return codes.transpose(1, 2)

    def _waves(self, codes: Tensor) -> Tensor:
        """Waveforms (clips, frames * hop) of codes (clips, frames, quantizers) of equal length."""
        rows = codes.transpose(1, 2)
        if self.kind == "encodec":
            waves: Tensor = self.model.decode(rows[None], [None]).audio_values[:, 0]
        elif self.kind == "dac":
            waves = self.model.decode(audio_codes=rows).audio_values
        else:
            waves = self.model.decode(rows).audio_values[:, 0]
        samples = codes.shape[1] * self.hop
        # With an odd stride DAC returns a few samples less.
        return F.pad(waves, (0, max(0, samples - waves.shape[1])))[:, :samples].float()

    def _frame_counts(self, codes: Tensor) -> list[int]:
        """The number of valid frames of each row; raises if codes (batch, frames, quantizers) do not fit the codec."""
        if codes.ndim != 3 or not codes.shape[1] or not 1 <= codes.shape[2] <= self.num_quantizers:
            raise UsageError(
                f"the codec expects codes of shape (batch, frames, quantizers) with at most {self.num_quantizers} "
                f"quantizers, not {tuple(codes.shape)}"
            )
        counts = (codes >= 0).all(-1).sum(1)
        leading = torch.arange(codes.shape[1], device=codes.device) < counts[:, None]
        if not torch.equal(leading, (codes >= 0).any(-1)) or int(codes.max()) >= self.num_codes:
            raise UsageError(
                f"the codec expects codes from 0 to {self.num_codes - 1}, and -1 for all quantizers of the frames "
                "behind the end of a clip"
            )
        return [int(count) for count in counts]


def _rows_by_size(sizes: Iterable[int]) -> dict[int, list[int]]:
    """The indices of the rows of each size."""
    rows: dict[int, list[int]] = defaultdict(list)
    for row, size in enumerate(sizes):
        rows[size].append(row)
    return rows


def _settings_text(folder: Path) -> str:
    """The configuration of the codec as JSON with sorted keys."""
    settings = checkpoint.read_json(folder, "config")
    return json.dumps({name: value for name, value in settings.items() if name not in IGNORED_SETTINGS}, sort_keys=True)


def _untrained(settings: dict[str, Any]) -> nn.Module:
    """The module with random weights, which are loaded later."""
    library = load_transformers(MODEL_KIND)
    check_settings(settings, "model.transformers_config")
    with loading(Path("model.transformers_config"), MODEL_KIND):
        model: nn.Module = library.AutoModel.from_config(
            library.AutoConfig.for_model(**settings), trust_remote_code=False
        )
        return model


def _hop(settings: Any) -> int:
    """Samples per frame, computed exactly: `frame_rate` of the configurations is rounded."""
    if settings.model_type == "mimi":
        samples: float = settings.sampling_rate / settings.frame_rate
        return round(samples)
    ratios = settings.upsampling_ratios if settings.model_type == "encodec" else settings.downsampling_ratios
    return int(math.prod(ratios))


def _num_quantizers(model: Any) -> int:
    settings = model.config
    if settings.model_type == "encodec":
        most = max(settings.target_bandwidths)
        return min(len(model.quantizer.layers), int(model.quantizer.get_num_quantizers_for_bandwidth(most)))
    return int(settings.n_codebooks if settings.model_type == "dac" else settings.num_quantizers)


def _check_supported(folder: Path) -> None:
    """Raise for codecs that are not supported, before their weights are loaded.

    EnCodec at 48 kHz, for example, needs two channels, and stores a scale per second in addition to its codes.
    """
    settings = load_part(folder, MODEL_KIND, "AutoConfig")
    if settings.model_type not in AudioCodecConfig.TRANSFORMERS:
        known = ", ".join(AudioCodecConfig.TRANSFORMERS)
        raise UsageError(f"{folder} holds a model of type {settings.model_type}, which is not a {MODEL_KIND} ({known})")
    channels = getattr(settings, "audio_channels", 1)
    extras = [name for name in ("normalize", "chunk_length_s") if getattr(settings, name, None)]
    if channels != 1 or extras:
        why = f"has {channels} channels" if channels != 1 else f"stores more than codes ({', '.join(extras)})"
        raise UsageError(f"{folder}: this codec {why}; use a mono codec such as EnCodec at 24 kHz, DAC or Mimi")
