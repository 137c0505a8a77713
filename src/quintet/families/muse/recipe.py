"""Owns how Muse is trained on the codes of a tokenizer, how it is measured, and how it draws what a text says."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from quintet.core import collectives
from quintet.core.batch import Batch, collate
from quintet.core.draw import Draw
from quintet.core.engine import choose_device
from quintet.core.link import Link
from quintet.core.recipe import Artifact, Loss, Nets, Output, Phase, Recipe, Request, Sources
from quintet.core.statistics import Statistics
from quintet.data.code_cache import CacheKey, CodeCache, CodeSource, default_folder
from quintet.data.pictures import folder_sources
from quintet.data.shapes_judge import ATTRIBUTES, judge, match
from quintet.errors import UsageError
from quintet.families.muse.config import MuseConfig
from quintet.generate import masked
from quintet.media.image import image_grid, to_uint8, write_image
from quintet.nn.maskgit import MaskGit, TokenCritic

SELF_CONDITIONED = 0.9
"""Share of rows that see the model's own prediction, where it is trained to."""

RATIOS = (0.25, 0.5, 0.75, 1.0)
"""Shares of masked tokens at which validation looks."""


class MuseRecipe(Recipe[MuseConfig]):
    name = "muse"
    best: ClassVar[tuple[str, Literal["max", "min"]]] = ("loss", "min")
    exported = "maskgit"

    def __init__(self, config: MuseConfig, tokenizer: Link | None = None, maskgit: MaskGit | None = None) -> None:
        if tokenizer is None:
            raise UsageError("muse draws with the codes of a tokenizer: name one with --tokenizer RUN")
        config = _fitted(config, tokenizer)
        super().__init__(config, tokenizer=tokenizer)
        self.tokenizer = tokenizer
        self.maskgit = maskgit or MaskGit(config.model)
        self.modules = {"maskgit": self.maskgit}
        self.phases = [Phase("generator", ("maskgit",), self.generator_loss, config.optim.for_phase())]
        if config.loss.critic:
            self.critic = TokenCritic(config.model)
            self.modules["critic"] = self.critic
            self.phases.append(
                Phase("critic", ("critic",), self.critic_loss, config.optim.for_phase(config.optim.critic))
            )

    @property
    def averaged(self) -> tuple[str, ...]:
        return tuple(self.modules)

    # --- data -------------------------------------------------------------------------------------------------

    def sources(self) -> Sources:
        """The codes of the pictures, encoded where they are not yet, with their captions."""
        data, vae = self.config.data, self.tokenizer.model
        media = folder_sources(data, vae.config.size, vae.config.channels)
        self._check_captions(media)
        self.tokenizer.model.to(choose_device(self.config.engine.device))
        train = self._codes(media.train, f"{media.fingerprint} train", data.variants)
        validation = self._codes(media.validation, f"{media.fingerprint} validation", 1)
        skipped = {**media.skipped, **_named(train), **_named(validation)}
        return Sources(train, validation, media.fingerprint, skipped, media.about)

    def _codes(self, media: Any, data: str, variants: int) -> CodeSource:
        own = self.config.data
        transform = f"{media.height} x {media.width} {media.mode} {own.truncated}"
        if media.train and (own.flip or own.random_crop):
            transform += f" flip={own.flip} crop={own.random_crop}"
        folder = Path(own.cache) if own.cache else default_folder()
        key = CacheKey(self.tokenizer.digest, data, transform, variants)
        return CodeCache(folder, key, media, collate, self.tokenizer.encode, _tell).open()

    def _check_captions(self, media: Sources) -> None:
        if self.config.model.text == "none":
            return
        entries = [entry for source in (media.train, media.validation) for entry in source.entries]  # type: ignore[attr-defined]
        most = self.config.model.text_length - 2
        long = [entry.file for entry in entries if len((entry.text or "").encode()) > most]
        if long:
            _say(
                f"{len(long)} captions have more than {most} bytes and are cut, that of {long[0]} for one "
                "(model.text_length)"
            )
        missing = [entry.file for entry in entries if not entry.text]
        if missing and not self.config.data.empty_captions:
            raise UsageError(
                f"{len(missing)} of {len(entries)} pictures have no caption, {missing[0]} for one; add captions, train "
                "with data.empty_captions=true, or without text (model.text=none)"
            )

    # --- training ---------------------------------------------------------------------------------------------

    def forward(self, nets: Nets, batch: Batch, step: int) -> Output:
        codes = batch["codes"].flatten(1)
        hidden = masked.training_mask(
            batch.draw, torch.ones(codes.shape, dtype=torch.bool), masked.SCHEDULES[self.config.loss.schedule]
        ).to(codes.device)
        keep = batch.draw.uniform("keep text") >= self.config.loss.drop_text
        conditioning = self.maskgit.texts(batch["texts"], keep)
        tokens = codes.masked_fill(hidden, self.maskgit.mask_id)
        previous = self._own_prediction(nets, batch, tokens, conditioning)
        logits = nets["maskgit"](tokens, conditioning, where=hidden, previous=previous)
        return Output({"codes": codes, "hidden": hidden, "logits": logits, "conditioning": conditioning})

    def _own_prediction(
        self, nets: Nets, batch: Batch, tokens: Tensor, conditioning: dict[str, Tensor]
    ) -> Tensor | None:
        """What the model would say without help, for most rows; the others learn to do without."""
        if not self.config.model.self_conditioning:
            return None
        with torch.no_grad():
            logits: Tensor = self.maskgit(tokens, conditioning)
        helped = batch.draw.uniform("self-conditioning").to(logits.device) < SELF_CONDITIONED
        return logits * helped[:, None, None]

    def generator_loss(self, nets: Nets, batch: Batch, output: Output, step: int) -> Loss:
        logits, target = output["logits"], output["codes"][output["hidden"]]
        each = F.cross_entropy(
            _wide(logits), target, reduction="none", label_smoothing=self.config.loss.label_smoothing
        )
        everything = torch.ones_like(each, dtype=torch.bool)
        right = (logits.argmax(-1) == target).to(each.dtype)
        return Loss(
            collectives.mean_over_ranks(each, everything), {"accuracy": collectives.mean_over_ranks(right, everything)}
        )

    def critic_loss(self, nets: Nets, batch: Batch, output: Output, step: int) -> Loss:
        """Is a token the original one, where the generator has made it?"""
        codes, hidden = output["codes"], output["hidden"]
        chances = batch.draw.uniform("critic", codes.shape[1]).to(codes.device)[hidden]
        weights = _wide(output["logits"].detach()).softmax(-1).cumsum(-1)
        guesses = (weights < chances[:, None] * weights[:, -1:]).sum(-1).clamp(max=self.maskgit.mask_id - 1)
        tokens = codes.masked_scatter(hidden, guesses)
        scores = _wide(nets["critic"](tokens, output["conditioning"]))
        each = F.binary_cross_entropy_with_logits(scores, (tokens != codes).to(scores.dtype), reduction="none")
        return Loss(collectives.mean_over_ranks(each, hidden))

    # --- looking ----------------------------------------------------------------------------------------------

    def measure(self, nets: Nets, batch: Batch) -> Statistics:
        """Loss and accuracy at fixed shares of masked tokens, the same ones every time."""
        codes = batch["codes"].flatten(1)
        conditioning = self.maskgit.texts(batch["texts"])
        sums: dict[str, Tensor] = {}
        for ratio in RATIOS:
            everything = torch.ones(codes.shape, dtype=torch.bool)
            hidden = masked.training_mask(batch.draw, everything, partial(_always, ratio), f"at {ratio}")
            hidden = hidden.to(codes.device)
            tokens = codes.masked_fill(hidden, self.maskgit.mask_id)
            logits, target = _wide(nets["maskgit"](tokens, conditioning, where=hidden)), codes[hidden]
            sums[f"loss/{ratio}"] = F.cross_entropy(logits, target, reduction="sum")
            sums[f"right/{ratio}"] = (logits.argmax(-1) == target).sum().to(logits.dtype)
            sums[f"count/{ratio}"] = hidden.sum().to(logits.dtype)
        return Statistics(sums)

    def measure_generated(self, nets: Nets, batch: Batch) -> Statistics:
        """What the judge of the embedded data finds in pictures drawn from captions, and in reconstructions."""
        if "objects" not in batch:
            return Statistics()
        drawn = self._draw(nets, batch["texts"], batch.draw)
        kept = self.tokenizer.model.decode(batch["codes"])
        found = {"": _judged(drawn, batch["objects"]), "_reconstruction": _judged(kept, batch["objects"])}
        rows = {f"{name}{kind}": values for kind, scores in found.items() for name, values in scores.items()}
        return Statistics(rows=rows)

    def summarise(self, statistics: Statistics) -> dict[str, float]:
        sums = statistics.sums
        figures: dict[str, float] = {}
        for name, kind in (("loss", "loss"), ("accuracy", "right")):
            at = {ratio: float(sums[f"{kind}/{ratio}"] / sums[f"count/{ratio}"]) for ratio in RATIOS}
            figures[name] = sum(at.values()) / len(at)
            figures.update({f"{name}_{ratio:.0%}".replace("%", ""): value for ratio, value in at.items()})
        figures.update({name: float(values.double().mean()) for name, values in statistics.rows.items()})
        return figures

    def sample(self, nets: Nets, batch: Batch) -> list[Artifact]:
        """A grid of pairs: the picture as the tokenizer has it, and what is drawn from its caption."""
        drawn = self._draw(nets, batch["texts"], batch.draw)
        kept = self.tokenizer.model.decode(batch["codes"])
        grid = image_grid([picture for pair in zip(kept, drawn, strict=True) for picture in pair], columns=8)
        about = {"columns": "reconstruction, drawn from its caption", "texts": list(batch["texts"])}
        return [Artifact("drawn.png", lambda path: write_image(grid, path), about, torch.from_numpy(grid))]

    def generate(self, nets: Nets, request: Request) -> list[Artifact]:
        texts = [text for text in request.texts for _ in range(request.num)]
        if any(texts) and self.config.model.text == "none":
            raise UsageError("this model was trained without text (model.text=none); leave --text out")
        if self.config.sample.guidance != self._guidance():
            _say("warning: drawn without guidance, because no text was dropped in training (loss.drop_text)")
        pictures = self._draw(
            nets, texts, Draw(request.seed, [0] * len(texts), range(len(texts))), negative=request.negative
        )
        settings = self.config.sample.model_dump(mode="json", exclude={"every", "num"})
        about = [
            {"text": text, "seed": request.seed, "number": number, "settings": settings}
            for number, text in enumerate(texts)
        ]
        single = [
            Artifact(f"{number:03d}.png", partial(write_image, picture), facts)
            for number, (picture, facts) in enumerate(zip(pictures, about, strict=True))
        ]
        grid = image_grid(list(pictures), columns=min(8, len(texts)))
        whole = {"texts": texts, "seed": request.seed, "settings": settings}
        return [Artifact("grid.png", lambda path: write_image(grid, path), whole), *single]

    def _draw(self, nets: Nets, texts: Sequence[str], draw: Draw, negative: str | None = None) -> Tensor:
        """Pictures in [0, 1] from texts."""
        config, maskgit = self.config.sample, nets["maskgit"]
        assert isinstance(maskgit, MaskGit)
        settings = masked.Sampling(
            steps=config.steps,
            temperature=config.temperature,
            anneal_temperature=masked.ANNEALS[config.anneal],
            top_k=config.top_k,
            top_p=config.top_p,
            guidance=self._guidance(),
            guidance_schedule=masked.GROWTHS[config.guidance_schedule],
            choice_noise=config.choice_noise,
        )
        count = len(texts)
        device = maskgit.embedding.weight.device
        conditioning = maskgit.texts(texts)
        against = maskgit.texts([negative or ""] * count, None if negative else torch.zeros(count, dtype=torch.bool))
        conditioning, against = _alike(conditioning, against)
        empty = torch.full((count, maskgit.length), maskgit.mask_id, device=device)

        def predict(
            tokens: Tensor, given: Mapping[str, Tensor], previous: Tensor | None
        ) -> tuple[Tensor, Tensor | None]:
            logits = maskgit(tokens, given, previous=previous)
            return logits, logits

        codes = masked.decode(
            predict,
            empty,
            torch.ones_like(empty, dtype=torch.bool),
            mask_id=maskgit.mask_id,
            draw=draw,
            settings=settings,
            conditioning=conditioning,
            against=against,
            critic=nets.get("critic"),
        )
        pictures: Tensor = self.tokenizer.model.decode(codes.view(count, *maskgit.grid))
        return pictures

    def _guidance(self) -> float:
        """None for a model that knows no difference between a text and none."""
        guides = self.config.model.text != "none" and self.config.loss.drop_text > 0
        return self.config.sample.guidance if guides else 1.0


