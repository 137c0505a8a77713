"""`Phenaki`: text to video of any length, text to image, and continuation of given frames."""

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
    """A masked transformer and the video tokenizer of its codes (Villegas et al. 2022, arXiv:2210.02399).

        phenaki = Phenaki(maskgit=maskgit, cvivit=cvivit)
        videos = phenaki.sample(["a red ball moves right"], num_frames=17, seed=3)
        video = phenaki.make_video(["a red ball moves right", "a red ball moves up"])

    Videos are (batch, 3, frames, height, width) in [0, 1]. `cvivit` is a `CViViT`. `critic` is a `TokenCritic` that
    selects the tokens to mask again, or None; a model trained with `model.self_critic` uses its own. Longer videos and
    later scenes continue from `overlap` frames, by default about a third of the window. `frame_autoregressive` must be
    the `loss.frame_autoregressive` of the training run; `later_steps` are then the decoding steps of each latent frame
    after the first, by default those of the settings.
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
        self.given_settings = settings
        """The settings that were passed; a trainer writes them to the keys `sample.*` of its run."""
        self.settings = settings or Sampling(guidance_scale=3.0)
        self.overlap = overlap
        self.frame_autoregressive = frame_autoregressive
        self.later_steps = later_steps
        self._check_codes()

    @property
    def window_frames(self) -> int:
        """Number of frames generated at once; longer videos are generated window by window."""
        return int(self.cvivit.config.frames(self.maskgit.grid[0]))

    @property
    def temporal_patch_size(self) -> int:
        """Number of frames that each latent frame after the first one covers."""
        return int(self.cvivit.config.temporal_patch_size)

    @property
    def default_overlap(self) -> int:
        """Number of frames from which a longer video or the next scene continues."""
        return self.overlap or int(self.cvivit.config.frames(max(1, round(self.maskgit.grid[0] / 3))))

    # --- public interface -------------------------------------------------------------------------------------

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
        """One video for each text, (batch, 3, frames, height, width); the same seed gives the same videos.

        `prime_frames` ([batch,] 3, frames, height, width) are the first frames of each video and are included in
        `num_frames`. `text_embeds` (batch, words, dim) replace the texts of a model with `model.text=vectors`.
        """
        texts = [texts] if isinstance(texts, str) else texts
        if text_embeds is not None and (negative or any(texts)):
            raise UsageError("pass either texts or text_embeds; a negative text needs texts")
        count = len(texts) if text_embeds is None else len(text_embeds)
        if not count:
            raise UsageError("pass at least one text; an empty text generates a video without conditioning")
        if text_embeds is None:
            conditioning = encode_prompts(self.maskgit, texts, negative)
        else:
            conditioning = encode_vectors(self.maskgit, text_embeds)
        start = None if prime_frames is None else self.prime_batch(prime_frames, count)
        if start is not None and num_frames is not None and start.shape[2] >= num_frames:
            raise UsageError(
                f"num_frames={num_frames} includes the {start.shape[2]} prime_frames: nothing would be left to generate"
            )
        return self.generate(conditioning, _item_rng(seed, count), num_frames or self.default_length(start), start)

    @torch.no_grad()
    def sample_images(self, texts: str | Sequence[str], *, seed: int = 0, negative: str | None = None) -> Tensor:
        """One image for each text, (batch, 3, height, width): a video of one frame."""
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
        """`num` videos (num, 3, frames, height, width) that show the scenes one after another.

        Each scene continues from the last `overlap` frames of the previous one and adds `num_frames`, by default as
        many as fill the window.
        """
        start = None if prime_frames is None else self.prime_batch(prime_frames, num)
        return self.generate_scenes(scenes, _item_rng(seed, num), num_frames, start, negative, overlap)

    # --- steps of generation ----------------------------------------------------------------------------------

    def generate_scenes(
        self,
        scenes: Sequence[str],
        rng: ItemRNG,
        frames: int | None = None,
        start: Tensor | None = None,
        negative: str | None = None,
        overlap: int | None = None,
    ) -> Tensor:
        """Videos (batch, 3, frames, height, width) of the scenes; `start`, if any, begins them."""
        if not scenes:
            raise UsageError("pass at least one scene")
        videos = start
        for number, scene in enumerate(scenes):
            conditioning = encode_prompts(self.maskgit, [scene] * len(rng), negative)
            before = 0 if videos is None else videos.shape[2]
            most = None if number == 0 else overlap or self.default_overlap
            context = 0 if videos is None else self.context_frames(before, most)
            more = frames if frames is not None else self.window_frames - context
            videos = self.generate(
                conditioning, rng, before + more, videos, overlap, f"scene-{number}", is_first=number == 0
            )
        assert videos is not None
        return videos

    def generate(
        self,
        conditioning: tuple[Conditioning, Conditioning],
        rng: ItemRNG,
        frames: int,
        start: Tensor | None = None,
        overlap: int | None = None,
        name: str = "film",
        is_first: bool = True,
    ) -> Tensor:
        """Videos of `frames` frames in total. `start` (batch, 3, frames, height, width) are the first ones, unchanged.

        If `is_first`, the first window sees as many frames of `start` as fit, otherwise `overlap` frames.
        """
        videos, window = start, 0
        while videos is None or videos.shape[2] < frames:
            context = 0
            if videos is not None:
                most = None if is_first and window == 0 else overlap or self.default_overlap
                context = self.context_frames(videos.shape[2], most)
            videos = self._extend(videos, context, conditioning, rng, frames, f"{name}-{window}")
            window += 1
        return videos

    def context_frames(self, frames: int, most: int | None = None) -> int:
        """How many of `frames` frames a continuation sees: full latent frames, at least one less than the window."""
        limit = self.window_frames - self.temporal_patch_size
        if limit < 1:
            raise UsageError("this model was trained on single images: it cannot continue a video")
        context = min(frames, limit, limit if most is None else most)
        return 1 + (context - 1) // self.temporal_patch_size * self.temporal_patch_size

    def default_length(self, start: Tensor | None) -> int:
        """Default number of frames: the window, or `start` and as many new frames as a scene adds."""
        if start is None:
            return self.window_frames
        return start.shape[2] + self.window_frames - self.context_frames(start.shape[2], self.default_overlap)

    def _extend(
        self,
        videos: Tensor | None,
        context: int,
        conditioning: tuple[Conditioning, Conditioning],
        rng: ItemRNG,
        frames: int,
        name: str,
    ) -> Tensor:
        """The videos with one more window, which sees the last `context` frames; at most `frames` frames in total."""
        config = self.cvivit.config
        before = 0 if videos is None else videos.shape[2]
        window = min(self.window_frames, int(config.frames(config.latent_frames(context + frames - before))))
        prime = None if videos is None else self.cvivit.encode(videos[:, :, -context:])
        latent_frames = int(config.latent_frames(window))
        valid_frames = torch.ones(len(rng), latent_frames, dtype=torch.bool, device=self.device)
        codes = self.generate_codes(conditioning, rng, valid_frames, prime, name)
        new: Tensor = self.cvivit.decode(codes)[:, :, context:]
        return new[:, :, :frames] if videos is None else torch.cat([videos, new.to(videos)], dim=2)[:, :, :frames]

    def generate_codes(
        self,
        conditioning: tuple[Conditioning, Conditioning],
        rng: ItemRNG,
        valid_frames: Tensor,
        prime: Tensor | None = None,
        name: str = "film",
    ) -> Tensor:
        """Codes (batch, latent frames, rows, columns[, num_quantizers]), -1 where `valid_frames` (batch, latent frames)
        is false. The first latent frames are `prime` (batch, prime frames, rows, columns[, num_quantizers]).
        """
        maskgit = self.maskgit
        positions = prod(maskgit.grid[1:])
        valid = valid_frames.repeat_interleave(positions, 1)
        known = 0 if prime is None else prime.shape[1]
        tokens = torch.full(valid.shape, maskgit.mask_id, device=valid.device).masked_fill(~valid, 0)
        if prime is not None:
            tokens[:, : known * positions] = prime.flatten(1)
        if not self.frame_autoregressive:
            tokens = self._fill(tokens, valid, known * positions, conditioning, rng, self.settings, name)
        else:
            for frame in range(known, valid_frames.shape[1]):
                end = (frame + 1) * positions
                steps = self.later_steps if frame and self.later_steps else self.settings.steps
                settings = replace(self.settings, steps=steps)
                visible = (tokens[:, :end], valid[:, :end], end - positions)
                filled = self._fill(*visible, conditioning, rng, settings, f"{name}-{frame}")
                tokens = torch.cat([filled, tokens[:, end:]], dim=1)
        return tokens.masked_fill(~valid, NO_CODE).view(*valid_frames.shape, *maskgit.grid[1:])

    def _fill(
        self,
        tokens: Tensor,
        valid: Tensor,
        known: int,
        conditioning: tuple[Conditioning, Conditioning],
        rng: ItemRNG,
        settings: Sampling,
        name: str,
    ) -> Tensor:
        """Tokens (batch, positions) with generated codes after the first `known` ones, where `valid` is true."""
        maskable = valid.clone()
        maskable[:, :known] = False
        cond, uncond = conditioning
        if not valid.all():
            cond = {**cond, "valid_mask": valid}
        return fill(
            self.maskgit,
            tokens,
            maskable,
            rng=rng,
            settings=settings,
            cond=cond,
            uncond=uncond,
            critic=self.critic,
            name=name,
        )

    def prime_batch(self, frames: Tensor, count: int) -> Tensor:
        """Prime frames (count, 3, frames, height, width) of frames ([batch,] 3, frames, height, width)."""
        frames = frames if frames.ndim == 5 else frames[None]
        size = tuple(self.cvivit.config.size)
        if frames.ndim != 5 or frames.shape[1] != 3 or tuple(frames.shape[3:]) != size or not frames.shape[2]:
            raise UsageError(
                f"prime_frames have shape {tuple(frames.shape)}; expected ([batch,] 3, frames, {size[0]}, {size[1]})"
            )
        if len(frames) not in (1, count):
            raise UsageError(f"prime_frames hold {len(frames)} clips for {count} videos; expected 1 or {count}")
        dtype = next(self.cvivit.parameters()).dtype
        if frames.dtype == torch.uint8:
            frames = frames.to(dtype) / 255
        return frames.to(self.device, dtype).expand(count, -1, -1, -1, -1)

    @property
    def device(self) -> torch.device:
        return self.maskgit.embedding.weight.device

    def _check_codes(self) -> None:
        """Check that the transformer has the codes and the grid of the tokenizer."""
        config, quantizer = self.cvivit.config, self.cvivit.quantizer
        expected = (*config.grid, *((quantizer.levels,) if quantizer.levels > 1 else ()))
        if self.maskgit.mask_id != quantizer.num_codes or self.maskgit.grid[1:] != expected:
            raise UsageError(
                f"the transformer has {self.maskgit.mask_id} codes on a grid of {_times(self.maskgit.grid[1:])}, "
                f"but the tokenizer has {quantizer.num_codes} codes on a grid of {_times(expected)}"
            )


def _item_rng(seed: int, count: int) -> ItemRNG:
    return ItemRNG(seed, [0] * count, range(count))


def _times(grid: Sequence[int]) -> str:
    return " x ".join(map(str, grid))
