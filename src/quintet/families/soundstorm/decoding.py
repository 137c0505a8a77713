"""Decoding of SoundStorm: codes are filled in level by level, the coarsest first, each by masked decoding.

While a level is made, all finer ones are hidden, but for what is given: at every step the model sees what training has
shown it. A level's steps count and rank that level's codes alone. How one level is decoded is in `sampling/masked.py`.
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
"""Told the level, the step, the codes of all levels after it, and which of the level's are masked."""


def level_settings(settings: Sampling, steps: Sequence[int], levels: int) -> list[Sampling]:
    """Settings of each level: the same ones but for the number of steps, of which the last holds on."""
    if not 1 <= len(steps) <= levels:
        raise UsageError(f"sample.steps has {len(steps)} numbers for {levels} levels; give one for each, or fewer")
    return [replace(settings, steps=steps[min(level, len(steps) - 1)]) for level in range(levels)]


def canvas(frames: Tensor, levels: int, prompt: Tensor | None = None) -> Tensor:
    """What `generate` fills in: clips of some frames, (batch, frames), that begin with a prompt.

    The prompt is (batch, frames of it, levels of it), with -1 behind where it is shorter for some rows; of all levels
    or the first few.
    """
    made = torch.full((*frames.shape, levels), -1, device=frames.device)
    if prompt is None:
        return made
    if prompt.dim() != 3 or len(prompt) != len(frames) or not 1 <= prompt.shape[2] <= levels:
        raise UsageError(
            f"a prompt of shape {tuple(prompt.shape)} is not (batch, frames, levels) of {len(frames)} clips and "
            f"up to {levels} levels"
        )
    lengths, wanted = (prompt >= 0).any(2).sum(1), frames.sum(1)
    if prompt.shape[1] > frames.shape[1] or (lengths > wanted).any():
        raise UsageError(
            f"a prompt of {int(lengths.max())} frames is longer than the clip it begins, of {int(wanted.min())}"
        )
    made[:, : prompt.shape[1], : prompt.shape[2]] = prompt
    return made


@torch.no_grad()
def generate(
    model: SoundStorm,
    canvas: Tensor,
    conditioning: Conditioning,
    rng: ItemRNG,
    settings: Sequence[Sampling],
    on_step: LevelObserver | None = None,
) -> Tensor:
    """Codes (batch, frames, levels) of clips, -1 behind their ends.

    `canvas` holds what is given and -1 where codes are to be made; `settings` are those of each level.
    """
    frames = conditioning["frames"]
    _check(model, canvas, frames, settings)
    codes = canvas.masked_fill(canvas < 0, model.mask_id)
    uncond = model.net.conditions.null_conditioning(conditioning) if model.config.conditioned else None

    for number, own in enumerate(settings):
        level = _Level(model, number, on_step)
        tokens = decode(
            level.logits,
            codes[..., number],
            canvas[..., number] < 0,
            mask_id=model.mask_id,
            rng=rng,
            settings=own,
            cond={**conditioning, "codes": codes},
            uncond=uncond,
            valid=frames,
            critic=level.critic if model.config.self_critic else None,
            on_step=partial(level.watch, codes),
            name=f"level-{number}",
        )
        codes = level.among(codes, tokens)
    return codes.masked_fill(~frames[..., None], -1)


@dataclass(frozen=True)
class _Level:
    """The model as `decode` asks for it: one level of codes, the others as the conditioning `codes`."""

    model: SoundStorm
    number: int
    on_step: LevelObserver | None

    def among(self, codes: Tensor, tokens: Tensor) -> Tensor:
        """The codes of all levels, with these ones at this level."""
        return torch.cat([codes[..., : self.number], tokens[..., None], codes[..., self.number + 1 :]], dim=2)

    def logits(
        self, tokens: Tensor, conditioning: Conditioning, where: Tensor, previous: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        vectors = self.model.net(self.among(conditioning["codes"], tokens), conditioning, previous)
        carry = vectors if self.model.config.self_conditioning else None
        return self.model.logits_of(vectors[where], self.number), carry

    def critic(self, tokens: Tensor, conditioning: Conditioning) -> Tensor:
        levels = torch.full((len(tokens),), self.number, device=tokens.device)
        scores: Tensor = self.model(self.among(conditioning["codes"], tokens), conditioning, levels, output="scores")
        return scores

    def watch(self, codes: Tensor, step: int, tokens: Tensor, masked: Tensor) -> None:
        if self.on_step is not None:
            self.on_step(self.number, step, self.among(codes, tokens), masked)


def _check(model: SoundStorm, canvas: Tensor, frames: Tensor, settings: Sequence[Sampling]) -> None:
    if canvas.shape != (*frames.shape, model.num_quantizers) or len(settings) != model.num_quantizers:
        raise UsageError(
            f"a canvas of shape {tuple(canvas.shape)} and settings of {len(settings)} levels do not fit "
            f"{tuple(frames.shape)} frames of {model.num_quantizers} levels"
        )
    if canvas.numel() and int(canvas.max()) >= model.mask_id:
        raise UsageError(f"a given code is {int(canvas.max())}, but there are only {model.mask_id} (model.num_codes)")
