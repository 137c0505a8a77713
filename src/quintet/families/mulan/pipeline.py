"""`MuLaNPipeline`: embeds clips and texts into one space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quintet.common.batch import Batch, Collate
from quintet.common.inference import inference_mode
from quintet.common.logging import say
from quintet.common.rng import ItemRNG
from quintet.config.text import PRETRAINED
from quintet.data.audio import mean_over_windows, pad_windows
from quintet.data.splits import Splits
from quintet.errors import UsageError
from quintet.families.mulan.config import TOKENS, MuLaNConfig
from quintet.families.mulan.data import clip_windows, mulan_splits
from quintet.families.mulan.features import MuLaNFeatures
from quintet.families.mulan.model import MuLaN, MuLaNEmbedQuantizer
from quintet.nn.pretrained_audio import FrozenAudio
from quintet.nn.text import TokenizerFolder
from quintet.pipelines.audio_features import AudioFeatureExtractor
from quintet.pipelines.base import Embedder, Frozen

TEXTS_AT_ONCE = 64


class MuLaNPipeline(Embedder[MuLaNConfig]):
    """A joint embedding of audio and text.

        mulan = MuLaNPipeline.from_pretrained("runs/mulan")
        scores = mulan.embed_audio(waves, rate=44_100) @ mulan.embed_texts(["slow drums"]).T

    It computes in the precision of its weights, or under the autocast of its caller: `inference()`, or a generator that
    is conditioned on its embeddings.
    """

    recipe = "mulan"
    exported = "mulan"
    auxiliary_modules = ("quantizer",)

    @classmethod
    def build_modules(
        cls,
        config: MuLaNConfig,
        frozen: Frozen,
        existing: Mapping[str, nn.Module] | None = None,
    ) -> dict[str, nn.Module]:
        """The modules of a configuration; those that are not in `existing` are built."""
        modules, model = dict(existing or {}), config.model
        if "mulan" not in modules:
            modules["mulan"] = MuLaN(model)
        if model.num_quantizers and "quantizer" not in modules:
            modules["quantizer"] = MuLaNEmbedQuantizer(
                model.latent_dim, model.num_quantizers, model.codebook_size, positions=2 * config.train.batch_size
            )
        return modules

    @classmethod
    def fit(cls, config: MuLaNConfig, frozen: Frozen) -> MuLaNConfig:
        """The configuration with the resolved folder of the text encoder or tokenizer, and its vocabulary size."""
        config = _with_audio_keys(config.changed(_text_keys(config)))
        if config.data.seconds > config.model.audio.max_seconds:
            raise UsageError(
                f"data.seconds={config.data.seconds} is longer than "
                f"model.audio.max_seconds={config.model.audio.max_seconds}"
            )
        return super().fit(config, frozen)

    @property
    def mulan(self) -> MuLaN:
        mulan = self.modules["mulan"]
        assert isinstance(mulan, MuLaN)
        return mulan

    @property
    def quantizer(self) -> MuLaNEmbedQuantizer:
        """The residual quantizer of the embeddings; exists if `model.num_quantizers` is above 0."""
        quantizer = self.modules["quantizer"]
        assert isinstance(quantizer, MuLaNEmbedQuantizer)
        return quantizer

    @property
    def sample_rate(self) -> int:
        """Sampling rate of the model, in Hz; clips of another rate are resampled."""
        return self.mulan.sample_rate

    def embed_audio(self, waves: Sequence[Tensor], rate: int) -> Tensor:
        """Unit embeddings (clips, latent_dim) of mono clips (samples,) of any length, at the sampling rate `rate`."""
        _check_clips(waves, rate)
        items = [clip_windows(wave, rate, self.config) for wave in waves]
        count = len(items)
        batch = Batch(pad_windows(items), ("",) * count, ItemRNG(0, [0] * count, range(count)))
        with inference_mode(self.modules):
            return self.embed_batch(batch.to(self.device, self.mulan.log_scale.dtype))

    def embed_texts(self, texts: str | Sequence[str]) -> Tensor:
        """Unit embeddings (texts, latent_dim) of texts."""
        texts = [texts] if isinstance(texts, str) else texts
        if not texts or not all(isinstance(text, str) for text in texts):
            raise UsageError("embed_texts expects a text or a list of texts")
        if long := self.mulan.text.too_long(texts):
            say(f"warning: text truncated to model.text.max_length={self.config.model.text.max_length}: {long[0]!r}")
        parts = [texts[start : start + TEXTS_AT_ONCE] for start in range(0, len(texts), TEXTS_AT_ONCE)]
        with inference_mode(self.modules):
            return torch.cat([self.mulan.embed_texts(part) for part in parts])

    def embed_batch(self, batch: Batch) -> Tensor:
        """Unit embeddings (batch, latent_dim) of clips; for a long clip the mean over its windows."""
        windows = self.mulan.embed_audio(batch["wavs"], batch["lengths"])
        return F.normalize(mean_over_windows(windows, batch["owners"], len(batch)), dim=-1)

    def audio_features(self) -> AudioFeatureExtractor:
        """Hidden states of the audio tower, for semantic tokens."""
        if self.config.model.audio.is_frozen:
            folder = self.config.model.audio.encoder.removeprefix(PRETRAINED)
            raise UsageError(f"the audio tower of this mulan is frozen: use {folder} itself instead")
        return MuLaNFeatures(self.mulan, self.config)

    def splits(self) -> Splits:
        return mulan_splits(self.config, self.mulan.text)

    @property
    def collate(self) -> Collate:
        return pad_windows


def _check_clips(waves: Sequence[Tensor], rate: int) -> None:
    if not len(waves):
        raise UsageError("embed_audio expects at least one clip")
    if isinstance(rate, bool) or not isinstance(rate, int) or rate < 1:
        raise UsageError(f"the sampling rate must be a positive integer in Hz, not {rate}")
    for number, wave in enumerate(waves):
        if not isinstance(wave, Tensor) or wave.ndim != 1 or not len(wave) or not wave.is_floating_point():
            found = f"{wave.dtype} of shape {tuple(wave.shape)}" if isinstance(wave, Tensor) else type(wave).__name__
            raise UsageError(
                f"embed_audio expects mono clips, floating-point tensors of shape (samples,), but clip {number} is "
                f"{found.removeprefix('torch.')}"
            )


def _with_audio_keys(config: MuLaNConfig) -> MuLaNConfig:
    """The configuration with folder, hash and sampling rate of a frozen audio encoder."""
    if not config.model.audio.is_frozen:
        return config
    encoder = FrozenAudio(config.model.audio.encoder.removeprefix(PRETRAINED))
    config = config.adopt(f"the audio encoder {encoder.folder}", {"model.audio.encoder_hash": encoder.digest})
    found = {"model.audio.encoder": f"{PRETRAINED}{encoder.folder.resolve()}"}
    return config.changed({**found, "model.audio.sample_rate": encoder.sample_rate})


def _text_keys(config: MuLaNConfig) -> dict[str, Any]:
    """Keys that follow from the files of a tokenizer or frozen text encoder: its folder and vocabulary size."""
    encoder = config.model.text.encoder
    found: dict[str, Any] = {}
    for kind in (TOKENS, PRETRAINED):
        folder = Path(encoder.removeprefix(kind)).expanduser()
        if encoder.startswith(kind) and folder.is_dir():
            found["model.text.encoder"] = f"{kind}{folder.resolve()}"
    if encoder.startswith(TOKENS) and config.model.text.vocab_size is None:
        found["model.text.vocab_size"] = TokenizerFolder(encoder.removeprefix(TOKENS)).vocabulary
    return found
