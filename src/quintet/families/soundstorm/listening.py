"""Owns what SoundStorm is told by a MuLaN, and what that MuLaN thinks of sounds: vectors of clips and of texts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor

from quintet.common.batch import Batch, Item
from quintet.common.inference import inference_mode
from quintet.common.rng import ItemRNG
from quintet.config import AudioDataConfig
from quintet.data.audio import pad_windows
from quintet.data.tokenized import TokenEncoder
from quintet.errors import UsageError
from quintet.media.audio import resample, window_starts
from quintet.media.loudness import to_loudness
from quintet.pipelines.frozen import FrozenModel

TEXTS_AT_ONCE = 64


class Listener:
    """A frozen MuLaN. Sound comes to it as it was trained to hear it: at its rate, in its windows, as loud."""

    def __init__(self, link: FrozenModel, clip: str = "vector") -> None:
        config = link.recipe.config.data
        if not link.recipe.embeds or not hasattr(link.model, "rate") or not isinstance(config, AudioDataConfig):
            raise UsageError(
                f"--condition takes a run of mulan; {link.reference} is of recipe '{link.recipe.name}', which has no "
                "vectors of sounds and texts"
            )
        if clip == "quantized" and "quantizer" not in link.modules:
            raise UsageError(
                f"data.clip=quantized, but {link.reference} has no quantizer: train it with model.quantizer_levels, or "
                "use data.clip=vector"
            )
        self.link = link
        self.data: AudioDataConfig = config
        self.quantized = clip == "quantized"
        self.rate: int = link.model.rate
        self.dim: int = link.model.latent_dim

    def hear(self, waves: Sequence[Tensor], rate: int) -> Tensor:
        """Vectors (clips, dim), of length one, of clips (samples) at some rate."""
        items = [self._windows(wave, rate) for wave in waves]
        count = len(items)
        batch = Batch(pad_windows(items), ("",) * count, ItemRNG(0, [0] * count, range(count)))
        with inference_mode(self.link.modules):
            return self.link.recipe.embed(self.link.modules, batch.to(self._device, torch.float32)).float()

    def read(self, texts: Sequence[str]) -> Tensor:
        """Vectors (texts, dim), of length one."""
        parts = [texts[start : start + TEXTS_AT_ONCE] for start in range(0, len(texts), TEXTS_AT_ONCE)]
        with inference_mode(self.link.modules):
            return torch.cat([self.link.recipe.embed_texts(self.link.modules, part).float() for part in parts])

    def told(self, vectors: Tensor) -> Tensor:
        """What a generator is told instead of vectors (rows, dim): they themselves, or the nearest that codes have."""
        if not self.quantized:
            return vectors
        quantizer = self.link.modules["quantizer"]
        nearest: Tensor = quantizer.decode(quantizer.encode(vectors.float()))  # type: ignore[operator]
        return nearest.to(vectors.dtype)

    def maker(self, rate: int) -> TokenEncoder:
        """Makes the field `clip` of clips at some rate, to be kept."""

        def encode(batch: Batch) -> Tensor:
            waves = [wave[:length] for wave, length in zip(batch["wavs"], batch["lengths"].tolist(), strict=True)]
            return self.hear(waves, rate)

        heard = f"{self.data.seconds:g} s every {self.data.stride:g} s, {self.data.max_windows} at most"
        return TokenEncoder(f"{self.link.digest} {heard}, loudness {self.data.loudness}", pad_windows, encode, "clip")

    def _windows(self, wave: Tensor, rate: int) -> Item:
        samples = resample(wave.detach().float().cpu().numpy()[None], rate, self.rate)
        size, stride = (max(1, round(each * self.rate)) for each in (self.data.seconds, self.data.stride))
        starts = window_starts(samples.shape[1], size, stride, self.data.max_windows)
        windows = [samples[:, start : start + size] for start in starts]
        if self.data.loudness is not None:
            windows = [to_loudness(window, self.rate, self.data.loudness) for window in windows]
        wavs = torch.cat([torch.from_numpy(window) for window in windows])
        return {"wavs": wavs, "lengths": torch.full((len(wavs),), wavs.shape[1])}

    @property
    def _device(self) -> torch.device:
        device: torch.device = next(chain(self.link.model.parameters(), self.link.model.buffers())).device
        return device
