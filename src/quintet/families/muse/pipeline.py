"""`MusePipeline`: texts to images."""

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

IMAGES_AT_ONCE = 32


class MusePipeline(MaskGitPipeline[MuseConfig]):
    """Text to image, with the super-resolution model above it if there is one.

    images = MusePipeline.from_pretrained("runs/muse")(["a red circle"], num=4, seed=0)
    """

    recipe = "muse"

    @classmethod
    def fit(cls, config: MuseConfig, frozen: Frozen) -> MuseConfig:
        tokenizer, base = frozen.get("tokenizer"), frozen.get("base")
        if tokenizer is None:
            raise UsageError("muse draws with the codes of a tokenizer: name one with --tokenizer RUN")
        vae = tokenizer.model
        if not isinstance(tokenizer, Tokenizer) or not hasattr(vae, "code_shape"):
            raise UsageError(
                f"muse needs a tokenizer of pictures; {tokenizer.reference} is of recipe '{tokenizer.recipe}'"
            )
        found = {"model.grid": vae.code_shape, "model.num_codes": vae.num_codes}
        config = config.adopt(f"the tokenizer {tokenizer.reference}", found)
        if base is not None:
            config = _fit_to_base(config, tokenizer, base)
        elif config.model.low_res_grid is not None:
            raise UsageError("this is a super-resolution model: name the run below it with --base RUN")
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

        With `image` and `mask`, two files of one size, only the white part of the mask is made; the rest stays.
        """
        asked = Prompts.of(prompts, num, seed)
        check_prompts(
            self.config.model, asked.texts, negative_prompt, self.config.sample.guidance_scale, self.guidance_scale
        )
        canvas = self._read_canvas(image, mask)
        images: list[Tensor] = []
        with self.inference():
            for texts, rng in asked.batches(IMAGES_AT_ONCE):
                images += self.generate(texts, rng, negative_prompt, canvas)
        return torch.stack(images)

    def generate(
        self, texts: Sequence[str], rng: ItemRNG, negative: str | None = None, canvas: Canvas | None = None
    ) -> Tensor:
        """Images of one batch of texts, by the random numbers of its items."""
        return self.muse().generate(texts, rng, negative, canvas)

    def files(self, prompts: Sequence[str], options: MuseOptions) -> list[Artifact]:
        """Each image, and a sheet of all of them."""
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
        """The models put together, the base below if there is one."""
        base = self.frozen.get("base")
        return Muse(self.stage()) if base is None else Muse(base.stage(), self.stage())  # type: ignore[attr-defined]

    def stage(self) -> Stage:
        return Stage(self.maskgit, self.frozen["tokenizer"].model, self.sampling(), self.critic)

    def _read_canvas(self, image: str | Path | None, mask: str | Path | None) -> Canvas | None:
        """The image to draw on, cut as images are for training."""
        if (image is None) != (mask is None):
            raise UsageError(
                "--image and --mask belong together: the mask says which part of the picture is drawn anew"
            )
        if image is None or mask is None:
            return None
        shape = self.frozen["tokenizer"].model.config
        picture = _read("--image", Path(image), MODES[shape.channels])
        hole = _read("--mask", Path(mask), "L")
        if picture.size != hole.size:
            raise UsageError(f"{mask} is {_size(hole)}, but {image} is {_size(picture)}; they must be of one size")
        pixels, marked = (to_tensor(resize_and_crop(each, *shape.size)) for each in (picture, hole))
        return Canvas(pixels, marked[0] >= 0.5)


def _fit_to_base(config: MuseConfig, tokenizer: Pipeline[Any], base: Pipeline[Any]) -> MuseConfig:
    if not isinstance(base, MusePipeline) or "base" in base.frozen:
        kind = "a super-resolution model itself" if base.recipe == "muse" else f"'{base.recipe}'"
        raise UsageError(f"--base takes a run of muse that draws by itself; {base.reference} is {kind}")
    below = base.config.model
    low, high = base.frozen["tokenizer"].model.config, tokenizer.model.config
    if low.channels != high.channels or low.size[0] * high.size[1] != low.size[1] * high.size[0]:
        raise UsageError(
            f"the base {base.reference} draws {_shape(low)}, the tokenizer {tokenizer.reference} has "
            f"{_shape(high)}; both need the same channels and the same ratio of height to width"
        )
    return config.adopt(
        f"the base {base.reference}", {"model.low_res_grid": below.grid, "model.low_res_num_codes": below.num_codes}
    )


def _read(option: str, path: Path, mode: Any) -> Any:
    try:
        return read_image(path, mode=mode)
    except UnreadableItem as problem:
        raise UsageError(f"{option} {path}: {problem}") from None


def _shape(config: Any) -> str:
    return f"{config.size[0]} x {config.size[1]} pixels of {config.channels} channels"


def _size(image: Any) -> str:
    return f"{image.width} x {image.height} pixels"
