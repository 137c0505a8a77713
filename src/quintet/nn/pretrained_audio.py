"""Hidden states of audio encoders of `transformers` (HuBERT, wav2vec 2.0, WavLM, w2v-BERT 2.0), and CLAP embeddings.

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

from quintet.errors import UsageError
from quintet.nn.transformers_folder import digest, find_folder, load_model, load_part, load_transformers

WHAT = "speech model"
WAVEFORM_TYPES = ("hubert", "wav2vec2", "wavlm", "data2vec-audio", "unispeech", "unispeech-sat")
"""Model types whose input is the waveform, through convolutions without padding."""
FILTERBANK_TYPES = ("wav2vec2-bert",)
"""Model types whose input are filter bank features, one frame every 10 ms."""
CLAP = "clap"
"""Model type with one embedding per clip of some seconds."""
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


class FrozenAudio:
    """The last hidden states of an audio encoder in a local folder, or the embeddings of a CLAP. Not a module.

    The weights are read when the first clip is encoded. The encoder runs in fp32 on the device of the clip.
    """

    def __init__(self, reference: str) -> None:
        self.folder = find_folder(reference, "model.audio.encoder")
        self.config: Any = load_part(self.folder, WHAT, "AutoConfig")
        kind = self.config.model_type
        if kind != CLAP and not is_audio_encoder(kind):
            known = ", ".join((CLAP, *WAVEFORM_TYPES, *FILTERBANK_TYPES))
            raise UsageError(
                f"model.audio.encoder: {self.folder} holds a model of type {kind}, which is none of {known}"
            )
        self.is_clap = kind == CLAP
        self.dim = int(self.config.projection_dim if self.is_clap else self.config.hidden_size)

    def __deepcopy__(self, memo: dict[int, Any]) -> FrozenAudio:
        """Returns itself: it never changes, so the EMA copy of a model can share it."""
        return self

    @cached_property
    def digest(self) -> str:
        return digest(self.folder)

    @cached_property
    def sample_rate(self) -> int:
        """Sampling rate of its input, in Hz."""
        if not self.is_clap and not (self.folder / "preprocessor_config.json").is_file():
            return 16_000
        return int(load_part(self.folder, WHAT, "AutoFeatureExtractor").sampling_rate)

    @torch.no_grad()
    def states(self, wave: Tensor) -> Tensor:
        """Hidden states (steps, dim) in fp32 of a clip (samples,), on its device."""
        with torch.autocast(wave.device.type, enabled=False):
            if self.is_clap:
                return self._clap_embeddings(wave)
            speech = self._speech
            if speech.device != wave.device:
                speech.device = wave.device
                speech.model.to(wave.device)
            return speech.hidden_states(wave, speech.depth).float()

    @cached_property
    def _speech(self) -> PretrainedAudioEncoder:
        return PretrainedAudioEncoder(self.folder)

    @cached_property
    def _clap(self) -> tuple[Any, Any]:
        return load_model(self.folder, WHAT), load_part(self.folder, WHAT, "AutoFeatureExtractor")

    def _clap_embeddings(self, wave: Tensor) -> Tensor:
        """One embedding (parts, dim) for each part of a clip that is as long as the model takes."""
        model, preprocessor = self._clap
        model.to(wave.device)
        # Longer clips would be cropped at random.
        parts = torch.split(wave.float().cpu(), int(preprocessor.nb_max_samples))
        prepared = preprocessor([part.numpy() for part in parts], sampling_rate=self.sample_rate, return_tensors="pt")
        features = prepared["input_features"].to(wave.device)
        is_longer = torch.zeros(len(parts), 1, dtype=torch.bool, device=wave.device)
        pooled = model.audio_model(input_features=features, is_longer=is_longer).pooler_output
        embeddings: Tensor = model.audio_projection(pooled)
        return embeddings.float()
