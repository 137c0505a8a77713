"""Hidden states of audio encoders of `transformers` (HuBERT, wav2vec 2.0, WavLM, w2v-BERT 2.0).

Models are frozen and loaded from a local folder, with its preprocessor. A clip of more than 30 seconds is
encoded in parts of equal length, independently; their time steps are contiguous.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from quintet.nn.transformers_folder import digest, load_model, load_part, load_transformers

WHAT = "speech model"
WAVEFORM_TYPES = ("hubert", "wav2vec2", "wavlm", "data2vec-audio", "unispeech", "unispeech-sat")
"""Model types whose input is the waveform, through convolutions without padding."""
FILTERBANK_TYPES = ("wav2vec2-bert",)
"""Model types whose input are filter bank features, one frame every 10 ms."""
MAX_SECONDS = 30
"""Maximum length of one part, in seconds, because attention is quadratic in it."""
_WINDOW, _STEP = 400, 160
"""Window and hop length of the filter bank, in samples."""
_TRAINING_ONLY = ("masked_spec_embed",)


def is_audio_encoder(model_type: str) -> bool:
    return model_type in (*WAVEFORM_TYPES, *FILTERBANK_TYPES)


class PretrainedAudioEncoder:
    """An `AudioFeatureExtractor`. Not a module: it is neither trained nor saved."""

    loudness = None

    def __init__(self, folder: str | Path, device: torch.device | str = "cpu") -> None:
        self.folder = Path(folder)
        self.device = torch.device(device)
        self.model: Any = load_model(self.folder, WHAT, _TRAINING_ONLY).to(self.device)
        self.takes_waveform = self.model.config.model_type in WAVEFORM_TYPES
        self.preprocessor = self._preprocessor()

    @property
    def sample_rate(self) -> int:
        return int(self.preprocessor.sampling_rate)

    @property
    def token_rate(self) -> float:
        return self.sample_rate / self._hop

    @property
    def depth(self) -> int:
        return int(self.model.config.num_hidden_layers)

    @cached_property
    def digest(self) -> str:
        return digest(self.folder)

    @torch.no_grad()
    def hidden_states(self, wave: Tensor, layer: int) -> Tensor:
        wave = F.pad(wave, (0, max(0, self._min_samples - len(wave)))).float().cpu()
        prepared = self.preprocessor(wave.numpy(), sampling_rate=self.sample_rate, return_tensors="pt")
        parts = self._waves(prepared) if self.takes_waveform else self._filterbanks(prepared)
        outputs = (self.model(part[None].to(self.device), output_hidden_states=True) for part in parts)
        return torch.cat([each.hidden_states[layer][0] for each in outputs])

    def _waves(self, prepared: Any) -> Iterator[Tensor]:
        """Parts of the waveform, each with the receptive field of its last step; the last part extends to the end."""
        wave = prepared.input_values[0]
        steps = (len(wave) - self._receptive_field) // self._hop + 1
        for start, stop in self._parts(steps):
            yield wave[start * self._hop : None if stop == steps else (stop - 1) * self._hop + self._receptive_field]

    def _filterbanks(self, prepared: Any) -> Iterator[Tensor]:
        frames = int(prepared.attention_mask[0].sum())
        for start, stop in self._parts(frames):
            yield prepared.input_features[0, start:stop]

    def _parts(self, steps: int) -> Iterator[tuple[int, int]]:
        count = math.ceil(steps / (MAX_SECONDS * self.token_rate))
        edges = [steps * number // count for number in range(count + 1)]
        return pairwise(edges)

    @property
    def _hop(self) -> int:
        """Samples between two time steps."""
        if self.takes_waveform:
            return math.prod(self.model.config.conv_stride)
        return _STEP * int(self.preprocessor.stride)

    @property
    def _receptive_field(self) -> int:
        """Receptive field of one time step, in samples."""
        field, stride = 1, 1
        for kernel, step in zip(self.model.config.conv_kernel, self.model.config.conv_stride, strict=True):
            field += (kernel - 1) * stride
            stride *= step
        return field

    @property
    def _min_samples(self) -> int:
        """Samples of a clip of one time step; shorter clips are padded with silence."""
        if self.takes_waveform:
            return self._receptive_field
        return _WINDOW + self._hop

    def _preprocessor(self) -> Any:
        library = load_transformers(WHAT)
        if not (self.folder / "preprocessor_config.json").is_file():
            return library.Wav2Vec2FeatureExtractor() if self.takes_waveform else library.SeamlessM4TFeatureExtractor()
        return load_part(self.folder, WHAT, "AutoFeatureExtractor")
