"""The two towers of MuLaN. `AudioSpectrogramTransformer`: waves to log-mel spectrograms, to patches, through a
transformer (AST, 2104.01778). `TextTransformer`: bytes, tokens, or the vectors of a frozen text encoder, through one.

Patches beyond the end of a clip are masked, so that a clip means the same alone and beside longer ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from quintet.common.caches import default_folder
from quintet.common.rng import ItemRNG
from quintet.config import validate
from quintet.config.text import PRETRAINED
from quintet.errors import UsageError
from quintet.families.mulan.augment import drop_patches, mask_noise, spec_augment
from quintet.families.mulan.config import TOKENS, AudioTowerConfig, TextTowerConfig, TowerConfig
from quintet.media.mel import LogMel
from quintet.nn.positions import EMBEDDING_SCALE, LearnedPositions, Rotary
from quintet.nn.pretrained_text import PretrainedText
from quintet.nn.text import NUM_SYMBOLS, TokenizerFolder, encode_bytes, padded_length
from quintet.nn.transformer import Transformer

Prepared = tuple[Tensor, Tensor]
"""Symbols `(batch, length)`, or a frozen encoder's vectors with a width behind; and which of them are there."""


class SpecAugmentNoise(NamedTuple):
    """The random numbers by which parts of a batch are hidden in training."""

    masks: Tensor
    order: Tensor
    """Of the patches of the longest clip, `(batch, rows, columns)`."""

    def to(self, device: torch.device) -> SpecAugmentNoise:
        return SpecAugmentNoise(*(numbers.to(device) for numbers in self))


