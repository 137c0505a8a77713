"""`Muse`: text to image with a base model and an optional super-resolution model."""

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
    """Input of inpainting: an image (channels, height, width) in [0, 1] and a mask (height, width), true where pixels
    are generated."""

    image: Tensor
    mask: Tensor

    def __post_init__(self) -> None:
        if self.image.shape[-2:] != self.mask.shape:
            raise UsageError(
                f"the mask is {_size(self.mask)}, but the image is {_size(self.image)}; they must have the same size"
            )
        if not self.mask.any():
            raise UsageError("the mask selects nothing to generate: paint the part to generate white")

    def scaled(self, size: tuple[int, int]) -> Canvas:
        """The canvas at another size. The masked part gets the mean color of the rest, so that nothing leaks."""
        mask = self.mask.to(self.image)
        num_known = (1 - mask).sum().clamp(min=1)
        mean = (self.image * (1 - mask)).sum((-2, -1), keepdim=True) / num_known
        filled = torch.where(self.mask, mean, self.image)
        if size == tuple(self.mask.shape):
            return Canvas(filled, self.mask)
        resized = F.interpolate(filled[None], size, mode="bilinear", antialias=True)[0].clamp(0, 1)
        return Canvas(resized, F.adaptive_max_pool2d(mask[None, None], size)[0, 0] > 0)

    def composite(self, generated: Tensor) -> Tensor:
        """Generated images (batch, channels, height, width) inside the mask, the original image outside."""
        return torch.where(self.mask, generated, self.image)


class Stage(nn.Module):
    """A masked transformer, the tokenizer of its codes and the settings of decoding.

    `critic` is a `TokenCritic` that selects the tokens to mask again, or None. A model trained with
    `model.self_critic` uses its own.
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
        """Codes (batch, *grid). `low` (batch, *low_res_grid) are the codes of the base model."""
        maskgit, count = self.maskgit, len(texts)
        cond, uncond = encode_prompts(self.maskgit, texts, negative)
        if low is not None:
            cond["low"] = low.flatten(1)
        tokens = torch.full((count, maskgit.length), maskgit.mask_id, device=maskgit.embedding.weight.device)
        maskable = torch.ones_like(tokens, dtype=torch.bool)
        if canvas is not None:
            tokens, maskable = (each.to(tokens.device).expand(count, -1) for each in self._encode(canvas))

        codes = fill(
            maskgit,
            tokens,
            maskable,
            rng=rng,
            settings=self.settings,
            cond=cond,
            uncond=uncond,
            critic=self.critic,
            name=name,
        )
        return codes.view(count, *maskgit.grid)

    def _encode(self, canvas: Canvas) -> tuple[Tensor, Tensor]:
        """Codes (1, positions) of the canvas, and a mask of the codes that the canvas mask touches."""
        size, grid = self.tokenizer.config.size, self.tokenizer.config.grid
        resized = canvas.scaled(size)
        codes = self.tokenizer.encode(resized.image[None].to(next(self.tokenizer.parameters()).device))
        maskable = F.adaptive_max_pool2d(resized.mask.float()[None, None], grid)[0, 0] > 0
        maskable = maskable.view(1, *grid, *[1] * (codes.ndim - 3)).expand(codes.shape)
        return codes.flatten(1), maskable.flatten(1)


class Muse(nn.Module):
    """Text to image (Chang et al. 2023, arXiv:2301.00704).

    muse = Muse(base=Stage(maskgit, tokenizer), superres=Stage(larger_maskgit, larger_tokenizer))
    images = muse(["two blue squares"], seed=3)
    """

    def __init__(self, base: Stage, superres: Stage | None = None) -> None:
        super().__init__()
        if superres is not None:
            expected, actual = superres.maskgit.config.low_res_grid, base.maskgit.grid
            if expected != actual:
                raise UsageError(
                    f"the super-resolution model expects a base grid of {expected}, but the base model has {actual}"
                )
        self.base = base
        self.superres = superres

    @property
    def last(self) -> Stage:
        return self.superres or self.base

    @torch.no_grad()
    def forward(
        self, texts: Sequence[str], seed: int = 0, negative: str | None = None, canvas: Canvas | None = None
    ) -> Tensor:
        """Images (batch, channels, height, width) in [0, 1]; the same seed gives the same images."""
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
        if tuple(canvas.mask.shape) != tuple(tokenizer.config.size):
            raise UsageError(f"the input image is {_size(canvas.mask)}, but the model generates {_size(images)}")
        return Canvas(canvas.image.to(images), canvas.mask.to(images.device)).composite(images)


def _size(tensor: Tensor) -> str:
    return f"{tensor.shape[-1]} x {tensor.shape[-2]} pixels"
