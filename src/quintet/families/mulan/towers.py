"""The two towers of MuLaN.

`AudioSpectrogramTransformer` (AST, 2104.01778) is a transformer over patches of log-mel spectrograms. `TextTransformer`
is a transformer over bytes, tokens, or the hidden states of a frozen text encoder. Patches behind the end of a clip are
masked, so that a clip has the same embedding alone and in a batch with longer clips.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from quintet.common.caches import default_folder
from quintet.common.precision import as_float64
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
"""Token ids (batch, length), or hidden states (batch, length, dim) of a frozen encoder; and their valid mask."""


class SpecAugmentNoise(NamedTuple):
    """Random numbers in [0, 1) of the augmentation of a training batch."""

    masks: Tensor
    """(batch, 4), of the SpecAugment masks."""
    patches: Tensor | None
    """(batch, rows, columns), of the dropout of the patches of a window of `max_seconds`; None: no dropout."""

    @classmethod
    def sampled(cls, config: AudioTowerConfig, rng: ItemRNG) -> SpecAugmentNoise:
        """The random numbers of a batch; those of a clip do not depend on the other clips."""
        return cls(mask_noise(rng), rng.uniform("patches", *config.grid) if config.patch_dropout else None)

    def to(self, device: torch.device) -> SpecAugmentNoise:
        return SpecAugmentNoise(self.masks.to(device), None if self.patches is None else self.patches.to(device))


@dataclass(frozen=True)
class TokenIds:
    """Texts to the token ids that a text tower embeds. It has no weights, so that data workers can receive it."""

    tokenizer: TokenizerFolder | None
    """None: the tokens are UTF-8 bytes."""
    max_length: int
    vocab_size: int

    def encode(self, texts: Sequence[str]) -> tuple[Tensor, Tensor, Tensor]:
        """Token ids and valid mask, both (batch, length), and which texts (batch,) were truncated."""
        if self.tokenizer is not None:
            return self.tokenizer.encode(texts, self.max_length)
        return encode_bytes(texts, self.max_length)

    def pad(self, rows: Sequence[Tensor]) -> Prepared:
        """Token ids and valid mask of texts that are given as unpadded token ids."""
        truncated = [row[: self.max_length] for row in rows]
        largest = max((int(row.max()) for row in truncated if len(row)), default=0)
        if largest >= self.vocab_size or any(int(row.min()) < 0 for row in truncated if len(row)):
            raise UsageError(
                f"token ids must be between 0 and {self.vocab_size - 1} (model.text.vocab_size); "
                f"the largest is {largest}"
            )
        width = padded_length(max((len(row) for row in truncated), default=1) or 1, self.max_length)
        ids = torch.stack([F.pad(row, (0, width - len(row))) for row in truncated])
        return ids, torch.arange(width) < torch.tensor([len(row) for row in truncated])[:, None]


class AudioSpectrogramTransformer(nn.Module):
    """Waveforms (batch, samples) to vectors (batch, dim). Keyword arguments are the keys of `model.audio`."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, config: AudioTowerConfig | None = None, **keywords: Any) -> None:
        super().__init__()
        self.config = config = config or validate(AudioTowerConfig, keywords)
        self.log_mel = LogMel(
            config.sample_rate, n_fft=config.n_fft, hop_length=config.hop_length, n_mels=config.n_mels
        )
        # Spectrograms are normalised to zero mean and unit deviation; set from the data when training starts.
        self.register_buffer("mean", torch.tensor(-6.0))
        self.register_buffer("deviation", torch.tensor(4.0))
        self.project = nn.Linear(config.patch_size**2, config.dim)
        self.transformer = _transformer(
            config,
            # The frequency of a patch matters, so absolute positions are learned; rotary embeddings add distances.
            positions=LearnedPositions(config.grid, config.dim),
            rotary=Rotary(config.grid, config.head_dim),
        )

    def forward(
        self, waves: Tensor, lengths: Tensor, noise: SpecAugmentNoise | None = None, after: Sequence[int] = ()
    ) -> Tensor:
        """Mean-pooled vectors (batch, states, dim): after each of the blocks `after`, and after the last norm.

        `lengths` (batch,) are in samples; `noise` turns on the augmentation.
        """
        frames = self.log_mel.frames(lengths)
        spectrogram = self._normalised(waves, frames)
        if noise is not None:
            spectrogram = spec_augment(spectrogram, frames, noise.masks, self.config)
        patches = self._patches(spectrogram)
        columns = patches.shape[1] // self.config.grid[0]
        valid_mask = self._valid_patches(frames, columns)
        positions = self._positions(columns, patches.device).expand(len(patches), -1)
        if noise is not None and noise.patches is not None and self.config.patch_dropout:
            patch_noise = noise.patches[:, :, :columns].flatten(1)
            retained, valid_mask = drop_patches(valid_mask, patch_noise, self.config.patch_dropout)
            patches, positions = patches.take_along_dim(retained[..., None], dim=1), positions.gather(1, retained)
        vectors = self.project(patches.to(self.project.weight.dtype))
        return pooled_states(self.transformer, vectors, valid_mask, after, positions)

    def hidden_states(self, waves: Tensor, lengths: Tensor, layer: int) -> Tensor:
        """Hidden states (batch, columns, dim) after a block, counted from 1: means over the patches of a column."""
        frames = self.log_mel.frames(lengths)
        patches = self._patches(self._normalised(waves, frames))
        columns = patches.shape[1] // self.config.grid[0]
        positions = self._positions(columns, patches.device).expand(len(patches), -1)
        blocks = self.transformer.hidden(
            self.project(patches), self._valid_patches(frames, columns), position_ids=positions
        )
        state = next(islice(blocks, layer - 1, None))
        return rearrange(state, "b (rows columns) d -> b columns rows d", columns=columns).mean(2)

    @torch.no_grad()
    def moments(self, waves: Tensor, lengths: Tensor) -> Tensor:
        """Sum, sum of squares and count (3,) of the values of the valid spectrogram frames."""
        frames = self.log_mel.frames(lengths)
        values = as_float64(self.log_mel(waves))
        valid_mask = (torch.arange(values.shape[-1], device=values.device) < frames.to(values.device)[:, None])[:, None]
        valid = values[valid_mask.expand_as(values)]
        return torch.stack([valid.sum(), valid.square().sum(), valid.new_tensor(float(len(valid)))])

    @torch.no_grad()
    def set_normalisation(self, moments: Tensor) -> None:
        """Normalise spectrograms by the mean and deviation of these `moments` from now on."""
        mean = moments[0] / moments[2]
        deviation = (moments[1] / moments[2] - mean.square()).clamp(min=0).sqrt()
        self.mean.copy_(mean)
        self.deviation.copy_(deviation.clamp(min=1e-3))

    def _normalised(self, waves: Tensor, frames: Tensor) -> Tensor:
        """Normalised spectrograms (batch, bins, frames), zero behind the end of a clip."""
        values: Tensor = (self.log_mel(waves) - self.mean) / self.deviation
        beyond = torch.arange(values.shape[-1], device=values.device) >= frames[:, None]
        return values.masked_fill(beyond[:, None], 0)

    def _columns(self, frames: int) -> int:
        columns = -(-frames // self.config.patch_size)
        if columns > self.config.grid[1]:
            seconds = (frames - 1) * self.config.hop_length / self.config.sample_rate
            raise UsageError(
                f"a clip of {seconds:.2f} s is longer than model.audio.max_seconds={self.config.max_seconds}"
            )
        return columns

    def _patches(self, spectrogram: Tensor) -> Tensor:
        """Patches (batch, rows * columns, side * side), padded to whole columns."""
        side = self.config.patch_size
        columns = self._columns(spectrogram.shape[-1])
        padded = F.pad(spectrogram, (0, columns * side - spectrogram.shape[-1]))
        return rearrange(padded, "b (rows p) (columns q) -> b (rows columns) (p q)", p=side, q=side)

    def _valid_patches(self, frames: Tensor, columns: int) -> Tensor:
        """Mask (batch, patches) of the patches within each clip."""
        starts = torch.arange(columns, device=frames.device) * self.config.patch_size
        return (starts < frames[:, None]).repeat(1, self.config.grid[0])

    def _positions(self, columns: int, device: torch.device) -> Tensor:
        """Positions (patches,) of the patches on the grid of a window of `max_seconds`."""
        rows, max_columns = self.config.grid
        return (
            torch.arange(rows, device=device)[:, None] * max_columns + torch.arange(columns, device=device)
        ).flatten()


class TextTransformer(nn.Module):
    """Texts to vectors (batch, dim). Keyword arguments are the keys of `model.text`."""

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
            self.embedding = nn.Embedding(config.vocab_size or self._default_vocab_size(), config.dim)
            nn.init.normal_(self.embedding.weight, std=EMBEDDING_SCALE)
        self.transformer = _transformer(config, positions=Rotary((config.max_length,), config.head_dim))

    def prepare(self, texts: Sequence[str]) -> Prepared:
        """The inputs of `forward`, on the CPU; texts longer than `max_length` are truncated."""
        if self.frozen is not None:
            return self.frozen.embed(texts)
        ids, mask, _ = self.token_ids.encode(texts)
        return ids, mask

    @property
    def token_ids(self) -> TokenIds:
        """Prepares texts for this tower, unless a frozen encoder does."""
        if self.frozen is not None:
            raise UsageError(f"model.text.encoder={self.config.encoder} takes texts, not token ids")
        return TokenIds(self.tokenizer, self.config.max_length, self.embedding.num_embeddings)

    def too_long(self, texts: Sequence[str]) -> list[str]:
        """The texts that `prepare` truncates; a frozen encoder reports truncation itself."""
        if self.frozen is not None:
            return []
        truncated = self.token_ids.encode(texts)[2].tolist()
        return [text for text, is_truncated in zip(texts, truncated, strict=True) if is_truncated]

    def prepare_ids(self, rows: Sequence[Tensor]) -> Prepared:
        """The inputs of `forward` for texts that are given as unpadded token ids."""
        return self.token_ids.pad(rows)

    def forward(self, text: Tensor, mask: Tensor, after: Sequence[int] = ()) -> Tensor:
        """Mean-pooled vectors (batch, states, dim): after each of the blocks `after`, and after the last norm."""
        if self.frozen is None:
            x = self.embedding(text)
        else:
            # Frozen encoders differ in the scale of their outputs; layer norm removes it.
            x = self.project(F.layer_norm(text.to(self.project.weight.dtype), (self.frozen.dim,)))
        return pooled_states(self.transformer, x, mask, after)

    def _default_vocab_size(self) -> int:
        return NUM_SYMBOLS if self.tokenizer is None else self.tokenizer.vocabulary


def _transformer(config: TowerConfig, **positions: Any) -> Transformer:
    shape = (config.dim, config.depth, config.heads, config.head_dim)
    return Transformer(*shape, ff_mult=config.ff_mult, dropout=config.dropout, **positions)


def pooled_states(
    transformer: Transformer, x: Tensor, mask: Tensor, after: Sequence[int] = (), positions: Tensor | None = None
) -> Tensor:
    """Means over the valid positions of x (batch, positions, dim), after these blocks and at the end.

    Returns (batch, states, dim).
    """
    states = []
    for number, state in enumerate(transformer.hidden(x, mask, position_ids=positions)):
        last = state
        if number in after:
            states.append(_mean(state, mask))
    return torch.stack([*states, _mean(transformer.norm(last), mask)], dim=1)


def _mean(x: Tensor, mask: Tensor) -> Tensor:
    masked = x.masked_fill(~mask[..., None], 0)
    return masked.sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
