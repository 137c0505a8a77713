"""`MusePipeline`: text to image, and inpainting."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quintet.common.artifact import Artifact
from quintet.common.rng import ItemRNG
from quintet.data.image import MODES
from quintet.errors import UnreadableItem, UsageError
from quintet.families.muse.config import MuseConfig, MuseOptions
from quintet.families.muse.model import Canvas, Muse, Stage
from quintet.media.image import image_grid, read_image, resize_and_crop, to_tensor, write_image
from quintet.pipelines.base import Frozen, Pipeline, Tokenizer
from quintet.pipelines.maskgit import MaskGitPipeline
from quintet.pipelines.prompts import Prompts, check_prompts, sample_record

IMAGES_PER_BATCH = 32


class MusePipeline(MaskGitPipeline[MuseConfig]):
    """Text to image. A super-resolution run includes its base model.

    images = MusePipeline.from_pretrained("runs/muse")(["a red circle"], num=4, seed=0)
    """

    recipe = "muse"

    @classmethod
    def fit(cls, config: MuseConfig, frozen: Frozen) -> MuseConfig:
        tokenizer, base = frozen.get("tokenizer"), frozen.get("base")
        if tokenizer is None:
            raise UsageError("muse needs a trained image tokenizer: name it with --tokenizer RUN")
        vae = tokenizer.model
        if not isinstance(tokenizer, Tokenizer) or not hasattr(vae, "code_shape"):
            raise UsageError(
                f"muse needs an image tokenizer, but {tokenizer.reference} is a run of recipe '{tokenizer.recipe}'"
            )
        found = {"model.grid": vae.code_shape, "model.num_codes": vae.num_codes}
        config = config.adopt(f"the tokenizer {tokenizer.reference}", found)
        if base is not None:
            config = _fit_to_base(config, tokenizer, base)
        elif config.model.low_res_grid is not None:
            raise UsageError("this is a super-resolution model: name its base model with --base RUN")
        return super().fit(config, frozen)

    def __call__(
        self,
        prompts: str | Sequence[str] = (),
        *,
        negative_prompt: str | None = None,
        num: int = 1,
        seed: int = 0,
        image: str | Path | None = None,
        mask: str | Path | None = None,
    ) -> Tensor:
        """Images (prompts x num, channels, height, width) in [0, 1].

        With `image` and `mask`, two files of the same size, only the white part of the mask is generated.
        """
        requests = Prompts.of(prompts, num, seed)
        check_prompts(
            self.config.model, requests.texts, negative_prompt, self.config.sample.guidance_scale, self.guidance_scale
        )
        canvas = self._read_canvas(image, mask)
        images: list[Tensor] = []
        with self.inference():
            for texts, rng in requests.batches(IMAGES_PER_BATCH):
                images += self.generate(texts, rng, negative_prompt, canvas)
        return torch.stack(images)

    def generate(
        self, texts: Sequence[str], rng: ItemRNG, negative: str | None = None, canvas: Canvas | None = None
    ) -> Tensor:
        """Images (batch, channels, height, width) for one batch of texts; `rng` holds one stream per item."""
        return self.muse().generate(texts, rng, negative, canvas)

    def files(self, prompts: Sequence[str], options: MuseOptions) -> list[Artifact]:
        """One file per image, and one grid of all images."""
        images = self(prompts, **options.model_dump())
        texts = Prompts.of(prompts, options.num, options.seed).items
        common = sample_record(
            self.config.sample,
            options.seed,
            negative=options.negative_prompt,
            image=options.image,
            mask=options.mask,
        )
        single = [
            Artifact(f"{number:03d}.png", partial(write_image, image), {"text": text, "number": number, **common})
            for number, (image, text) in enumerate(zip(images, texts, strict=True))
        ]
        grid = image_grid(list(images), columns=min(8, len(texts)))
        return [Artifact("grid.png", partial(write_image, grid), {"texts": texts, **common}), *single]

    def muse(self) -> Muse:
        """This model, with its base model if it has one."""
        base = self.frozen.get("base")
        return Muse(self.stage()) if base is None else Muse(base.stage(), self.stage())  # type: ignore[attr-defined]

    def stage(self) -> Stage:
        return Stage(self.maskgit, self.frozen["tokenizer"].model, self.sampling(), self.critic)

    def _read_canvas(self, image: str | Path | None, mask: str | Path | None) -> Canvas | None:
        """The image and the mask, resized and cropped as for training."""
        if (image is None) != (mask is None):
            raise UsageError(
                "--image and --mask require each other: the mask selects the part of the image to generate"
            )
        if image is None or mask is None:
            return None
        model = self.frozen["tokenizer"].model.config
        image_file = _read("--image", Path(image), MODES[model.channels])
        mask_file = _read("--mask", Path(mask), "L")
        if image_file.size != mask_file.size:
            raise UsageError(
                f"{mask} is {_size(mask_file)}, but {image} is {_size(image_file)}; they must have the same size"
            )
        pixels, white = (to_tensor(resize_and_crop(each, *model.size)) for each in (image_file, mask_file))
        return Canvas(pixels, white[0] >= 0.5)


def _fit_to_base(config: MuseConfig, tokenizer: Pipeline[Any], base: Pipeline[Any]) -> MuseConfig:
    if not isinstance(base, MusePipeline) or "base" in base.frozen:
        kind = "a super-resolution model" if base.recipe == "muse" else f"a run of recipe '{base.recipe}'"
        raise UsageError(f"--base needs a muse run without a base of its own, but {base.reference} is {kind}")
    low_res = base.config.model
    low, high = base.frozen["tokenizer"].model.config, tokenizer.model.config
    if low.channels != high.channels or low.size[0] * high.size[1] != low.size[1] * high.size[0]:
        raise UsageError(
            f"the base {base.reference} generates {_shape(low)}, but the tokenizer {tokenizer.reference} has "
            f"{_shape(high)}; both need the same number of channels and the same aspect ratio"
        )
    return config.adopt(
        f"the base {base.reference}", {"model.low_res_grid": low_res.grid, "model.low_res_num_codes": low_res.num_codes}
    )


def _read(option: str, path: Path, mode: Any) -> Any:
    try:
        return read_image(path, mode=mode)
    except UnreadableItem as problem:
        raise UsageError(f"{option} {path}: {problem}") from None


def _shape(config: Any) -> str:
    return f"{config.size[0]} x {config.size[1]} pixels with {config.channels} channels"


def _size(image: Any) -> str:
    return f"{image.width} x {image.height} pixels"
