"""Owns models of `transformers` that hear speech and sound (HuBERT, wav2vec 2.0, WavLM, w2v-BERT 2.0), layer by layer.

From a local folder, frozen. A clip is prepared as the folder's own preprocessor has it. One of more than half a minute
is heard in equal parts, each on its own; their steps of time go on from one to the next without a gap.
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

WHAT = "model of speech"
OF_WAVES = ("hubert", "wav2vec2", "wavlm", "data2vec-audio", "unispeech", "unispeech-sat")
"""Types that hear the wave itself, through convolutions without padding."""
OF_FILTERBANKS = ("wav2vec2-bert",)
"""Types that hear energies of bands, every 10 ms."""
LONGEST = 30
"""Seconds that are heard at once: attention costs by their square."""
_WINDOW, _STEP = 400, 160
"""Samples of a window of a filter bank, and from one to the next."""
_ONLY_FOR_TRAINING = ("masked_spec_embed",)


def is_audio_encoder(model_type: str) -> bool:
    return model_type in (*OF_WAVES, *OF_FILTERBANKS)


class PretrainedAudioEncoder:
    """A `AudioFeatureExtractor`. Not a module: nothing of it is trained or saved."""

    loudness = None

    def __init__(self, folder: str | Path, device: torch.device | str = "cpu") -> None:
        self.folder = Path(folder)
        self.device = torch.device(device)
        self.model: Any = load_model(self.folder, WHAT, _ONLY_FOR_TRAINING).to(self.device)
        self.of_waves = self.model.config.model_type in OF_WAVES
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
        wave = F.pad(wave, (0, max(0, self._shortest - len(wave)))).float().cpu()
        prepared = self.preprocessor(wave.numpy(), sampling_rate=self.sample_rate, return_tensors="pt")
        parts = self._waves(prepared) if self.of_waves else self._filterbanks(prepared)
        heard = (self.model(part[None].to(self.device), output_hidden_states=True) for part in parts)
        return torch.cat([each.hidden_states[layer][0] for each in heard])

    def _waves(self, prepared: Any) -> Iterator[Tensor]:
        """Each part with as many samples behind its last step as this one hears; the last part to the end."""
        wave = prepared.input_values[0]
        steps = (len(wave) - self._heard) // self._hop + 1
        for start, stop in self._parts(steps):
            yield wave[start * self._hop : None if stop == steps else (stop - 1) * self._hop + self._heard]

    def _filterbanks(self, prepared: Any) -> Iterator[Tensor]:
        there = int(prepared.attention_mask[0].sum())
        for start, stop in self._parts(there):
            yield prepared.input_features[0, start:stop]

    def _parts(self, steps: int) -> Iterator[tuple[int, int]]:
        count = math.ceil(steps / (LONGEST * self.token_rate))
        edges = [steps * number // count for number in range(count + 1)]
        return pairwise(edges)

    @property
    def _hop(self) -> int:
        """Samples from one step to the next."""
        if self.of_waves:
            return math.prod(self.model.config.conv_stride)
        return _STEP * int(self.preprocessor.stride)

    @property
    def _heard(self) -> int:
        """Samples that the convolutions make one step of."""
        heard, stride = 1, 1
        for kernel, step in zip(self.model.config.conv_kernel, self.model.config.conv_stride, strict=True):
            heard += (kernel - 1) * stride
            stride *= step
        return heard

    @property
    def _shortest(self) -> int:
        """Samples of one step; shorter clips end in silence."""
        if self.of_waves:
            return self._heard
        return _WINDOW + self._hop

    def _preprocessor(self) -> Any:
        library = load_transformers(WHAT)
        if not (self.folder / "preprocessor_config.json").is_file():
            return library.Wav2Vec2FeatureExtractor() if self.of_waves else library.SeamlessM4TFeatureExtractor()
        return load_part(self.folder, WHAT, "AutoFeatureExtractor")
