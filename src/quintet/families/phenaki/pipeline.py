"""`PhenakiPipeline`: text to video of any length, or text to image."""

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

VIDEOS_PER_BATCH = 16
DEFAULT_FPS = 8.0
"""Frame rate of written videos, if neither sample.fps nor data.fps is set."""
_LAST_START = 1 - 1e-9
"""Start of a clip, as a fraction of the possible start frames: the last one."""


class PhenakiPipeline(MaskGitPipeline[PhenakiConfig]):
    """Text to video.

    phenaki = PhenakiPipeline.from_pretrained("runs/phenaki")
    videos = phenaki(["a red ball moves right"], num=4, seed=0, frames=33)
    videos = phenaki(scenes=["a red ball moves right", "a red ball moves up"])
    """

    recipe = "phenaki"
    num_time_axes = 1

    @classmethod
    def fit(cls, config: PhenakiConfig, frozen: Frozen) -> PhenakiConfig:
        if "tokenizer" in frozen:
            config = _fit_to_tokenizer(config, frozen["tokenizer"])
        elif config.model.grid is None or config.model.num_codes is None:
            raise UsageError("phenaki needs a trained video tokenizer: name it with --tokenizer RUN")
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

        `prime` is a video or image file, or frames (3, frames, height, width) in [0, 1], to continue; its frames are
        included in `frames`. `scenes`, instead of prompts, are the texts of one video, generated `num` times; each
        scene adds `frames`. With `images`, the result is images (prompts x num, 3, height, width).
        """
        scenes = [scenes] if isinstance(scenes, str) else scenes
        _check_combination(prompts, scenes, prime, frames, images)
        if frames is not None and frames < 1:
            raise UsageError(f"frames={frames} must be at least 1")
        requests = Prompts.of(" / ".join(scenes) if scenes else prompts, num, seed)
        config, phenaki = self.config, self.phenaki()
        check_prompts(
            config.model, scenes or requests.texts, negative_prompt, config.sample.guidance_scale, self.guidance_scale
        )
        length = 1 if images else frames or config.sample.frames
        if length is not None and not scenes:
            check_frames("--frames" if frames else "sample.frames", length, phenaki.temporal_patch_size)
        if isinstance(prime, str | Path):
            prime = read_prime(Path(prime), phenaki, config.data)
        elif prime is not None:
            prime = self.media(prime)
        if prime is not None and length is not None and not scenes and length <= prime.shape[-3]:
            raise UsageError(
                f"a video of {length} frames includes the {prime.shape[-3]} frames of --prime: nothing would be "
                "left to generate"
            )
        videos: list[Tensor] = []
        with self.inference():
            for texts, rng in requests.batches(VIDEOS_PER_BATCH):
                start = None if prime is None else phenaki.prime_batch(prime, len(texts))
                if scenes:
                    videos += phenaki.generate_scenes(scenes, rng, length, start, negative_prompt)
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
        """Videos (batch, 3, frames, height, width) for one batch of texts; `rng` holds one stream per item.

        `start` (batch, 3, frames, height, width) are the first frames, included in `frames`.
        """
        phenaki = self.phenaki()
        conditioning = encode_prompts(self.maskgit, texts, negative)
        return phenaki.generate(conditioning, rng, frames or phenaki.default_length(start), start)

    def files(self, prompts: Sequence[str], options: PhenakiOptions) -> list[Artifact]:
        """Each video as MP4 and GIF and one filmstrip of all videos; or each image and one grid of all images."""
        _check_combination(prompts, options.scenes, options.prime, options.frames, options.images)
        scenes = [] if options.scenes is None else read_lines(options.scenes, "--scenes", "scene")
        media = self(prompts, **{**options.model_dump(), "scenes": scenes})
        texts = Prompts.of(" / ".join(scenes) if scenes else prompts, options.num, options.seed).items
        record = sample_record(self.config.sample, options.seed, negative=options.negative_prompt, prime=options.prime)
        if options.images:
            return image_files(media, texts, record)
        return self.video_files(list(media), texts, record | ({"scenes": scenes} if scenes else {}))

    def video_files(self, videos: Sequence[Tensor], texts: Sequence[str], record: Mapping[str, Any]) -> list[Artifact]:
        """A filmstrip with one row per video (3, frames, height, width), and each video as MP4 and GIF."""
        sheet = image_grid([filmstrip(video.cpu()) for video in videos], columns=1, padding=0)
        metadata = {"texts": list(texts), **record}
        strip = Artifact("filmstrip.png", partial(write_image, sheet), metadata, torch.from_numpy(sheet))
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
        """The video tokenizer; a model trained on codebook ids may have none."""
        if "tokenizer" not in self.frozen:
            raise UsageError(
                "this model was trained on codebook ids without a tokenizer: it cannot read or generate videos"
            )
        return as_tokenizer(self.frozen["tokenizer"])

    def phenaki(self) -> Phenaki:
        """The transformer, the tokenizer and the critic as one model."""
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
    images_list = list(images.cpu())
    single = [
        Artifact(caption_name(number, text, ".png"), partial(write_image, image), {"text": text, **record})
        for number, (image, text) in enumerate(zip(images_list, texts, strict=True))
    ]
    grid = image_grid(images_list, columns=min(8, len(images_list)))
    return [Artifact("grid.png", partial(write_image, grid), {"texts": list(texts), **record}), *single]


def check_frames(key: str, frames: int, step: int) -> None:
    """Check that a video has 1 plus a multiple of `step` frames, as the tokenizer needs."""
    if (frames - 1) % step:
        below = 1 + (frames - 1) // step * step
        raise UsageError(
            f"{key}={frames} is not 1 plus a multiple of {step}, the number of frames per code of the tokenizer; "
            f"the nearest valid numbers are {below} and {below + step}"
        )


def read_prime(path: Path, phenaki: Phenaki, data: PhenakiDataConfig) -> Tensor:
    """The last frames of a clip, (3, frames, height, width) in [0, 1], as many as leave room to continue.

    Frames are read at the frame rate or stride of the training clips, up to the last frame of the file.
    """
    try:
        header = read_header(path)
        count = 1 + (header.frames - 1) // data.stride if data.fps is None else max(1, int(header.seconds * data.fps))
        chosen = clip_frames(header, count, stride=data.stride, rate=data.fps, start=_LAST_START)
        used = phenaki.context_frames(len(chosen))
        clip = read_video(path, chosen[-used:], fit=Fit(*phenaki.cvivit.config.size), header=header)
    except UnreadableItem as problem:
        raise UsageError(f"--prime {path}: {problem}") from None
    if used < len(chosen):
        say(f"warning: using only the last {used} of the {len(chosen)} frames of {path}, to leave room to continue")
    return clip_tensor(clip).float() / 255


def _check_combination(prompts: Any, scenes: Any, prime: Any, frames: int | None, images: bool) -> None:
    if scenes and (prompts or images):
        raise UsageError("--scenes cannot be combined with --text or --images")
    if images and (prime is not None or frames is not None):
        raise UsageError("--images cannot be combined with --prime or --frames")


def _fit_to_tokenizer(config: PhenakiConfig, tokenizer: Pipeline[Any]) -> PhenakiConfig:
    model = tokenizer.model
    if not hasattr(model.config, "temporal_patch_size"):
        raise UsageError(
            f"phenaki needs a video tokenizer, but {tokenizer.reference} is a run of recipe '{tokenizer.recipe}'"
        )
    frames, step = config.data.frames, model.config.temporal_patch_size
    check_frames("data.frames", frames, step)
    if config.sample.frames is not None:
        check_frames("sample.frames", config.sample.frames, step)
    if frames > model.config.max_frames:
        raise UsageError(
            f"data.frames={frames} exceeds model.max_frames={model.config.max_frames} of the tokenizer "
            f"{tokenizer.reference}"
        )
    levels = (model.quantizer.levels,) if model.quantizer.levels > 1 else ()
    grid = (_latent_frames(config, model.config), *model.config.grid, *levels)
    found = {"model.grid": grid, "model.num_codes": model.num_codes}
    return config.adopt(f"the tokenizer {tokenizer.reference} for clips of {frames} frames", found)


def _latent_frames(config: PhenakiConfig, tokenizer: Any) -> int:
    """Latent frames of the window: those of a clip, or more if the model was built for longer clips."""
    of_clips, built_for = tokenizer.latent_frames(config.data.frames), (config.model.grid or (0,))[0]
    return int(max(of_clips, min(built_for, tokenizer.latent_frames(tokenizer.max_frames))))
