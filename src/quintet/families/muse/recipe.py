"""Owns how Muse is trained on the codes of a tokenizer, how it is measured, and how it draws what a text says."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from quintet.core import collectives
from quintet.core.batch import Batch
from quintet.core.link import Link
from quintet.core.recipe import Artifact, Loss, Nets, Output, Phase, Recipe, Request, Sources
from quintet.core.statistics import Statistics
from quintet.data.captioned import check_request, found_keys, possible_guidance
from quintet.data.pictures import MODES
from quintet.errors import UsageError
from quintet.families.muse.config import MuseConfig
from quintet.families.muse.judging import WITHHELD, judged
from quintet.families.muse.model import Canvas, Muse, Stage
from quintet.families.muse.sources import code_sources
from quintet.generate import masked, sampling
from quintet.media.image import EXTENSIONS, image_grid, read_image, resize_and_crop, to_tensor, write_image
from quintet.nn.maskgit import MaskGit, TokenCritic

SELF_CONDITIONED = 0.9
"""Share of rows that see the model's own prediction, where it is trained to."""

RATIOS = (0.25, 0.5, 0.75, 1.0)
"""Shares of masked tokens at which validation looks."""

DRAWN_AT_ONCE = 32


class MuseRecipe(Recipe[MuseConfig]):
    name = "muse"
    best: ClassVar[tuple[str, Literal["max", "min"]]] = ("loss", "min")
    exported = "maskgit"
    exported_beside = ("critic",)
    options = ("negative", "image", "mask")

    def __init__(
        self,
        config: MuseConfig,
        tokenizer: Link | None = None,
        base: Link | None = None,
        maskgit: MaskGit | None = None,
    ) -> None:
        if tokenizer is None:
            raise UsageError("muse draws with the codes of a tokenizer: name one with --tokenizer RUN")
        config = _fitted(config, tokenizer, base)
        super().__init__(config, tokenizer=tokenizer, **({"base": base} if base else {}))
        self.tokenizer = tokenizer
        self.base = base
        self.maskgit = maskgit or _new_model(config, tokenizer)
        if config.data.cache:
            self.maskgit.cache_texts(Path(config.data.cache))
        self.modules = {"maskgit": self.maskgit}
        if config.loss.critic:
            self.modules["critic"] = TokenCritic(config.model)
        self.phases = self._phases()

    def _phases(self) -> list[Phase]:
        config, critic = self.config, "critic" if self.config.loss.critic else "maskgit"
        generator = Phase("generator", ("maskgit",), self.generator_loss, config.optim.for_phase())
        judge = Phase("critic", (critic,), self.critic_loss, config.optim.for_phase(config.optim.critic))
        if config.loss.only == "critic":
            self.maskgit.requires_grad_(False)
            if self.maskgit.to_score is not None:
                self.maskgit.to_score.requires_grad_(True)
            return [judge]
        if config.loss.only == "generator":
            for module in (self.modules.get("critic"), self.maskgit.to_score):
                if module is not None:
                    module.requires_grad_(False)
        elif config.loss.critic:
            return [generator, judge]
        return [generator]

    @property
    def unprompted(self) -> bool:
        return self.config.model.text == "none"

    @property
    def averaged(self) -> tuple[str, ...]:
        return tuple(self.modules)

    def sources(self) -> Sources:
        return code_sources(self.config, self.tokenizer, self.base.recipe.links["tokenizer"] if self.base else None)

    # --- training ---------------------------------------------------------------------------------------------

    def forward(self, nets: Nets, batch: Batch, step: int) -> Output:
        codes = batch["codes"].flatten(1)
        hidden = masked.training_mask(
            batch.draw, torch.ones(codes.shape, dtype=torch.bool), masked.SCHEDULES[self.config.loss.schedule]
        ).to(codes.device)
        keep = batch.draw.uniform("keep text") >= self.config.loss.drop_text
        conditioning = self._conditioning(batch, keep)
        tokens = codes.masked_fill(hidden, self.maskgit.mask_id)
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.config.loss.only != "critic"):
            previous = self._own_prediction(batch, tokens, conditioning)
            logits = nets["maskgit"](tokens, conditioning, where=hidden, previous=previous)
        return Output({"codes": codes, "hidden": hidden, "logits": logits, "conditioning": conditioning})

    def _conditioning(self, batch: Batch, keep: Tensor | None = None) -> dict[str, Tensor]:
        # An empty caption is none, here as in drawing.
        there = torch.tensor([bool(text) for text in batch["texts"]])
        conditioning = self.maskgit.texts(batch["texts"], there if keep is None else keep & there)
        if self.base is not None:
            conditioning["low"] = batch["low"].flatten(1)
        return conditioning

    def _own_prediction(self, batch: Batch, tokens: Tensor, conditioning: dict[str, Tensor]) -> Tensor | None:
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
        loss = collectives.mean_over_ranks(each, everything)
        parts = {"accuracy": collectives.mean_over_ranks(right, everything)}
        if self.config.model.self_critic and self.config.loss.only is None:
            parts["self_critic"] = self.critic_loss(nets, batch, output, step).value
            loss = loss + parts["self_critic"]
        return Loss(loss, parts)

    def critic_loss(self, nets: Nets, batch: Batch, output: Output, step: int) -> Loss:
        """Is a token the original one, where the generator has made it?"""
        codes, hidden = output["codes"], output["hidden"]
        chances = batch.draw.uniform("critic", codes.shape[1]).to(codes.device)[hidden]
        tokens = codes.masked_scatter(hidden, sampling.guesses(output["logits"].detach(), chances))
        if "critic" in nets:
            scores = nets["critic"](tokens, output["conditioning"])
        else:
            scores = nets["maskgit"](tokens, output["conditioning"], scores=True)
        each = F.binary_cross_entropy_with_logits(_wide(scores), (tokens != codes).to(_wide(scores)), reduction="none")
        return Loss(collectives.mean_over_ranks(each, hidden))

    # --- looking ----------------------------------------------------------------------------------------------

    def measure(self, nets: Nets, batch: Batch) -> Statistics:
        """Loss and accuracy at fixed shares of masked tokens, the same ones every time."""
        codes = batch["codes"].flatten(1)
        conditioning = self._conditioning(batch)
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

    def measure_generated(self, nets: Nets, batch: Batch, split: str) -> Statistics:
        """What the judge of the embedded data finds in pictures drawn from captions, and in reconstructions."""
        if "objects" not in batch or split not in ("validation", WITHHELD):
            return Statistics()
        drawn = self.muse(nets).draw(batch["texts"], batch.draw)
        kept = self.tokenizer.model.decode(batch["codes"])
        rows = {
            f"{name}{kind}": values
            for kind, pictures in (("", drawn), ("_reconstruction", kept))
            for name, values in judged(pictures, batch["objects"], split).items()
        }
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
        drawn = self.muse(nets).draw(batch["texts"], batch.draw)
        kept = self.tokenizer.model.decode(batch["codes"])
        grid = image_grid([picture for pair in zip(kept, drawn, strict=True) for picture in pair], columns=8)
        about = {"columns": "reconstruction, drawn from its caption", "texts": list(batch["texts"])}
        return [Artifact("drawn.png", lambda path: write_image(grid, path), about, torch.from_numpy(grid))]

    # --- drawing ----------------------------------------------------------------------------------------------

    def generate(self, nets: Nets, request: Request) -> list[Artifact]:
        check_request(self.config.model, request, self.config.sample.guidance, self._guidance())
        canvas, muse = self._canvas(request), self.muse(nets)
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

    def muse(self, nets: Nets) -> Muse:
        """The models put together for drawing, the base below if there is one."""
        own = self.stage(nets)
        if self.base is None:
            return Muse(own)
        assert isinstance(self.base.recipe, MuseRecipe)
        return Muse(self.base.recipe.stage(self.base.nets), own)

    def stage(self, nets: Nets) -> Stage:
        maskgit, config = nets["maskgit"], self.config.sample
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
        return Stage(maskgit, self.tokenizer.model, settings, nets.get("critic"))

    def _guidance(self) -> float:
        return possible_guidance(self.config.model, self.config.loss.drop_text, self.config.sample.guidance)

    def _canvas(self, request: Request) -> Canvas | None:
        """The picture to draw on, cut as pictures are for training."""
        if request.given is None or request.mask is None:
            return None
        shape = self.tokenizer.model.config
        picture = read_image(request.given, mode=MODES[shape.channels])
        mask = read_image(request.mask, mode="L")
        if picture.size != mask.size:
            raise UsageError(
                f"{request.mask} is {_size(mask)}, but {request.given} is {_size(picture)}; they must be of one size"
            )
        pixels, hole = (to_tensor(resize_and_crop(image, *shape.size)) for image in (picture, mask))
        return Canvas(pixels, hole[0] >= 0.5)


