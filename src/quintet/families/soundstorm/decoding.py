"""Decoding of SoundStorm: masked decoding of one quantizer level after another, the coarsest first.

While a level is decoded, all finer levels are masked except for the prompt, as in training. The steps of a level count
and rank the codes of that level alone. `sampling/masked.py` decodes one level.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from quintet.common.rng import ItemRNG
from quintet.errors import UsageError
from quintet.families.soundstorm.model import SoundStorm
from quintet.sampling.guidance import Conditioning
from quintet.sampling.masked import Sampling, decode

LevelObserver = Callable[[int, int, Tensor, Tensor], None]
"""Called with the level, the step, the codes of all levels after it, and the mask of the level's masked codes."""


def level_settings(settings: Sampling, steps: Sequence[int], num_quantizers: int) -> list[Sampling]:
    """The settings of each level, which differ in the number of steps; the last number holds for all further levels."""
    if not 1 <= len(steps) <= num_quantizers:
        raise UsageError(
            f"sample.steps has {len(steps)} numbers for {num_quantizers} quantizers; give one for each, or fewer"
        )
    return [replace(settings, steps=steps[min(level, len(steps) - 1)]) for level in range(num_quantizers)]


def canvas(frames: Tensor, num_quantizers: int, prompt: Tensor | None = None) -> Tensor:
    """The codes (batch, frames, num_quantizers) that `generate` completes: the prompt, and -1 elsewhere.

    `frames` (batch, frames) is the valid mask of the clips. The prompt (batch, prompt frames, quantizers), of all
    or the first quantizers, is padded with -1.
    """
    codes = torch.full((*frames.shape, num_quantizers), -1, device=frames.device)
    if prompt is None:
        return codes
    if prompt.dim() != 3 or len(prompt) != len(frames) or not 1 <= prompt.shape[2] <= num_quantizers:
        raise UsageError(
            f"a prompt must have the shape (batch, frames, quantizers) with a batch of {len(frames)} and up to "
            f"{num_quantizers} quantizers, not {tuple(prompt.shape)}"
        )
    lengths, clip_lengths = (prompt >= 0).any(2).sum(1), frames.sum(1)
    if prompt.shape[1] > frames.shape[1] or (lengths > clip_lengths).any():
        raise UsageError(
            f"a prompt of {int(lengths.max())} frames is longer than its clip of {int(clip_lengths.min())} frames"
        )
    codes[:, : prompt.shape[1], : prompt.shape[2]] = prompt
    return codes


@torch.no_grad()
def generate(
    model: SoundStorm,
    canvas: Tensor,
    conditioning: Conditioning,
    rng: ItemRNG,
    settings: Sequence[Sampling],
    on_step: LevelObserver | None = None,
    negative: Conditioning | None = None,
) -> Tensor:
    """Codes (batch, frames, num_quantizers) of clips, -1 behind their ends.

    `canvas` (batch, frames, num_quantizers) holds the known codes, and -1 where codes are generated; `settings` has one
    entry per level. `negative` is the conditioning of a negative text, which guidance steers away from.
    """
    frames = conditioning["frames"]
    _check(model, canvas, frames, settings)
    codes = canvas.masked_fill(canvas < 0, model.mask_id)
    cond, uncond = _precomputed(model, conditioning, negative)

    for number, own in enumerate(settings):
        level = _Level(model, number, on_step)
        tokens = decode(
            level.logits,
            codes[..., number],
            canvas[..., number] < 0,
            mask_id=model.mask_id,
            rng=rng,
            settings=own,
            cond={**cond, "codes": codes},
            uncond=uncond,
            valid=frames,
            critic=level.critic if model.config.self_critic else None,
            on_step=partial(level.report_step, codes),
            name=f"level-{number}",
        )
        codes = level.insert(codes, tokens)
    return codes.masked_fill(~frames[..., None], -1)


def _precomputed(
    model: SoundStorm, conditioning: Conditioning, negative: Conditioning | None
) -> tuple[dict[str, Tensor], dict[str, Tensor] | None]:
    """The conditioning, and that which guidance steers away from; texts are encoded once, not at every step."""
    cond = model.net.precompute_conditioning(conditioning)
    if not model.config.conditioned:
        return cond, None
    uncond = {**model.net.conditions.null_conditioning(conditioning), **(negative or {})}
    if "text_mask" not in uncond:
        return cond, uncond
    return cond, model.net.precompute_conditioning({**conditioning, **uncond})


@dataclass(frozen=True)
class _Level:
    """Adapts the model to `decode`: one level as the tokens, the codes of all levels as the conditioning `codes`."""

    model: SoundStorm
    number: int
    on_step: LevelObserver | None

    def insert(self, codes: Tensor, tokens: Tensor) -> Tensor:
        """The codes (batch, frames, num_quantizers) of all levels, with `tokens` (batch, frames) at this level."""
        return torch.cat([codes[..., : self.number], tokens[..., None], codes[..., self.number + 1 :]], dim=2)

    def logits(
        self, tokens: Tensor, conditioning: Conditioning, where: Tensor, previous: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        vectors = self.model.net(self.insert(conditioning["codes"], tokens), conditioning, previous)
        carry = vectors if self.model.config.self_conditioning else None
        return self.model.logits_of(vectors.flatten(0, 1).index_select(0, where), self.number), carry

    def critic(self, tokens: Tensor, conditioning: Conditioning) -> Tensor:
        levels = torch.full((len(tokens),), self.number, device=tokens.device)
        scores: Tensor = self.model(self.insert(conditioning["codes"], tokens), conditioning, levels, output="scores")
        return scores

    def report_step(self, codes: Tensor, step: int, tokens: Tensor, masked: Tensor) -> None:
        if self.on_step is not None:
            self.on_step(self.number, step, self.insert(codes, tokens), masked)


def _check(model: SoundStorm, canvas: Tensor, frames: Tensor, settings: Sequence[Sampling]) -> None:
    if canvas.shape != (*frames.shape, model.num_quantizers) or len(settings) != model.num_quantizers:
        raise UsageError(
            f"a canvas of shape {tuple(canvas.shape)} and settings of {len(settings)} levels do not fit "
            f"{tuple(frames.shape)} frames of {model.num_quantizers} quantizers"
        )
    if canvas.numel() and int(canvas.max()) >= model.mask_id:
        raise UsageError(f"the canvas has a code {int(canvas.max())}, but model.num_codes={model.mask_id}")
