"""Owns `Muse`: texts to pictures, by a base model and, if there is one, a super-resolution model above it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quintet.common.rng import ItemRNG
from quintet.errors import UsageError
from quintet.nn.maskgit import MaskGit, TokenCritic
from quintet.sampling.guidance import encode_prompts
from quintet.sampling.masked import Sampling
from quintet.sampling.maskgit import fill

__all__ = ["Canvas", "MaskGit", "Muse", "Stage", "TokenCritic"]


@dataclass(frozen=True)
class Canvas:
    """A picture to draw on, (channels, height, width) in [0, 1], and where it is to be drawn anew, (height, width)."""

    picture: Tensor
    hole: Tensor

    def __post_init__(self) -> None:
        if self.picture.shape[-2:] != self.hole.shape:
            raise UsageError(
                f"the mask is {_size(self.hole)}, but the picture is {_size(self.picture)}; they must be of one size"
            )
        if not self.hole.any():
            raise UsageError("the mask marks nothing to draw anew: paint that part of it white")

    def scaled(self, size: tuple[int, int]) -> Canvas:
        """The same at another size. What the hole covered is filled evenly, so that it cannot be guessed from."""
        hole = self.hole.to(self.picture)
        known = (1 - hole).sum().clamp(min=1)
        even = (self.picture * (1 - hole)).sum((-2, -1), keepdim=True) / known
        filled = torch.where(self.hole, even, self.picture)
        if size == tuple(self.hole.shape):
            return Canvas(filled, self.hole)
        small = F.interpolate(filled[None], size, mode="bilinear", antialias=True)[0].clamp(0, 1)
        return Canvas(small, F.adaptive_max_pool2d(hole[None, None], size)[0, 0] > 0)

    def kept(self, drawn: Tensor) -> Tensor:
        """The drawn pictures in the hole, the given one around it, as it was."""
        return torch.where(self.hole, drawn, self.picture)


class Stage(nn.Module):
    """A masked transformer with the tokenizer whose codes it fills in, and how it is decoded.

    `critic` decides what is masked again: a `TokenCritic`, or nothing; a model with a critic of its own uses that.
    """

    def __init__(
        self,
        maskgit: MaskGit,
        tokenizer: Any,
        settings: Sampling | None = None,
        critic: TokenCritic | None = None,
    ) -> None:
        super().__init__()
        self.maskgit = maskgit
        self.tokenizer = tokenizer
        self.critic = critic
        self.settings = settings or Sampling(guidance_scale=3.0)

    def generate_tokens(
        self,
        texts: Sequence[str],
        rng: ItemRNG,
        negative: str | None = None,
        low: Tensor | None = None,
        canvas: Canvas | None = None,
        name: str = "decode",
    ) -> Tensor:
        """Codes, (batch, *grid). `low` are the codes of the stage below."""
        maskgit, count = self.maskgit, len(texts)
        cond, uncond = encode_prompts(self.maskgit, texts, negative)
        if low is not None:
            cond["low"] = low.flatten(1)
        tokens = torch.full((count, maskgit.length), maskgit.mask_id, device=maskgit.embedding.weight.device)
        hole = torch.ones_like(tokens, dtype=torch.bool)
        if canvas is not None:
            tokens, hole = (one.to(tokens.device).expand(count, -1) for one in self._known(canvas))

        codes = fill(
            maskgit,
            tokens,
            hole,
            rng=rng,
            settings=self.settings,
            cond=cond,
            uncond=uncond,
            critic=self.critic,
            name=name,
        )
        return codes.view(count, *maskgit.grid)

    def _known(self, canvas: Canvas) -> tuple[Tensor, Tensor]:
        """The codes of the canvas and which of them are to be drawn: those of which the hole touches any part."""
        size, grid = self.tokenizer.config.size, self.tokenizer.config.grid
        fitted = canvas.scaled(size)
        codes = self.tokenizer.encode(fitted.picture[None].to(next(self.tokenizer.parameters()).device))
        hole = F.adaptive_max_pool2d(fitted.hole.float()[None, None], grid)[0, 0] > 0
        hole = hole.view(1, *grid, *[1] * (codes.ndim - 3)).expand(codes.shape)
        return codes.flatten(1), hole.flatten(1)


class Muse(nn.Module):
    """Texts to pictures (Chang et al. 2023, 2301.00704).

    muse = Muse(base=Stage(maskgit, tokenizer), superres=Stage(larger_maskgit, larger_tokenizer))
    pictures = muse(["two blue squares"], seed=3)
    """

    def __init__(self, base: Stage, superres: Stage | None = None) -> None:
        super().__init__()
        if superres is not None:
            given, made = superres.maskgit.config.low_res_grid, base.maskgit.grid
            if given != made:
                raise UsageError(f"the super-resolution model is given a grid of {given}, but the base draws {made}")
        self.base = base
        self.superres = superres

    @property
    def last(self) -> Stage:
        return self.superres or self.base

    @torch.no_grad()
    def forward(
        self, texts: Sequence[str], seed: int = 0, negative: str | None = None, canvas: Canvas | None = None
    ) -> Tensor:
        """Pictures in [0, 1], (batch, channels, height, width); the same seed gives the same ones."""
        return self.generate(texts, ItemRNG(seed, [0] * len(texts), range(len(texts))), negative, canvas)

    def generate(
        self, texts: Sequence[str], rng: ItemRNG, negative: str | None = None, canvas: Canvas | None = None
    ) -> Tensor:
        codes = self.base.generate_tokens(texts, rng, negative, canvas=canvas)
        if self.superres is not None:
            codes = self.superres.generate_tokens(texts, rng, negative, low=codes, canvas=canvas, name="superres")
        tokenizer = self.last.tokenizer
        images: Tensor = tokenizer.decode(codes)
        if canvas is None:
            return images
        if tuple(canvas.hole.shape) != tuple(tokenizer.config.size):
            raise UsageError(f"the picture is {_size(canvas.hole)}, the model draws {_size(images)}")
        return Canvas(canvas.picture.to(images), canvas.hole.to(images.device)).kept(images)


def _size(tensor: Tensor) -> str:
    return f"{tensor.shape[-1]} x {tensor.shape[-2]} pixels"
