"""`Phenaki`: texts to videos and pictures, of any length, from nothing or going on from frames that are given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from quintet.common.rng import ItemRNG
from quintet.errors import UsageError
from quintet.nn.maskgit import MaskGit, TokenCritic
from quintet.sampling.guidance import Conditioning, encode_prompts
from quintet.sampling.masked import Sampling
from quintet.sampling.maskgit import encode_vectors, fill

__all__ = ["MaskGit", "Phenaki", "TokenCritic"]

NO_CODE = -1


class Phenaki(nn.Module):
    """A masked transformer with the tokenizer of video whose codes it fills in (Villegas et al. 2022, 2210.02399).

        phenaki = Phenaki(maskgit=maskgit, cvivit=cvivit)
        videos = phenaki.sample(["a red ball moves right"], num_frames=17, seed=3)
        film = phenaki.make_video(["a red ball moves right", "a red ball moves up"])

    Videos are (batch, 3, frames, height, width) in [0, 1]. `cvivit` is a `CViViT`. `critic` decides what is masked
    again: a `TokenCritic`, or nothing; a model with a critic of its own uses that. Longer videos and later scenes go on
    from `overlap` frames, by default about a third of what is made at once. `order` is the one that the model was
    trained in, `loss.frame_autoregressive` of its run. In the order of moments `later_steps` are the decoding steps of each moment
    behind the first, where they are not those of the settings.
    """

    def __init__(
        self,
        maskgit: MaskGit,
        cvivit: Any,
        critic: TokenCritic | None = None,
        settings: Sampling | None = None,
        overlap: int | None = None,
        frame_autoregressive: bool = False,
        later_steps: int | None = None,
    ) -> None:
        super().__init__()
        self.maskgit = maskgit
        self.cvivit = cvivit
        self.critic = critic
        self.settings = settings or Sampling(guidance_scale=3.0)
        self.overlap = overlap
        self.frame_autoregressive = frame_autoregressive
        self.later_steps = later_steps
        self._check_codes()

    @property
    def longest(self) -> int:
        """Frames that are made at once; of longer videos one part after another."""
        return int(self.cvivit.config.frames(self.maskgit.grid[0]))

    @property
    def step(self) -> int:
        """Frames that one moment of codes stands for, after the first."""
        return int(self.cvivit.config.temporal_patch_size)

    @property
    def usual_overlap(self) -> int:
        """Frames that a longer video or the next scene goes on from."""
        return self.overlap or int(self.cvivit.config.frames(max(1, round(self.maskgit.grid[0] / 3))))

    # --- for people -------------------------------------------------------------------------------------------

    @torch.no_grad()
    def sample(
        self,
        texts: str | Sequence[str] = (),
        num_frames: int | None = None,
        *,
        prime_frames: Tensor | None = None,
        seed: int = 0,
        negative: str | None = None,
        text_embeds: Tensor | None = None,
    ) -> Tensor:
        """A video for each text; the same seed gives the same ones.

        `prime_frames`, (3, frames, height, width) or with the batch before, begin every video, and count.
        `text_embeds`, (batch, words, width), stand for texts, with a model that is told by them.
        """
        texts = [texts] if isinstance(texts, str) else texts
        if text_embeds is not None and (negative or any(texts)):
            raise UsageError("give texts, or embeddings of texts; a negative text is for the former")
        count = len(texts) if text_embeds is None else len(text_embeds)
        if not count:
            raise UsageError("give at least one text; an empty one asks for any video")
        if text_embeds is None:
            told = encode_prompts(self.maskgit, texts, negative)
        else:
            told = encode_vectors(self.maskgit, text_embeds)
        start = None if prime_frames is None else self.begun(prime_frames, count)
        if start is not None and num_frames is not None and start.shape[2] >= num_frames:
            raise UsageError(f"{start.shape[2]} frames to go on from leave nothing to make of {num_frames}")
        return self.film(told, _draw(seed, count), num_frames or self.length_after(start), start)

    @torch.no_grad()
    def sample_images(self, texts: str | Sequence[str], *, seed: int = 0, negative: str | None = None) -> Tensor:
        """A picture for each text, (batch, 3, height, width): a picture is a video of one frame."""
        return self.sample(texts, 1, seed=seed, negative=negative)[:, :, 0]

    @torch.no_grad()
    def make_video(
        self,
        scenes: Sequence[str],
        num_frames: int | None = None,
        *,
        num: int = 1,
        overlap: int | None = None,
        prime_frames: Tensor | None = None,
        seed: int = 0,
        negative: str | None = None,
    ) -> Tensor:
        """`num` videos of one scene after another. Each scene goes on from the last `overlap` frames of the one before,
        and adds `num_frames`; if not given, as many as are made at once."""
        start = None if prime_frames is None else self.begun(prime_frames, num)
        return self.story(scenes, _draw(seed, num), num_frames, start, negative, overlap)

    # --- the way there ----------------------------------------------------------------------------------------

    def story(
        self,
        scenes: Sequence[str],
        rng: ItemRNG,
        frames: int | None = None,
        start: Tensor | None = None,
        negative: str | None = None,
        overlap: int | None = None,
    ) -> Tensor:
        if not scenes:
            raise UsageError("a video of scenes needs at least one scene")
        made = start
        for number, scene in enumerate(scenes):
            told = encode_prompts(self.maskgit, [scene] * len(rng), negative)
            before = 0 if made is None else made.shape[2]
            shown = 0 if made is None else self.shown_of(before, None if number == 0 else overlap or self.usual_overlap)
            more = frames if frames is not None else self.longest - shown
            made = self.film(told, rng, before + more, made, overlap, f"scene-{number}", begins=number == 0)
        assert made is not None
        return made

    def film(
        self,
        told: tuple[Conditioning, Conditioning],
        rng: ItemRNG,
        frames: int,
        start: Tensor | None = None,
        overlap: int | None = None,
        name: str = "film",
        begins: bool = True,
    ) -> Tensor:
        """Videos of so many frames in all. `start` begins them and stays as it is; if nothing else came before it, as
        much of it is shown to the model as there is room for."""
        made, part = start, 0
        while made is None or made.shape[2] < frames:
            shown = 0
            if made is not None:
                own_start = begins and part == 0
                shown = self.shown_of(made.shape[2], None if own_start else overlap or self.usual_overlap)
            made = self._longer(made, shown, told, rng, frames, f"{name}-{part}")
            part += 1
        return made

    def shown_of(self, frames: int, most: int | None = None) -> int:
        """How many of so many frames a continuation sees: whole moments, and at least one is left to make."""
        whole = self.longest - self.step
        if whole < 1:
            raise UsageError("this model makes single pictures: it cannot go on from one")
        wanted = min(frames, whole, whole if most is None else most)
        return 1 + (wanted - 1) // self.step * self.step

    def length_after(self, start: Tensor | None) -> int:
        """How long a video is if nobody says: what is made at once, or as much behind a start as behind a scene."""
        if start is None:
            return self.longest
        return start.shape[2] + self.longest - self.shown_of(start.shape[2], self.usual_overlap)

    def _longer(
        self,
        made: Tensor | None,
        shown: int,
        told: tuple[Conditioning, Conditioning],
        rng: ItemRNG,
        frames: int,
        name: str,
    ) -> Tensor:
        config = self.cvivit.config
        before = 0 if made is None else made.shape[2]
        window = min(self.longest, int(config.frames(config.moments(shown + frames - before))))
        prime = None if made is None else self.cvivit.encode(made[:, :, -shown:])
        moments = int(config.moments(window))
        there = torch.ones(len(rng), moments, dtype=torch.bool, device=self.device)
        new: Tensor = self.cvivit.decode(self.codes(told, rng, there, prime, name))[:, :, shown:]
        return new[:, :, :frames] if made is None else torch.cat([made, new.to(made)], dim=2)[:, :, :frames]

    def codes(
        self,
        told: tuple[Conditioning, Conditioning],
        rng: ItemRNG,
        there: Tensor,
        prime: Tensor | None = None,
        name: str = "film",
    ) -> Tensor:
        """Codes (batch, moments, rows, columns[, levels]) of the moments that there are, -1 elsewhere. The first ones
        are those of `prime`."""
        maskgit = self.maskgit
        places = prod(maskgit.grid[1:])
        valid = there.repeat_interleave(places, 1)
        known = 0 if prime is None else prime.shape[1]
        tokens = torch.full(valid.shape, maskgit.mask_id, device=valid.device).masked_fill(~valid, 0)
        if prime is not None:
            tokens[:, : known * places] = prime.flatten(1)
        if not self.frame_autoregressive:
            tokens = self._filled(tokens, valid, known * places, told, rng, self.settings, name)
        else:
            for moment in range(known, there.shape[1]):
                end = (moment + 1) * places
                steps = self.later_steps if moment and self.later_steps else self.settings.steps
                settings = replace(self.settings, steps=steps)
                shown = (tokens[:, :end], valid[:, :end], end - places)
                seen = self._filled(*shown, told, rng, settings, f"{name}-{moment}")
                tokens = torch.cat([seen, tokens[:, end:]], dim=1)
        return tokens.masked_fill(~valid, NO_CODE).view(*there.shape, *maskgit.grid[1:])

    def _filled(
        self,
        tokens: Tensor,
        valid: Tensor,
        known: int,
        told: tuple[Conditioning, Conditioning],
        rng: ItemRNG,
        settings: Sampling,
        name: str,
    ) -> Tensor:
        """The tokens behind so many known ones, as far as there are any."""
        hole = valid.clone()
        hole[:, :known] = False
        cond, uncond = told
        if not valid.all():
            cond = {**cond, "valid_mask": valid}
        return fill(
            self.maskgit,
            tokens,
            hole,
            rng=rng,
            settings=settings,
            cond=cond,
            uncond=uncond,
            critic=self.critic,
            name=name,
        )

    def begun(self, frames: Tensor, count: int) -> Tensor:
        """Frames that are given, for each of so many videos."""
        frames = frames if frames.ndim == 5 else frames[None]
        size = tuple(self.cvivit.config.size)
        if frames.ndim != 5 or frames.shape[1] != 3 or tuple(frames.shape[3:]) != size or not frames.shape[2]:
            raise UsageError(
                f"frames to go on from are (3, frames, {size[0]}, {size[1]}), perhaps with the batch before, not "
                f"{tuple(frames.shape)}"
            )
        if len(frames) not in (1, count):
            raise UsageError(f"{len(frames)} clips to go on from cannot begin {count} videos")
        dtype = next(self.cvivit.parameters()).dtype
        return frames.to(self.device, dtype).expand(count, -1, -1, -1, -1)

    @property
    def device(self) -> torch.device:
        return self.maskgit.embedding.weight.device

    def _check_codes(self) -> None:
        """The tokens must be those of this tokenizer."""
        config, quantizer = self.cvivit.config, self.cvivit.quantizer
        theirs = (*config.grid, *((quantizer.levels,) if quantizer.levels > 1 else ()))
        if self.maskgit.mask_id != quantizer.num_codes or self.maskgit.grid[1:] != theirs:
            raise UsageError(
                f"the transformer speaks {self.maskgit.mask_id} codes on a grid of {_times(self.maskgit.grid[1:])}, "
                f"the tokenizer {quantizer.num_codes} on {_times(theirs)}"
            )


def _draw(seed: int, count: int) -> ItemRNG:
    return ItemRNG(seed, [0] * count, range(count))


def _times(grid: Sequence[int]) -> str:
    return " x ".join(map(str, grid))
