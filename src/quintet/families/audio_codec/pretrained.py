"""`PretrainedCodec`: EnCodec, DAC and Mimi of `transformers` behind the interface of `AudioCodec`, frozen; and `CodecProperties`,
which any codec has.

Clips go through one by one, or together with others of their length: such a codec knows nothing of padding.
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
from quintet.nn.transformers_folder import frozen, load_model, load_transformers, loading


class CodecProperties:
    """What follows from a codec's configuration and from how many samples a frame has."""

    config: AudioCodecModelConfig
    hop: int
    """Samples of a frame."""

    @property
    def num_codes(self) -> int:
        """The vocabulary of each level."""
        return self.config.codebook_size

    @property
    def num_quantizers(self) -> int:
        return self.config.num_quantizers

    @property
    def sample_rate(self) -> int:
        """Samples a second."""
        return self.config.sample_rate

    @property
    def frame_rate(self) -> float:
        """Frames a second."""
        return self.sample_rate / self.hop

    @property
    def bitrate(self) -> float:
        """Bits a second of codes of all levels."""
        return self.frame_rate * self.num_quantizers * math.log2(self.num_codes)

    def frames(self, samples: Tensor) -> Tensor:
        """Frames of clips of so many samples."""
        return (samples + self.hop - 1) // self.hop


WHAT = "codec of sound"
FOLDERS_OWN = ("_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version")
"""What a configuration says beside what the codec is."""


