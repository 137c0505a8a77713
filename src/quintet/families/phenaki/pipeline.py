"""`PhenakiPipeline`: texts to videos of any length, or to images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quintet.common.artifact import Artifact
from quintet.common.logging import say
from quintet.common.rng import ItemRNG
from quintet.data.index.captions import read_lines
from quintet.errors import UnreadableItem, UsageError
from quintet.families.phenaki.config import PhenakiConfig, PhenakiDataConfig, PhenakiOptions
from quintet.families.phenaki.model import Phenaki
from quintet.media.files import caption_name
from quintet.media.image import image_grid, write_image
from quintet.media.video import clip_frames, clip_tensor, read_header, read_video
from quintet.media.video_header import Fit
from quintet.media.video_writing import filmstrip, write_video
from quintet.pipelines.base import Frozen, Pipeline, Tokenizer, as_tokenizer
from quintet.pipelines.maskgit import MaskGitPipeline
from quintet.pipelines.prompts import Prompts, check_prompts, sample_record
from quintet.sampling.guidance import encode_prompts

VIDEOS_AT_ONCE = 16
DEFAULT_FPS = 8.0
"""Frames per second of files that are written, where no key says."""
_LAST_START = 1 - 1e-9
"""Of all frames that a clip could start at, as a fraction, the last one."""


class PhenakiPipeline(MaskGitPipeline[PhenakiConfig]):
    """Text to video.

    phenaki = PhenakiPipeline.from_pretrained("runs/phenaki")
    videos = phenaki(["a red ball moves right"], num=4, seed=0, frames=33)
    film = phenaki(scenes=["a red ball moves right", "a red ball moves up"])
    """

    recipe = "phenaki"

    @classmethod
    def fit(cls, config: PhenakiConfig, frozen: Frozen) -> PhenakiConfig:
        if "tokenizer" in frozen:
            config = _fit_to_tokenizer(config, frozen["tokenizer"])
        elif config.model.grid is None or config.model.num_codes is None:
            raise UsageError("phenaki makes the codes of a tokenizer of video: name one with --tokenizer RUN")
        return super().fit(config, frozen)

    def __call__(
        self,
        prompts: str | Sequence[str] = (),
        *,
        negative_prompt: str | None = None,
        num: int = 1,
        seed: int = 0,
        frames: int | None = None,
        prime: str | Path | Tensor | None = None,
        scenes: str | Sequence[str] = (),
        images: bool = False,
    ) -> Tensor:
        """Videos (prompts x num, 3, frames, height, width) in [0, 1].

        `prime` is continued: the file of a video or of an image, or frames (3, frames, height, width) in [0, 1]; they
        count as `frames`. `scenes`, instead of prompts, are the texts of one video, `num` times: each scene adds
        `frames`. With `images`, images (prompts x num, 3, height, width).
        """
        scenes = [scenes] if isinstance(scenes, str) else scenes
        _check_combination(prompts, scenes, prime, frames, images)
        if frames is not None and frames < 1:
            raise UsageError(f"frames={frames}: give at least 1")
        asked = Prompts.of(" / ".join(scenes) if scenes else prompts, num, seed)
        config, phenaki = self.config, self.phenaki()
        check_prompts(
            config.model, scenes or asked.texts, negative_prompt, config.sample.guidance_scale, self.guidance_scale
        )
        length = 1 if images else frames or config.sample.frames
        if length is not None and not scenes:
            check_frames("--frames" if frames else "sample.frames", length, phenaki.step)
        if isinstance(prime, str | Path):
            prime = read_prime(Path(prime), phenaki, config.data)
        elif prime is not None:
            prime = self.media(prime)
        if prime is not None and length is not None and not scenes and length <= prime.shape[-3]:
            raise UsageError(
                f"--prime gives {prime.shape[-3]} frames, and {length} are asked for, with those: nothing would be "
                "left to make"
            )
        videos: list[Tensor] = []
        with self.inference():
            for texts, rng in asked.batches(VIDEOS_AT_ONCE):
                start = None if prime is None else phenaki.begun(prime, len(texts))
                if scenes:
                    videos += phenaki.story(scenes, rng, length, start, negative_prompt)
                else:
                    videos += self.generate(texts, rng, negative_prompt, length, start)
        return torch.stack([video[:, 0] for video in videos] if images else videos)

    def generate(
        self,
        texts: Sequence[str],
        rng: ItemRNG,
        negative: str | None = None,
        frames: int | None = None,
        start: Tensor | None = None,
    ) -> Tensor:
        """Videos of one batch of texts, by the random numbers of its items; `start` begins them, and counts."""
        phenaki = self.phenaki()
        conditioning = encode_prompts(self.maskgit, texts, negative)
        return phenaki.film(conditioning, rng, frames or phenaki.length_after(start), start)

    def files(self, prompts: Sequence[str], options: PhenakiOptions) -> list[Artifact]:
        """Each video as MP4 and GIF, and a filmstrip of all of them; or each image, and a grid of all of them."""
        _check_combination(prompts, options.scenes, options.prime, options.frames, options.images)
        scenes = [] if options.scenes is None else read_lines(options.scenes, "--scenes", "scene")
        media = self(prompts, **{**options.model_dump(), "scenes": scenes})
        texts = Prompts.of(" / ".join(scenes) if scenes else prompts, options.num, options.seed).items
        record = sample_record(self.config.sample, options.seed, negative=options.negative_prompt, prime=options.prime)
        if options.images:
            return image_files(media, texts, record)
        return self.video_files(list(media), texts, record | ({"scenes": scenes} if scenes else {}))

    def video_files(self, videos: Sequence[Tensor], texts: Sequence[str], record: Mapping[str, Any]) -> list[Artifact]:
        """An image with a row for each video (3, frames, height, width), and each of them as MP4 and GIF."""
        sheet = image_grid([filmstrip(video.cpu()) for video in videos], columns=1, padding=0)
        about = {"texts": list(texts), **record}
        strip = Artifact("filmstrip.png", partial(write_image, sheet), about, torch.from_numpy(sheet))
        return [strip, *self.single_files(videos, texts, record)]

    def single_files(self, videos: Sequence[Tensor], texts: Sequence[str], record: Mapping[str, Any]) -> list[Artifact]:
        fps = self.config.sample.fps or self.config.data.fps or DEFAULT_FPS
        return [
            Artifact(
                caption_name(number, text, extension),
                partial(write_video, video.float().cpu(), rate=fps),
                {"text": text, "number": number, "frames": video.shape[1], "fps": fps, **record},
            )
            for number, (video, text) in enumerate(zip(videos, texts, strict=True))
            for extension in (".mp4", ".gif")
        ]

    @property
    def tokenizer(self) -> Tokenizer[Any]:
        """Encodes and decodes the videos; a model that was trained on codebook ids may have none."""
        if "tokenizer" not in self.frozen:
            raise UsageError("this model knows no tokenizer, only codebook ids: there are no videos to read or to make")
        return as_tokenizer(self.frozen["tokenizer"])

    def phenaki(self) -> Phenaki:
        """The models put together."""
        config = self.config
        return Phenaki(
            self.maskgit,
            self.tokenizer.model,
            self.critic,
            self.sampling(),
            config.sample.overlap,
            config.loss.frame_autoregressive,
            config.sample.later_steps,
        )


def image_files(images: Tensor, texts: Sequence[str], record: Mapping[str, Any]) -> list[Artifact]:
    pictures = list(images.cpu())
    single = [
        Artifact(caption_name(number, text, ".png"), partial(write_image, image), {"text": text, **record})
        for number, (image, text) in enumerate(zip(pictures, texts, strict=True))
    ]
    grid = image_grid(pictures, columns=min(8, len(pictures)))
    return [Artifact("grid.png", partial(write_image, grid), {"texts": list(texts), **record}), *single]


def check_frames(what: str, frames: int, step: int) -> None:
    """A tokenizer has the first frame, and then `step` at a time."""
    if (frames - 1) % step:
        below = 1 + (frames - 1) // step * step
        raise UsageError(
            f"{what}={frames} is not 1 and a multiple of {step}, the frames that one code of the tokenizer stands "
            f"for; the nearest that are: {below} and {below + step}"
        )


def read_prime(path: Path, phenaki: Phenaki, data: PhenakiDataConfig) -> Tensor:
    """The end of a clip, as much of it as leaves room to continue, (3, frames, height, width) in [0, 1].

    Its frames are taken at the pace of the training clips, up to its last one.
    """
    try:
        header = read_header(path)
        count = 1 + (header.frames - 1) // data.stride if data.fps is None else max(1, int(header.seconds * data.fps))
        chosen = clip_frames(header, count, stride=data.stride, rate=data.fps, start=_LAST_START)
        kept = phenaki.shown_of(len(chosen))
        clip = read_video(path, chosen[-kept:], fit=Fit(*phenaki.cvivit.config.size), header=header)
    except UnreadableItem as problem:
        raise UsageError(f"--prime {path}: {problem}") from None
    if kept < len(chosen):
        say(f"warning: of the {len(chosen)} frames of {path} the last {kept} are used, which leave the model room")
    return clip_tensor(clip).float() / 255


def _check_combination(prompts: Any, scenes: Any, prime: Any, frames: int | None, images: bool) -> None:
    if scenes and (prompts or images):
        raise UsageError("--scenes says what each part of a video shows: leave --text and --images out")
    if images and (prime is not None or frames is not None):
        raise UsageError("--images are pictures: leave --prime and --frames out")


def _fit_to_tokenizer(config: PhenakiConfig, tokenizer: Pipeline[Any]) -> PhenakiConfig:
    model = tokenizer.model
    if not hasattr(model.config, "temporal_patch_size"):
        raise UsageError(f"phenaki needs a tokenizer of video; {tokenizer.reference} is of recipe '{tokenizer.recipe}'")
    frames, step = config.data.frames, model.config.temporal_patch_size
    check_frames("data.frames", frames, step)
    if config.sample.frames is not None:
        check_frames("sample.frames", config.sample.frames, step)
    if frames > model.config.max_frames:
        raise UsageError(
            f"data.frames={frames} is more than the tokenizer {tokenizer.reference} takes: "
            f"model.max_frames={model.config.max_frames}"
        )
    levels = (model.quantizer.levels,) if model.quantizer.levels > 1 else ()
    grid = (model.config.moments(frames), *model.config.grid, *levels)
    found = {"model.grid": grid, "model.num_codes": model.num_codes}
    return config.adopt(f"the tokenizer {tokenizer.reference} of clips of {frames} frames", found)
