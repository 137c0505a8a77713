"""Owns how Muse is trained on the codes of a tokenizer, how it is measured, and how it draws what a text says."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from quintet.common.batch import Batch
from quintet.common.statistics import Statistics
from quintet.data.captioned import check_request, found_keys
from quintet.data.image import MODES
from quintet.data.splits import Splits
from quintet.errors import UnreadableItem, UsageError
from quintet.families.muse.config import MuseConfig
from quintet.families.muse.data import code_splits
from quintet.families.muse.model import Canvas, Muse, Stage
from quintet.media.image import EXTENSIONS, image_grid, read_image, resize_and_crop, to_tensor, write_image
from quintet.nn.codebook_smoothing import check_alike
from quintet.nn.maskgit import MaskGit, TokenCritic
from quintet.pipelines.frozen import FrozenModel
from quintet.training.judge import judge_of, judged_rows
from quintet.training.maskgit_task import MaskGitTask, Rows, critic_of, start_from_codebook
from quintet.training.task import Artifact, Modules, Request

DRAWN_AT_ONCE = 32


class MuseTask(MaskGitTask[MuseConfig]):
    name = "muse"
    best: ClassVar[tuple[str, Literal["max", "min"]]] = ("loss", "min")
    options = ("negative", "image", "mask")

    def __init__(
        self,
        config: MuseConfig,
        tokenizer: FrozenModel | None = None,
        base: FrozenModel | None = None,
        maskgit: MaskGit | None = None,
    ) -> None:
        if tokenizer is None:
            raise UsageError("muse draws with the codes of a tokenizer: name one with --tokenizer RUN")
        config = _fitted(config, tokenizer, base)
        check_alike(config.loss.alike, tokenizer.model.quantizer.levels)
        super().__init__(config, tokenizer=tokenizer, **({"base": base} if base else {}))
        self.tokenizer = tokenizer
        self.base = base
        self.maskgit = maskgit or _new_model(config, tokenizer)
        self.is_new = maskgit is None
        if config.data.cache:
            self.maskgit.cache_texts(Path(config.data.cache))
        self.modules = {"maskgit": self.maskgit}
        if config.loss.critic:
            self.modules["critic"] = TokenCritic(config.model)
        self.phases = self.make_phases()

    def splits(self) -> Splits:
        return code_splits(self.config, self.tokenizer, self.base.recipe.links["tokenizer"] if self.base else None)

    def rows(self, batch: Batch, keep: Tensor | None = None, train: bool = False) -> Rows:
        return Rows(batch["codes"].flatten(1), self._conditioning(batch, keep))

    def _conditioning(self, batch: Batch, keep: Tensor | None = None) -> dict[str, Tensor]:
        # An empty caption is none, here as in drawing.
        there = torch.tensor([bool(text) for text in batch["texts"]])
        conditioning = self.maskgit.texts(batch["texts"], there if keep is None else keep & there)
        if self.base is not None:
            conditioning["low"] = batch["low"].flatten(1)
        return conditioning

    # --- looking ----------------------------------------------------------------------------------------------

    def measure_generated(self, modules: Modules, batch: Batch, split: str) -> Statistics:
        """What the judge of a synthetic data set finds in images generated from captions, and in reconstructions."""
        judge = judge_of(batch, split)
        if judge is None:
            return Statistics()
        drawn = self.muse(modules).draw(batch["texts"], batch.draw)
        kept = self.tokenizer.model.decode(batch["codes"])
        return Statistics(rows=judged_rows(judge, batch, split, drawn, kept))

    def sample(self, modules: Modules, batch: Batch) -> list[Artifact]:
        """A grid of pairs: the picture as the tokenizer has it, and what is drawn from its caption."""
        drawn = self.muse(modules).draw(batch["texts"], batch.draw)
        kept = self.tokenizer.model.decode(batch["codes"])
        grid = image_grid([picture for pair in zip(kept, drawn, strict=True) for picture in pair], columns=8)
        about = {"columns": "reconstruction, drawn from its caption", "texts": list(batch["texts"])}
        return [Artifact("drawn.png", lambda path: write_image(grid, path), about, torch.from_numpy(grid))]

    # --- drawing ----------------------------------------------------------------------------------------------

    def generate(self, modules: Modules, request: Request) -> list[Artifact]:
        check_request(self.config.model, request, self.config.sample.guidance, self.guidance())
        canvas, muse = self._canvas(request), self.muse(modules)
        pictures: list[Tensor] = []
        for part, draw in request.parts(DRAWN_AT_ONCE):
            pictures += muse.draw(part, draw, request.negative, canvas)
        texts, common = request.wanted, request.about(self.config.sample, "image")
        single = [
            Artifact(f"{number:03d}.png", partial(write_image, picture), {"text": text, "number": number, **common})
            for number, (picture, text) in enumerate(zip(pictures, texts, strict=True))
        ]
        grid = image_grid(pictures, columns=min(8, len(texts)))
        return [Artifact("grid.png", lambda path: write_image(grid, path), {"texts": texts, **common}), *single]

    def muse(self, modules: Modules) -> Muse:
        """The models put together for drawing, the base below if there is one."""
        own = self.stage(modules)
        if self.base is None:
            return Muse(own)
        assert isinstance(self.base.recipe, MuseTask)
        return Muse(self.base.recipe.stage(self.base.modules), own)

    def stage(self, modules: Modules) -> Stage:
        maskgit = modules["maskgit"]
        assert isinstance(maskgit, MaskGit)
        return Stage(maskgit, self.tokenizer.model, self.sampling(), critic_of(modules))

    def _canvas(self, request: Request) -> Canvas | None:
        """The picture to draw on, cut as pictures are for training."""
        if request.given is None or request.mask is None:
            return None
        shape = self.tokenizer.model.config
        try:
            place, option = request.given, "--image"
            picture = read_image(place, mode=MODES[shape.channels])
            place, option = request.mask, "--mask"
            mask = read_image(place, mode="L")
        except UnreadableItem as problem:
            raise UsageError(f"{option} {place}: {problem}") from None
        if picture.size != mask.size:
            raise UsageError(
                f"{request.mask} is {_size(mask)}, but {request.given} is {_size(picture)}; they must be of one size"
            )
        pixels, hole = (to_tensor(resize_and_crop(image, *shape.size)) for image in (picture, mask))
        return Canvas(pixels, hole[0] >= 0.5)


def _new_model(config: MuseConfig, tokenizer: FrozenModel) -> MaskGit:
    model = MaskGit(config.model)
    start_from_codebook(model, tokenizer)
    return model


def _fitted(config: MuseConfig, tokenizer: FrozenModel, base: FrozenModel | None) -> MuseConfig:
    """The configuration with what follows from tokenizer, base and captions, which must not contradict it."""
    vae = tokenizer.model
    if not hasattr(vae, "code_shape"):
        raise UsageError(
            f"muse needs a tokenizer of pictures; {tokenizer.reference} is of recipe '{tokenizer.recipe.name}'"
        )
    found = {"model.grid": vae.code_shape, "model.num_codes": vae.num_codes}
    config = config.adopt(f"the tokenizer {tokenizer.reference}", found)
    if base is not None:
        if not isinstance(base.recipe, MuseTask) or base.recipe.base is not None:
            kind = "a super-resolution model itself" if base.recipe.name == "muse" else f"'{base.recipe.name}'"
            raise UsageError(f"--base takes a run of muse that draws by itself; {base.reference} is {kind}")
        below = base.recipe.config.model
        low, high = base.recipe.tokenizer.model.config, vae.config
        if low.channels != high.channels or low.size[0] * high.size[1] != low.size[1] * high.size[0]:
            raise UsageError(
                f"the base {base.reference} draws {_shape(low)}, the tokenizer {tokenizer.reference} has "
                f"{_shape(high)}; both need the same channels and the same ratio of height to width"
            )
        given = {"model.low_grid": below.grid, "model.low_codes": below.num_codes}
        config = config.adopt(f"the base {base.reference}", given)
    elif config.model.low_grid is not None:
        raise UsageError("this is a super-resolution model: name the run below it with --base RUN")
    return config.changed(found_keys(config.model, config.data, EXTENSIONS))


def _shape(config: Any) -> str:
    return f"{config.size[0]} x {config.size[1]} pixels of {config.channels} channels"


def _size(image: Any) -> str:
    return f"{image.width} x {image.height} pixels"