def _fitted(config: MuseConfig, tokenizer: Link) -> MuseConfig:
    """The configuration with the tokenizer's grid and vocabulary, which must not contradict it."""
    vae = tokenizer.model
    if not hasattr(vae, "num_codes") or not hasattr(vae.config, "grid"):
        raise UsageError(
            f"muse needs a tokenizer of pictures; {tokenizer.reference} is of recipe '{tokenizer.recipe.name}'"
        )
    grid = (*vae.config.grid, *([vae.quantizer.levels] if vae.quantizer.levels > 1 else []))
    for key, own, theirs in (
        ("grid", config.model.grid, grid),
        ("num_codes", config.model.num_codes, vae.num_codes),
    ):
        if own is not None and own != theirs:
            raise UsageError(f"model.{key}={own}, but the tokenizer {tokenizer.reference} has {theirs}")
    fitted = config.changed({"model.grid": list(grid), "model.num_codes": vae.num_codes})
    assert isinstance(fitted, MuseConfig)
    return fitted


def _named(source: CodeSource) -> dict[str, str]:
    return {source.name(item): reason for item, reason in source.skipped.items()}


def _always(share: float, progress: Tensor) -> Tensor:
    return torch.full_like(progress, share)


def _tell(done: int, total: int) -> None:
    _say(f"pictures encoded: {done} of {total}")


def _say(text: str) -> None:
    with suppress(OSError):  # a console on a full disk is no reason to stop
        sys.stderr.write(f"{text}\n")


def _wide(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()


def _alike(first: dict[str, Tensor], second: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Both padded to one length, so that they fit into one batch."""
    if not first:
        return first, second
    width = max(first["text"].shape[1], second["text"].shape[1])

    def padded(conditioning: Mapping[str, Tensor]) -> dict[str, Tensor]:
        missing = width - conditioning["text"].shape[1]
        return {name: F.pad(tensor, (0, missing)) for name, tensor in conditioning.items()}

    return padded(first), padded(second)


def _judged(pictures: Tensor, objects: Sequence[Any]) -> dict[str, Tensor]:
    """For each attribute, the share of promised objects that show it, picture by picture."""
    scores = [match(promised, judge(to_uint8(picture))) for picture, promised in zip(pictures, objects, strict=True)]
    return {f"match_{name}": torch.tensor([score[name] for score in scores]) for name in ATTRIBUTES}