def _new_model(config: MuseConfig, tokenizer: Link) -> MaskGit:
    model = MaskGit(config.model)
    quantizer = tokenizer.model.quantizer
    if quantizer.levels == 1:
        # Codes that look alike start alike: the model need not learn that from the pictures.
        model.start_from(quantizer.codes_to_vectors(torch.arange(quantizer.num_codes)).detach())
    return model


def _fitted(config: MuseConfig, tokenizer: Link, base: Link | None) -> MuseConfig:
    """The configuration with what follows from tokenizer, base and captions, which must not contradict it."""
    vae = tokenizer.model
    if not hasattr(vae, "code_shape"):
        raise UsageError(
            f"muse needs a tokenizer of pictures; {tokenizer.reference} is of recipe '{tokenizer.recipe.name}'"
        )
    found = {"model.grid": vae.code_shape, "model.num_codes": vae.num_codes}
    config = config.adopt(f"the tokenizer {tokenizer.reference}", found)
    if base is not None:
        if not isinstance(base.recipe, MuseRecipe) or base.recipe.base is not None:
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
    return config.changed(found_keys(config.model, config.data.path, EXTENSIONS))


def _shape(config: Any) -> str:
    return f"{config.size[0]} x {config.size[1]} pixels of {config.channels} channels"


def _always(share: float, progress: Tensor) -> Tensor:
    return torch.full_like(progress, share)


def _wide(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()


def _size(image: Any) -> str:
    return f"{image.width} x {image.height} pixels"
