"""`AudioSpectrogramTransformer`: waves to log-mel spectrograms, to patches, through a transformer (AST, 2104.01778).

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

from quintet.common.rng import ItemRNG
from quintet.config import validate
from quintet.errors import UsageError
from quintet.families.mulan.augment import draw_masks, hide, keep_patches
from quintet.families.mulan.config import AudioTowerConfig
from quintet.families.mulan.pooling import pooled_states
from quintet.media.mel import LogMel
from quintet.nn.positions import LearnedPositions, Rotary
from quintet.nn.transformer import Transformer


class Hiding(NamedTuple):
    """The random numbers by which parts of a batch are hidden in training."""

    masks: Tensor
    order: Tensor
    """Of the patches of the longest clip, `(batch, rows, columns)`."""

    def to(self, device: torch.device) -> Hiding:
        return Hiding(*(numbers.to(device) for numbers in self))


class AudioSpectrogramTransformer(nn.Module):
    """Waves `(batch, samples)` to vectors `(batch, dim)`. Keyword arguments are the keys of `model.audio`."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, config: AudioTowerConfig | None = None, **keywords: Any) -> None:
        super().__init__()
        self.config = config = config or validate(AudioTowerConfig, keywords)
        self.log_mel = LogMel(config.rate, n_fft=config.n_fft, hop=config.hop, mels=config.mels)
        # What a spectrogram is brought to zero and one by; set from the data when training begins.
        self.register_buffer("mean", torch.tensor(-6.0))
        self.register_buffer("deviation", torch.tensor(4.0))
        self.project = nn.Linear(config.patch**2, config.dim)
        self.transformer = Transformer(
            config.dim,
            config.depth,
            config.heads,
            config.head_dim,
            multiplier=config.multiplier,
            dropout=config.dropout,
            # Which tone a patch is of is what counts, so places are told; distances come by turning.
            positions=LearnedPositions(config.grid, config.dim),
            rotary=Rotary(config.grid, config.head_dim),
        )

    def forward(
        self, waves: Tensor, lengths: Tensor, hiding: Hiding | None = None, after: Sequence[int] = ()
    ) -> Tensor:
        """One vector a clip for each of the blocks `after` and the last norm, `(batch, states, dim)`.

        Of each row so many samples are sound.
        """
        frames = self.log_mel.frames(lengths)
        spectrogram = self._normalised(waves, frames)
        if hiding is not None:
            spectrogram = hide(spectrogram, frames, hiding.masks, self.config)
        patches = self._patches(spectrogram)
        columns = patches.shape[1] // self.config.grid[0]
        present = self._present(frames, columns)
        places = self._places(columns, patches.device).expand(len(patches), -1)
        if hiding is not None and self.config.patch_dropout:
            order = hiding.order[:, :, :columns].flatten(1)
            kept, present = keep_patches(present, order, self.config.patch_dropout)
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

    def hiding(self, draw: ItemRNG) -> Hiding:
        """What `forward` hides of a batch. It does not depend on how long the other clips of the batch are."""
        return Hiding(draw_masks(draw), draw.uniform("patches", *self.config.grid))

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
        columns, most = -(-frames // self.config.patch), self.config.grid[1]
        if columns > most:
            seconds = (frames - 1) * self.config.hop / self.config.rate
            raise UsageError(
                f"a clip of {seconds:.2f} s is longer than model.audio.max_seconds={self.config.max_seconds}"
            )
        return columns

    def _patches(self, spectrogram: Tensor) -> Tensor:
        """`(batch, rows * columns, side * side)`"""
        side = self.config.patch
        columns = self._columns(spectrogram.shape[-1])
        whole = F.pad(spectrogram, (0, columns * side - spectrogram.shape[-1]))
        return rearrange(whole, "b (rows p) (columns q) -> b (rows columns) (p q)", p=side, q=side)

    def _present(self, frames: Tensor, columns: int) -> Tensor:
        """Which patches hold sound, `(batch, patches)`."""
        starts = torch.arange(columns, device=frames.device) * self.config.patch
        return (starts < frames[:, None]).repeat(1, self.config.grid[0])

    def _places(self, columns: int, device: torch.device) -> Tensor:
        """The numbers of the patches on the grid of the longest clip."""
        rows, most = self.config.grid
        return (torch.arange(rows, device=device)[:, None] * most + torch.arange(columns, device=device)).flatten()