class PretrainedCodec(CodecProperties, Pretrained, nn.Module):
    """Waves (batch, samples) to codes (batch, frames, levels) and back, by a codec that others trained.

        PretrainedCodec.from_transformers("encodec_24khz/")

    `model.transformers_config` is all it is made from; `model.sample_rate`, `model.num_quantizers` and `model.codebook_size` tell of it.
    """

    about: Tensor

    CONFIG = AudioCodecModelConfig

    def __init__(
        self, config: AudioCodecModelConfig | None = None, model: nn.Module | None = None, **keywords: Any
    ) -> None:
        super().__init__()
        self.config = config = config or validate(AudioCodecModelConfig, keywords)
        if config.transformers_config is None:
            raise UsageError("PretrainedCodec is made from a folder: PretrainedCodec.from_transformers(FOLDER)")
        settings = json.loads(config.transformers_config)
        self.kind: str = settings["model_type"]
        self.model: Any = frozen(model or _untrained(settings))
        self.hop = _hop(self.model.config)
        # The same weights under other settings are another codec; whatever is hashed of this one tells them apart.
        content = hashlib.sha256(config.transformers_config.encode()).digest()
        self.register_buffer("about", torch.tensor(list(content), dtype=torch.uint8))
        self.eval()

    @classmethod
    def from_transformers(cls, folder: str | Path) -> Self:
        """The codec of a folder with config.json and model.safetensors, on the CPU."""
        _refuse_unfit(Path(folder))
        model = load_model(Path(folder), WHAT)
        settings = model.config
        found = {
            "transformers_config": _settings_text(Path(folder)),
            "sample_rate": int(settings.sampling_rate),
            "num_quantizers": _levels(model),
            "codebook_size": int(settings.codebook_size),
        }
        return cls(validate(AudioCodecModelConfig, found), model)

    @property
    def codebooks(self) -> Tensor:
        """What the codes of each level stand for, (levels, codes, width)."""
        quantizer = self.model.quantizer
        if self.kind == "dac":
            return torch.stack([level.codebook.weight for level in quantizer.quantizers]).detach()
        if self.kind == "encodec":
            return torch.stack([level.codebook.embed for level in quantizer.layers[: self.num_quantizers]]).detach()
        halves = (quantizer.semantic_residual_vector_quantizer, quantizer.acoustic_residual_vector_quantizer)
        return torch.stack([level.codebook.embed for half in halves for level in half.layers]).detach()

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """To another device or precision."""
        moved: Self = super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for module in self.modules():
            if getattr(module, "_embed", None) is not None:
                module._embed = None  # type: ignore[assignment]  # Mimi's copy of a codebook, which stays where it was
        return moved

    @torch.no_grad()
    def encode(self, waves: Tensor, lengths: Tensor | None = None, num_quantizers: int | None = None) -> Tensor:
        """Codes of the first `levels`, or of all; -1 in frames beyond the `lengths`, in samples, of the clips."""
        if waves.ndim != 2 or not waves.shape[1]:
            raise UsageError(f"the codec takes mono sound, (batch, samples), not the shape {tuple(waves.shape)}")
        sizes = [waves.shape[1]] * len(waves) if lengths is None else lengths.tolist()
        count = -(-waves.shape[1] // self.hop)
        codes = torch.full((len(waves), count, self.num_quantizers), -1, dtype=torch.int64, device=waves.device)
        for size, rows in _rows_by(sizes).items():
            made = self._codes(waves[rows, :size])
            codes[rows, : made.shape[1]] = made
        return codes[..., :num_quantizers]

    @torch.no_grad()
    def decode(self, codes: Tensor) -> Tensor:
        """Waves (batch, frames * hop) in [-1, 1] of codes of all levels or only the first; frames of -1 are silence."""
        counts = self._checked(codes)
        waves = torch.zeros(len(codes), codes.shape[1] * self.hop, device=codes.device)
        for count, rows in _rows_by(counts).items():
            if count:
                waves[rows, : count * self.hop] = self._waves(codes[rows, :count])
        return waves.clamp(-1, 1)

    def _codes(self, waves: Tensor) -> Tensor:
        """Of clips of one length, whole."""
        # DAC drops what is no whole frame; the others fill it up themselves.
        whole = F.pad(waves, (0, -waves.shape[1] % self.hop)) if self.kind == "dac" else waves
        sound = whole[:, None].to(next(self.model.parameters()).dtype)
        if self.kind == "encodec":
            codes: Tensor = self.model.encode(sound, bandwidth=max(self.model.config.target_bandwidths)).audio_codes[0]
        else:
            codes = self.model.encode(sound).audio_codes
        return codes.transpose(1, 2)

    def _waves(self, codes: Tensor) -> Tensor:
        """Of clips of one number of frames, as many samples as these have."""
        rows = codes.transpose(1, 2)
        if self.kind == "encodec":
            waves: Tensor = self.model.decode(rows[None], [None]).audio_values[:, 0]
        elif self.kind == "dac":
            waves = self.model.decode(audio_codes=rows).audio_values
        else:
            waves = self.model.decode(rows).audio_values[:, 0]
        samples = codes.shape[1] * self.hop
        # With an odd stride DAC makes a few samples less.
        return F.pad(waves, (0, max(0, samples - waves.shape[1])))[:, :samples].float()

    def _checked(self, codes: Tensor) -> list[int]:
        """How many frames each row has."""
        if codes.ndim != 3 or not codes.shape[1] or not 1 <= codes.shape[2] <= self.num_quantizers:
            raise UsageError(
                f"the codec takes codes (batch, frames, levels) of at most {self.num_quantizers} levels, "
                f"not the shape {tuple(codes.shape)}"
            )
        present = (codes >= 0).all(-1)
        counts = present.sum(1)
        leading = torch.arange(codes.shape[1], device=codes.device) < counts[:, None]
        if not torch.equal(leading, (codes >= 0).any(-1)) or int(codes.max()) >= self.num_codes:
            raise UsageError(
                f"the codec takes codes from 0 to {self.num_codes - 1}, and -1 in all levels of the frames behind a "
                "clip's end"
            )
        return [int(count) for count in counts]


def _rows_by(sizes: Iterable[int]) -> dict[int, list[int]]:
    """The rows of each size."""
    rows: dict[int, list[int]] = defaultdict(list)
    for row, size in enumerate(sizes):
        rows[size].append(row)
    return rows


def _settings_text(folder: Path) -> str:
    """The codec's own configuration, in one order."""
    settings = checkpoint.read_json(folder, "config")
    return json.dumps({name: value for name, value in settings.items() if name not in FOLDERS_OWN}, sort_keys=True)


def _untrained(settings: dict[str, Any]) -> nn.Module:
    """The module for weights that are read from elsewhere."""
    library = load_transformers(WHAT)
    with loading(Path("model.transformers_config"), WHAT):
        model: nn.Module = library.AutoModel.from_config(library.AutoConfig.for_model(**settings))
        return model


def _hop(settings: Any) -> int:
    """Samples of a frame. What the configurations call their rate of frames is rounded."""
    if settings.model_type == "mimi":
        samples: float = settings.sampling_rate / settings.frame_rate
        return round(samples)
    ratios = settings.upsampling_ratios if settings.model_type == "encodec" else settings.downsampling_ratios
    return int(math.prod(ratios))


def _levels(model: Any) -> int:
    settings = model.config
    if settings.model_type == "encodec":
        most = max(settings.target_bandwidths)
        return min(len(model.quantizer.layers), int(model.quantizer.get_num_quantizers_for_bandwidth(most)))
    return int(settings.n_codebooks if settings.model_type == "dac" else settings.num_quantizers)


def _refuse_unfit(folder: Path) -> None:
    """Before anything is loaded. EnCodec of 48 kHz needs two channels, and each second's loudness beside its codes."""
    with loading(folder, WHAT):
        settings = load_transformers(WHAT).AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    if settings.model_type not in AudioCodecConfig.TRANSFORMERS:
        known = ", ".join(AudioCodecConfig.TRANSFORMERS)
        raise UsageError(f"{folder} holds a model of type {settings.model_type}, not a {WHAT} ({known})")
    channels = getattr(settings, "audio_channels", 1)
    kept_beside = [name for name in ("normalize", "chunk_length_s") if getattr(settings, name, None)]
    if channels != 1 or kept_beside:
        why = f"of {channels} channels" if channels != 1 else f"that keeps more than codes ({', '.join(kept_beside)})"
        raise UsageError(f"{folder} is a codec {why}; quintet needs one like EnCodec of 24 kHz, DAC or Mimi")