class AudioSpectrogramTransformer(nn.Module):
    """Waves `(batch, samples)` to vectors `(batch, dim)`. Keyword arguments are the keys of `model.audio`."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, config: AudioTowerConfig | None = None, **keywords: Any) -> None:
        super().__init__()
        self.config = config = config or validate(AudioTowerConfig, keywords)
        self.log_mel = LogMel(config.sample_rate, n_fft=config.n_fft, hop=config.hop_length, mels=config.n_mels)
        # What a spectrogram is brought to zero and one by; set from the data when training begins.
        self.register_buffer("mean", torch.tensor(-6.0))
        self.register_buffer("deviation", torch.tensor(4.0))
        self.project = nn.Linear(config.patch_size**2, config.dim)
        self.transformer = _transformer(
            config,
            # Which tone a patch is of is what counts, so places are told; distances come by turning.
            positions=LearnedPositions(config.grid, config.dim),
            rotary=Rotary(config.grid, config.head_dim),
        )

    def forward(
        self, waves: Tensor, lengths: Tensor, augment_noise: SpecAugmentNoise | None = None, after: Sequence[int] = ()
    ) -> Tensor:
        """One vector a clip for each of the blocks `after` and the last norm, `(batch, states, dim)`.

        Of each row so many samples are sound.
        """
        frames = self.log_mel.frames(lengths)
        spectrogram = self._normalised(waves, frames)
        if augment_noise is not None:
            spectrogram = spec_augment(spectrogram, frames, augment_noise.masks, self.config)
        patches = self._patches(spectrogram)
        columns = patches.shape[1] // self.config.grid[0]
        present = self._present(frames, columns)
        places = self._places(columns, patches.device).expand(len(patches), -1)
        if augment_noise is not None and self.config.patch_dropout:
            order = augment_noise.order[:, :, :columns].flatten(1)
            kept, present = drop_patches(present, order, self.config.patch_dropout)
            patches, places = patches.take_along_dim(kept[..., None], dim=1), places.gather(1, kept)
        vectors = self.project(patches.to(self.project.weight.dtype))
        return pooled_states(self.transformer, vectors, present, after, places)

    def states(self, waves: Tensor, lengths: Tensor, layer: int) -> Tensor:
        """Vectors of the columns of patches behind a block, of which 1 is the first, `(batch, columns, dim)`: each the
        mean over its bands."""
        frames = self.log_mel.frames(lengths)
        patches = self._patches(self._normalised(waves, frames))
        columns = patches.shape[1] // self.config.grid[0]
        places = self._places(columns, patches.device).expand(len(patches), -1)
        blocks = self.transformer.hidden(self.project(patches), self._present(frames, columns), places=places)
        state = next(islice(blocks, layer - 1, None))
        return rearrange(state, "b (rows columns) d -> b columns rows d", columns=columns).mean(2)

    def augment_noise(self, rng: ItemRNG) -> SpecAugmentNoise:
        """What `forward` hides of a batch. It does not depend on how long the other clips of the batch are."""
        return SpecAugmentNoise(mask_noise(rng), rng.uniform("patches", *self.config.grid))

    @torch.no_grad()
    def level(self, waves: Tensor, lengths: Tensor) -> Tensor:
        """Sum, sum of squares and number of the spectrogram's values where there is sound."""
        frames = self.log_mel.frames(lengths)
        values = self.log_mel(waves).double()
        there = (torch.arange(values.shape[-1], device=values.device) < frames[:, None])[:, None].expand_as(values)
        chosen = values[there]
        return torch.stack([chosen.sum(), chosen.square().sum(), chosen.new_tensor(float(len(chosen)))])

    @torch.no_grad()
    def adjust(self, level: Tensor) -> None:
        """Bring spectrograms of this level to zero and one from now on."""
        mean = level[0] / level[2]
        deviation = (level[1] / level[2] - mean.square()).clamp(min=0).sqrt()
        self.mean.copy_(mean)
        self.deviation.copy_(deviation.clamp(min=1e-3))

    def _normalised(self, waves: Tensor, frames: Tensor) -> Tensor:
        """Spectrograms in which all beyond the end of a clip is zero, as what is hidden is."""
        values: Tensor = (self.log_mel(waves) - self.mean) / self.deviation
        beyond = torch.arange(values.shape[-1], device=values.device) >= frames[:, None]
        return values.masked_fill(beyond[:, None], 0)

    def _columns(self, frames: int) -> int:
        columns, most = -(-frames // self.config.patch_size), self.config.grid[1]
        if columns > most:
            seconds = (frames - 1) * self.config.hop_length / self.config.sample_rate
            raise UsageError(
                f"a clip of {seconds:.2f} s is longer than model.audio.max_seconds={self.config.max_seconds}"
            )
        return columns

    def _patches(self, spectrogram: Tensor) -> Tensor:
        """`(batch, rows * columns, side * side)`"""
        side = self.config.patch_size
        columns = self._columns(spectrogram.shape[-1])
        whole = F.pad(spectrogram, (0, columns * side - spectrogram.shape[-1]))
        return rearrange(whole, "b (rows p) (columns q) -> b (rows columns) (p q)", p=side, q=side)

    def _present(self, frames: Tensor, columns: int) -> Tensor:
        """Which patches hold sound, `(batch, patches)`."""
        starts = torch.arange(columns, device=frames.device) * self.config.patch_size
        return (starts < frames[:, None]).repeat(1, self.config.grid[0])

    def _places(self, columns: int, device: torch.device) -> Tensor:
        """The numbers of the patches on the grid of the longest clip."""
        rows, most = self.config.grid
        return (torch.arange(rows, device=device)[:, None] * most + torch.arange(columns, device=device)).flatten()


class TextTransformer(nn.Module):
    """Texts to vectors `(batch, dim)`. Keyword arguments are the keys of `model.text`."""

    def __init__(self, config: TextTowerConfig | None = None, **keywords: Any) -> None:
        super().__init__()
        self.config = config = config or validate(TextTowerConfig, keywords)
        self.tokenizer: TokenizerFolder | None = None
        self.frozen: PretrainedText | None = None
        if config.encoder.startswith(PRETRAINED):
            self.frozen = PretrainedText(config.encoder, default_folder(), config.max_length)
            self.project = nn.Linear(self.frozen.dim, config.dim)
        else:
            if config.encoder.startswith(TOKENS):
                self.tokenizer = TokenizerFolder(config.encoder.removeprefix(TOKENS))
            self.embedding = nn.Embedding(config.vocab_size or self._own_vocabulary(), config.dim)
            nn.init.normal_(self.embedding.weight, std=EMBEDDING_SCALE)
        self.transformer = _transformer(config, positions=Rotary((config.max_length,), config.head_dim))

    def prepare(self, texts: Sequence[str]) -> Prepared:
        """What `forward` takes, on the CPU. What is too long is cut at its end."""
        if self.frozen is not None:
            return self.frozen.embed(texts)
        ids, mask, _ = self._encode(texts)
        return ids, mask

    def too_long(self, texts: Sequence[str]) -> list[str]:
        """Those that `prepare` cuts; a frozen encoder tells of its own cuts."""
        if self.frozen is not None:
            return []
        cut = self._encode(texts)[2].tolist()
        return [text for text, shorter in zip(texts, cut, strict=True) if shorter]

    def prepare_ids(self, rows: Sequence[Tensor]) -> Prepared:
        """The same of texts that come as ids of the vocabulary, without padding."""
        if self.frozen is not None:
            raise UsageError(f"model.text.encoder={self.config.encoder} reads texts, not ids")
        kept = [row[: self.config.max_length] for row in rows]
        largest = max((int(row.max()) for row in kept if len(row)), default=0)
        if largest >= self.embedding.num_embeddings or any(int(row.min()) < 0 for row in kept if len(row)):
            raise UsageError(
                f"ids of a text go from 0 to {self.embedding.num_embeddings - 1} (model.text.vocab_size), "
                f"and there is a {largest}"
            )
        width = padded_length(max((len(row) for row in kept), default=1) or 1, self.config.max_length)
        ids = torch.stack([F.pad(row, (0, width - len(row))) for row in kept])
        return ids, torch.arange(width) < torch.tensor([len(row) for row in kept])[:, None]

    def forward(self, text: Tensor, mask: Tensor, after: Sequence[int] = ()) -> Tensor:
        """One vector a text for each of the blocks `after` and the last norm, `(batch, states, dim)`."""
        if self.frozen is None:
            x = self.embedding(text)
        else:
            # Frozen encoders differ in the scale of what they make; the tower should not.
            x = self.project(F.layer_norm(text.to(self.project.weight.dtype), (self.frozen.dim,)))
        return pooled_states(self.transformer, x, mask, after)

    def _encode(self, texts: Sequence[str]) -> tuple[Tensor, Tensor, Tensor]:
        if self.tokenizer is not None:
            return self.tokenizer.encode(texts, self.config.max_length)
        return encode_bytes(texts, self.config.max_length)

    def _own_vocabulary(self) -> int:
        return NUM_SYMBOLS if self.tokenizer is None else self.tokenizer.vocabulary


def _transformer(config: TowerConfig, **positions: Any) -> Transformer:
    shape = (config.dim, config.depth, config.heads, config.head_dim)
    return Transformer(*shape, multiplier=config.ff_mult, dropout=config.dropout, **positions)


def pooled_states(
    transformer: Transformer, x: Tensor, mask: Tensor, after: Sequence[int] = (), places: Tensor | None = None
) -> Tensor:
    """The mean over the tokens that are there, after these blocks and at the end, `(batch, states, dim)`."""
    states = []
    for number, state in enumerate(transformer.hidden(x, mask, places=places)):
        last = state
        if number in after:
            states.append(_mean(state, mask))
    return torch.stack([*states, _mean(transformer.norm(last), mask)], dim=1)


def _mean(x: Tensor, mask: Tensor) -> Tensor:
    there = x.masked_fill(~mask[..., None], 0)
    return there.sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
