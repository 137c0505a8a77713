"""Owns how Phenaki is trained on the codes of a tokenizer of video, how it is measured, and how it makes videos."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from quintet.common.batch import Batch, Dataset, Item
from quintet.common.rng import ItemRNG
from quintet.common.statistics import Statistics
from quintet.data.captioned import check_request, found_keys
from quintet.data.index.text_lines import read_lines
from quintet.data.splits import Splits
from quintet.errors import UsageError
from quintet.families.phenaki import data, judging
from quintet.families.phenaki.asking import check_frames, read_prime
from quintet.families.phenaki.config import PhenakiConfig
from quintet.families.phenaki.model import Phenaki
from quintet.media.image import image_grid, write_image
from quintet.media.names import caption_name
from quintet.media.video import EXTENSIONS
from quintet.media.video_writing import filmstrip, write_video
from quintet.nn.codebook_smoothing import check_alike
from quintet.nn.maskgit import MaskGit, TokenCritic
from quintet.pipelines.frozen import FrozenModel
from quintet.sampling.guidance import encode_prompts
from quintet.training.maskgit_task import MaskGitTask, Rows, critic_of, start_from_codebook
from quintet.training.task import Artifact, Modules, Request

MADE_AT_ONCE = 16
RATE = 8.0
"""Frames a second of what is written, where nothing says."""


class PhenakiTask(MaskGitTask[PhenakiConfig]):
    name = "phenaki"
    best: ClassVar[tuple[str, Literal["max", "min"]]] = ("loss", "min")
    options = ("negative", "prime", "scenes", "frames", "images")

    def __init__(
        self,
        config: PhenakiConfig,
        tokenizer: FrozenModel | None = None,
        maskgit: MaskGit | None = None,
        critic: TokenCritic | None = None,
    ) -> None:
        config = _fitted(config, tokenizer)
        check_alike(config.loss.alike, tokenizer.model.quantizer.levels if tokenizer else None)
        super().__init__(config, **({} if tokenizer is None else {"tokenizer": tokenizer}))
        self.tokenizer = tokenizer
        self.maskgit = maskgit or _new_model(config, tokenizer)
        self.is_new = maskgit is None
        if config.data.cache:
            self.maskgit.cache_texts(Path(config.data.cache))
        self.modules = {"maskgit": self.maskgit}
        if config.loss.critic:
            self.modules["critic"] = critic or TokenCritic(config.model)
        self.phases = self.make_phases()

    def link_to_tokenizer(self) -> FrozenModel:
        """What videos are encoded and decoded by; a model that is trained on codebook ids may have none."""
        if self.tokenizer is None:
            raise UsageError("this model knows no tokenizer, only codebook ids: there are no videos to read or to make")
        return self.tokenizer

    def splits(self) -> Splits:
        return data.clip_splits(self.config, self.link_to_tokenizer())

    def collate(self, items: Sequence[Item]) -> dict[str, Any]:
        return data.collate(items)

    def lengths(self, source: Dataset) -> Sequence[int] | None:
        """Moments; none where all clips have as many, and any order is as good."""
        lengths: list[int] = source.lengths() if hasattr(source, "lengths") else []
        return lengths if len({*lengths} - {0}) > 1 else None

    # --- training ---------------------------------------------------------------------------------------------

    def rows(self, batch: Batch, keep: Tensor | None = None, train: bool = False) -> Rows:
        if self.config.loss.order == "moments":
            return self._up_to_a_moment(batch, keep)
        valid: Tensor | None = batch.fields.get("there")
        codes = batch["codes"].flatten(1)
        conditioning = self._texts(batch, keep)
        if valid is not None:
            codes = codes.masked_fill(~valid, 0)
            conditioning["there"] = valid
        return Rows(codes, conditioning, valid, self._given(batch) if train and self.config.loss.primed else None)

    def _up_to_a_moment(self, batch: Batch, keep: Tensor | None) -> Rows:
        """Of each clip one moment to guess, with all before it given; what comes later is not there."""
        codes, there = batch["codes"], _moments(batch)
        chosen = self._moments_to_guess(batch, there.sum(1))
        if codes.device.type == "cpu":  # reading from a GPU would hold up every step
            codes = codes[:, : int(chosen.max()) + 1]
        numbers = torch.arange(codes.shape[1], device=codes.device)
        places = prod(codes.shape[2:])
        valid = (numbers <= chosen[:, None]).repeat_interleave(places, 1)
        given = (numbers < chosen[:, None]).repeat_interleave(places, 1)
        conditioning = self._texts(batch, keep) | {"there": valid}
        return Rows(codes.flatten(1).masked_fill(~valid, 0), conditioning, valid, given)

    def _moments_to_guess(self, batch: Batch, lengths: Tensor) -> Tensor:
        """The number of one moment of each clip."""
        chances, first = batch.draw.uniform("moment").to(lengths.device), self.config.loss.first_moment
        later = 1 + ((chances - first) / max(1 - first, 1e-9) * (lengths - 1)).long()
        return torch.where(chances < first, 0, later).minimum(lengths - 1)

    def _texts(self, batch: Batch, keep: Tensor | None) -> dict[str, Tensor]:
        if "vectors" in batch and self.config.model.text != "none":
            return self.maskgit.text_vectors(batch["vectors"], batch["words"], keep)
        # An empty caption is none, here as in sampling.
        there = torch.tensor([bool(text) for text in batch["texts"]])
        return self.maskgit.texts(batch["texts"], there if keep is None else keep & there)

    def _given(self, batch: Batch) -> Tensor:
        """Of some clips the first moments, at most all but the last, as codes; the model learns to go on from them."""
        moments = _moments(batch)
        lengths = moments.sum(1)
        primed = batch.draw.uniform("primed").to(lengths.device) < self.config.loss.primed
        chosen = (batch.draw.uniform("primed moments").to(lengths.device) * (lengths - 1)).long() + 1
        counts = torch.where(primed, chosen.minimum(lengths - 1), 0)
        given = torch.arange(moments.shape[1], device=lengths.device) < counts[:, None]
        return given.repeat_interleave(prod(batch["codes"].shape[2:]), 1)

    # --- looking ----------------------------------------------------------------------------------------------

    def measure_generated(self, modules: Modules, batch: Batch, split: str) -> Statistics:
        """What the judge of the embedded data finds in videos made from captions, and in reconstructions."""
        records: Any = batch.fields.get("motion")
        if self.tokenizer is None or not judging.are_known(records) or split not in ("validation", judging.WITHHELD):
            return Statistics()
        made, kept = self._made_again(modules, batch), self._kept(batch)
        rows = {
            f"{name}{kind}": values
            for kind, videos in (("", made), ("_reconstruction", kept))
            for name, values in judging.judged(videos, records, split).items()
        }
        return Statistics(rows=rows)

    def sample(self, modules: Modules, batch: Batch) -> list[Artifact]:
        """What is made from captions: those of `sample.texts`, or of clips, which then stand beside."""
        if self.tokenizer is None:
            return []
        texts = self.config.sample.texts
        if texts is not None:
            wanted = _captions(texts)
            made = self._from_texts(
                modules, wanted, ItemRNG(self.config.train.seed, [0] * len(wanted), range(len(wanted)))
            )
            return self._shown(made, wanted, {})
        captions, kept = list(batch["texts"]), self._kept(batch)
        made = self._made_again(modules, batch)
        strips = [filmstrip(video.cpu()) for pair in zip(kept, made, strict=True) for video in pair]
        sheet = image_grid(strips, columns=1, padding=0)
        about = {"rows": "reconstruction, made from its caption", "items": list(batch.names), "texts": captions}
        picture = Artifact("filmstrips.png", partial(write_image, sheet), about, torch.from_numpy(sheet))
        return [picture, *self._videos(made, captions, {})]

    def _kept(self, batch: Batch) -> list[Tensor]:
        """The clips of a batch as the tokenizer has them."""
        return self._decoded(batch["codes"], _moments(batch).sum(1).tolist())

    def _made_again(self, modules: Modules, batch: Batch) -> list[Tensor]:
        """Videos from the captions of a batch, as long as its own clips, or as `sample.frames` says."""
        phenaki = self.phenaki(modules)
        told = self._told_again(batch)
        if self.config.sample.frames is not None:
            return list(phenaki.film(told, batch.draw, self.config.sample.frames))
        there = _moments(batch)
        return self._decoded(phenaki.codes(told, batch.draw, there), there.sum(1).tolist())

    def _told_again(self, batch: Batch) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        nothing = torch.zeros(len(batch), dtype=torch.bool)
        return self._texts(batch, None), self._texts(batch, nothing)

    def _decoded(self, codes: Tensor, moments: Sequence[int]) -> list[Tensor]:
        model = self.link_to_tokenizer().model
        lengths = [model.config.frames(count) for count in moments]
        return [video[:, :length] for video, length in zip(model.decode(codes), lengths, strict=True)]

    # --- making videos ----------------------------------------------------------------------------------------

    def generate(self, modules: Modules, request: Request) -> list[Artifact]:
        asked = replace(request, texts=request.scenes) if request.scenes else request
        check_request(self.config.model, asked, self.config.sample.guidance, self.guidance())
        phenaki, config = self.phenaki(modules), self.config
        if request.stills:
            return self._stills(phenaki, request)
        frames = request.frames or config.sample.frames
        if frames is not None and not request.scenes:
            check_frames("--frames" if request.frames else "sample.frames", frames, phenaki.step)
        start = None
        if request.given is not None:
            prime = read_prime(request.given, phenaki, config.data, None if request.scenes else frames)
            start = phenaki.begun(prime, 1)
        videos: list[Tensor] = []
        for texts, draw in request.parts(MADE_AT_ONCE):
            begun = None if start is None else start.expand(len(texts), -1, -1, -1, -1)
            if request.scenes:
                videos += phenaki.story(request.scenes, draw, frames, begun, request.negative)
            else:
                told = encode_prompts(self.maskgit, texts, request.negative)
                videos += phenaki.film(told, draw, frames or phenaki.length_after(start), begun)
        common = request.about(config.sample, "prime")
        if request.scenes:
            common |= {"scenes": list(request.scenes)}
        return self._shown(videos, request.wanted, common)

    def _from_texts(self, modules: Modules, texts: Sequence[str], draw: ItemRNG) -> list[Tensor]:
        phenaki = self.phenaki(modules)
        told = encode_prompts(self.maskgit, texts, None)
        return list(phenaki.film(told, draw, self.config.sample.frames or phenaki.longest))

    def _stills(self, phenaki: Phenaki, request: Request) -> list[Artifact]:
        pictures: list[Tensor] = []
        for texts, draw in request.parts(MADE_AT_ONCE):
            videos = phenaki.film(encode_prompts(self.maskgit, texts, request.negative), draw, 1)
            pictures += [video[:, 0].cpu() for video in videos]
        common = request.about(self.config.sample)
        single = [
            Artifact(caption_name(number, text, ".png"), partial(write_image, picture), {"text": text, **common})
            for number, (picture, text) in enumerate(zip(pictures, request.wanted, strict=True))
        ]
        grid = image_grid(pictures, columns=min(8, len(pictures)))
        return [Artifact("grid.png", partial(write_image, grid), {"texts": request.wanted, **common}), *single]

    def _shown(self, videos: Sequence[Tensor], texts: Sequence[str], common: dict[str, Any]) -> list[Artifact]:
        """Each video as MP4 and GIF, and a picture with a row for each of them."""
        sheet = image_grid([filmstrip(video.cpu()) for video in videos], columns=1, padding=0)
        picture = Artifact(
            "filmstrip.png", partial(write_image, sheet), {"texts": list(texts), **common}, torch.from_numpy(sheet)
        )
        return [picture, *self._videos(videos, texts, common)]

    def _videos(self, videos: Sequence[Tensor], texts: Sequence[str], common: dict[str, Any]) -> list[Artifact]:
        rate = self.config.sample.fps or self.config.data.fps or RATE
        return [
            Artifact(
                caption_name(number, text, extension),
                partial(write_video, video.float().cpu(), rate=rate),
                {"text": text, "number": number, "frames": video.shape[1], "fps": rate, **common},
            )
            for number, (video, text) in enumerate(zip(videos, texts, strict=True))
            for extension in (".mp4", ".gif")
        ]

    def phenaki(self, modules: Modules) -> Phenaki:
        """The models put together."""
        maskgit = modules["maskgit"]
        assert isinstance(maskgit, MaskGit)
        return Phenaki(
            maskgit,
            self.link_to_tokenizer().model,
            critic_of(modules),
            self.sampling(),
            self.config.sample.overlap,
            self.config.loss.order,
            self.config.sample.later_steps,
        )


def _moments(batch: Batch) -> Tensor:
    """Which moments of codes there are, (batch, moments)."""
    there: Tensor = (batch["codes"] >= 0).flatten(2).any(2)
    return there


def _new_model(config: PhenakiConfig, tokenizer: FrozenModel | None) -> MaskGit:
    model = MaskGit(config.model)
    if tokenizer is not None:
        start_from_codebook(model, tokenizer)
    return model


def _fitted(config: PhenakiConfig, tokenizer: FrozenModel | None) -> PhenakiConfig:
    """The configuration with what follows from tokenizer, captions and files, which must not contradict it."""
    if tokenizer is not None:
        config = _fitted_to_tokenizer(config, tokenizer)
    elif config.model.grid is None or config.model.num_codes is None:
        raise UsageError("phenaki makes the codes of a tokenizer of video: name one with --tokenizer RUN")
    if config.sample.texts is not None:
        # The captions themselves: the run needs them when the file is gone.
        config = config.changed({"sample.texts": _captions(config.sample.texts)})
    return config.changed(found_keys(config.model, config.data, EXTENSIONS))


def _captions(texts: str | Sequence[str]) -> list[str]:
    """Of `sample.texts`: themselves, or those of a file."""
    return read_lines(Path(texts), "sample.texts", "caption") if isinstance(texts, str) else list(texts)


def _fitted_to_tokenizer(config: PhenakiConfig, tokenizer: FrozenModel) -> PhenakiConfig:
    model = tokenizer.model
    if not hasattr(model.config, "temporal_patch"):
        raise UsageError(
            f"phenaki needs a tokenizer of video; {tokenizer.reference} is of recipe '{tokenizer.recipe.name}'"
        )
    frames, step = config.data.frames, model.config.temporal_patch
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
