"""Owns how SoundStorm is trained on the codes of a codec, how it is measured, and how it makes what a text says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from quintet.common.batch import Batch, Dataset, Item
from quintet.common.logging import say
from quintet.common.precision import at_least_fp32
from quintet.common.statistics import Statistics
from quintet.data.splits import Splits
from quintet.data.token_files import read_semantic
from quintet.errors import UsageError
from quintet.families.soundstorm import data, judging
from quintet.families.soundstorm.config import SoundStormConfig
from quintet.families.soundstorm.listening import Listener
from quintet.families.soundstorm.making import Made, Studio, level_settings
from quintet.families.soundstorm.masking import Hidden, hide, hide_level
from quintet.families.soundstorm.model import SoundStorm
from quintet.families.soundstorm.prompt import frames_of, read_prompt
from quintet.media.audio import write_audio
from quintet.media.image import image_grid, write_image
from quintet.media.spectrogram import spectrogram
from quintet.nn.frechet import frechet_distance
from quintet.pipelines.frozen import FrozenModel
from quintet.sampling import filters, masked
from quintet.training.engine import Engine
from quintet.training.maskgit_task import refuse_untrained, score_loss, token_loss
from quintet.training.task import Artifact, Loss, Modules, Output, Phase, Request, Task

SELF_CONDITIONED = 0.75
"""Share of rows that see what the model made of them before, where it is trained to."""
MADE_AT_ONCE = 16
SHOWN = 320
"""Pixels of the time axis of a spectrogram."""


class SoundStormTask(Task[SoundStormConfig]):
    name = "soundstorm"
    best: ClassVar[tuple[str, Literal["max", "min"]]] = ("loss", "min")
    exported = "soundstorm"
    options = ("prompt", "seconds")
    shardable = True

    def __init__(
        self,
        config: SoundStormConfig,
        tokenizer: FrozenModel | None = None,
        condition: FrozenModel | None = None,
        soundstorm: SoundStorm | None = None,
    ) -> None:
        listener = Listener(condition, config.data.clip) if condition is not None else None
        config = _fitted(config, tokenizer, listener)
        links = {"tokenizer": tokenizer, "condition": condition}
        super().__init__(config, **{name: link for name, link in links.items() if link is not None})
        self.tokenizer = tokenizer
        self.listener = listener
        self.soundstorm = soundstorm or _new_model(config, tokenizer)
        self.is_new = soundstorm is None
        self.modules = {"soundstorm": self.soundstorm}
        self.phases = [self._phase()]

    def _phase(self) -> Phase:
        only, optim = self.config.loss.only, self.config.optim.for_phase()
        critic = self.soundstorm.to_score
        if only == "critic":
            assert critic is not None
            self.soundstorm.requires_grad_(False)
            critic.requires_grad_(True)
            return Phase("critic", ("soundstorm",), self.critic_loss, optim)
        if only == "generator" and critic is not None:
            critic.requires_grad_(False)
        return Phase("generator", ("soundstorm",), self.generator_loss, optim)

    @property
    def unprompted(self) -> bool:
        return not self.config.model.conditioned

    @property
    def prompted(self) -> bool:
        return self.listener is not None and self.config.model.semantic_codes is None

    def splits(self) -> Splits:
        return data.clip_splits(self.config, self.link_to_codec(), self.listener)

    def link_to_codec(self) -> FrozenModel:
        """What sounds are encoded and decoded by; a model that is trained on token ids may have none."""
        if self.tokenizer is None:
            raise UsageError("this model knows no codec, only token ids: there are no sounds to read or to make")
        return self.tokenizer

    def collate(self, items: Sequence[Item]) -> dict[str, Any]:
        return data.collate(items)

    def lengths(self, source: Dataset) -> Sequence[int] | None:
        return source.lengths() if hasattr(source, "lengths") else None

    # --- training ---------------------------------------------------------------------------------------------

    def initialise(self, modules: Modules, batches: Iterable[Batch], engine: Engine) -> None:
        if self.config.loss.only == "critic":
            refuse_untrained(self.is_new and self.config.init is None)

    def forward(self, modules: Modules, batch: Batch, step: int) -> Output:
        loss, model = self.config.loss, self.soundstorm
        schedule = masked.SCHEDULES[loss.schedule]
        hidden = hide(
            batch["codes"], batch["frames"], batch.draw, model.mask_id, schedule, loss.span, loss.coarse_first
        )
        keep = batch.draw.uniform("keep condition") >= loss.drop_condition
        told = self._told(batch, self._clips(batch), keep)
        with torch.set_grad_enabled(torch.is_grad_enabled() and loss.only != "critic"):
            previous = self._own_vectors(batch, hidden, told)
            logits = modules["soundstorm"](hidden.tokens, told, hidden.levels, where=hidden.where, previous=previous)
        return Output({"hidden": hidden, "told": told, "logits": logits})

    def _clips(self, batch: Batch) -> Tensor | None:
        """The vectors that clips are told by in training: their sound's, or for some their caption's."""
        if self.listener is None:
            return None
        clip: Tensor = batch["clip"]
        if "caption" in batch:
            drawn = batch.draw.uniform("tell caption").to(clip.device) < self.config.loss.tell_caption
            clip = torch.where((drawn & batch["captioned"])[:, None], batch["caption"], clip)
        return clip

    def _told(self, batch: Batch, clip: Tensor | None, keep: Tensor | None = None) -> dict[str, Tensor]:
        semantic = batch.fields.get("semantic")
        if clip is not None and self.listener is not None:
            clip = self.listener.told(clip)
        return self.soundstorm.tell(batch["frames"], semantic, clip, keep)

    def _own_vectors(self, batch: Batch, hidden: Hidden, told: dict[str, Tensor]) -> Tensor | None:
        """What the model makes of the same clips without help, for most rows; the others learn to do without."""
        if not self.config.model.self_conditioning:
            return None
        with torch.no_grad():
            vectors: Tensor = self.soundstorm(hidden.tokens, told, hidden.levels, want="vectors")
        helped = batch.draw.uniform("self-conditioning").to(vectors.device) < SELF_CONDITIONED
        return vectors * helped[:, None, None]

    def generator_loss(self, modules: Modules, batch: Batch, output: Output, step: int) -> Loss:
        loss = token_loss(output["logits"], output["hidden"].targets, self.config.loss.label_smoothing)
        if self.config.model.self_critic and self.config.loss.only is None:
            opinion = self.critic_loss(modules, batch, output, step).value
            return Loss(loss.value + opinion, {**loss.parts, "self_critic": opinion})
        return loss

    def critic_loss(self, modules: Modules, batch: Batch, output: Output, step: int) -> Loss:
        """Is a code the original one, where the generator has made it?"""
        hidden, logits = output["hidden"], output["logits"]
        chances = batch.draw.uniform("critic", hidden.where.shape[1]).to(logits.device)[hidden.where]
        made = filters.guesses(logits.detach(), chances)
        scores = modules["soundstorm"](
            hidden.filled(made), output["told"], hidden.levels, where=hidden.where, want="scores"
        )
        return Loss(score_loss(scores, made != hidden.targets))

    # --- looking ----------------------------------------------------------------------------------------------

    def measure(self, modules: Modules, batch: Batch) -> Statistics:
        """Loss and accuracy of each level behind no prompt, with the same codes hidden every time."""
        codes, frames = batch["codes"], batch["frames"]
        told = self._told(batch, batch["clip"] if self.listener is not None else None)
        nowhere = torch.zeros(len(codes), dtype=torch.long, device=codes.device)
        sums: dict[str, Tensor] = {}
        for level in range(self.soundstorm.levels):
            name, levels = f"level_{level + 1}", torch.full_like(nowhere, level)
            schedule = masked.SCHEDULES[self.config.loss.schedule]
            hidden = hide_level(
                codes, frames, nowhere, levels, batch.draw, self.soundstorm.mask_id, schedule, name=name
            )
            logits = at_least_fp32(modules["soundstorm"](hidden.tokens, told, levels, where=hidden.where))
            sums[f"loss_{name}"] = F.cross_entropy(logits, hidden.targets, reduction="sum").double()
            sums[f"accuracy_{name}"] = (logits.argmax(-1) == hidden.targets).sum().double()
            sums[f"count_{name}"] = hidden.where.sum().double()
        return Statistics(sums)

    def measure_generated(self, modules: Modules, batch: Batch, split: str) -> Statistics:
        """What the judge of the embedded data hears in clips made from captions, and in reconstructions; and what the
        MuLaN thinks of them."""
        records: Any = batch.fields.get("sound")
        is_judged = judging.are_known(records) and split in ("validation", judging.WITHHELD)
        is_heard = self.listener is not None and split == "validation"
        if self.tokenizer is None or not self.config.model.conditioned or not (is_judged or is_heard):
            return Statistics()
        studio = self.studio(modules)
        made = self._made_again(studio, batch)
        total = Statistics()
        if is_judged:
            rate, kept = self.link_to_codec().model.rate, studio.waves(batch["codes"], batch["frames"])
            total = total + Statistics(judging.judged(made.waves, rate, records, split))
            total = total + Statistics(judging.judged(kept, rate, records, split, "_reconstruction"))
        if is_heard:
            total = total + self._heard(batch, made)
        return total

    def _heard(self, batch: Batch, made: Made) -> Statistics:
        assert made.heard is not None
        vectors = made.heard.vectors
        real = batch["clip"].to(vectors)
        captioned = torch.tensor([bool(text) for text in _texts(batch)], device=real.device)
        wanted = self._wanted(batch).to(real)
        sums = {
            "mulan_score": (vectors * wanted).sum(1)[captioned].double().sum(),
            "mulan_score_real": (real * wanted).sum(1)[captioned].double().sum(),
            "captioned": captioned.sum().double(),
        }
        return Statistics(sums, {"made": vectors, "real": real})

    def summarise(self, statistics: Statistics) -> dict[str, float]:
        sums, rows = statistics.sums, statistics.rows
        names = [f"level_{level + 1}" for level in range(self.soundstorm.levels)]
        figures: dict[str, float] = {}
        for kind in ("loss", "accuracy"):
            of_levels = {f"{kind}_{name}": float(sums[f"{kind}_{name}"] / sums[f"count_{name}"]) for name in names}
            figures[kind] = sum(of_levels.values()) / len(of_levels)
            figures |= of_levels
        figures |= judging.figures(sums)
        if sums.get("captioned"):
            figures |= {name: float(sums[name] / sums["captioned"]) for name in ("mulan_score", "mulan_score_real")}
        if "made" in rows and len(rows["made"]) > 1:
            # Of other weights it would be another figure.
            weights = self.links["condition"].digest[:8]
            figures[f"frechet_mulan_{weights}"] = frechet_distance(rows["made"], rows["real"])
        if "made" in rows and self.config.sample.best_of > 1:
            figures["best_of"] = float(self.config.sample.best_of)
        return figures

    def sample(self, modules: Modules, batch: Batch) -> list[Artifact]:
        """Each clip as the codec has it, and what is made from what is told of it; and a sheet of spectrograms."""
        if self.tokenizer is None:
            return []
        studio = self.studio(modules)
        made = self._made_again(studio, batch).waves
        kept = studio.waves(batch["codes"], batch["frames"])
        texts, rate = _texts(batch), self.link_to_codec().model.rate
        artifacts: list[Artifact] = []
        pictures = []
        for number, name in enumerate(batch.names):
            for what, waves in (("reconstruction", kept), ("made", made)):
                write = partial(write_audio, waves[number], rate=rate)
                about = {"item": name, "what": what, "text": texts[number]}
                artifacts.append(Artifact(f"{number:03d}-{what}.wav", write, about))
                pictures.append(spectrogram(waves[number], rate, width=SHOWN))
        sheet = image_grid(pictures, columns=2)
        all_of_it = {"columns": f"reconstruction, made from {self._told_by()}", "items": [*batch.names], "texts": texts}
        picture = Artifact("spectrograms.png", partial(write_image, sheet), all_of_it, torch.from_numpy(sheet))
        return [picture, *artifacts]

    def _told_by(self) -> str:
        if self.config.model.semantic_codes is not None:
            return "its semantic tokens"
        return "its caption" if self.listener is not None else "nothing"

    # --- making sound -----------------------------------------------------------------------------------------

    def generate(self, modules: Modules, request: Request) -> list[Artifact]:
        self._check(request)
        codec = self.link_to_codec().model
        longest = self.soundstorm.net.max_frames
        frames = longest if request.seconds is None else frames_of(request.seconds, codec.frame_rate, longest)
        prompt = None
        if request.given is not None:
            prompt = read_prompt(request.given, codec, self.config.data.loudness, frames, longest)
            prompt = prompt[..., : self.soundstorm.levels]
        studio = self.studio(modules)
        waves: list[Tensor] = []
        scores: list[float] = []
        for texts, draw in request.parts(MADE_AT_ONCE):
            made = studio.make_from_texts(texts, draw, frames, prompt)
            waves += made.waves
            scores += [0.0] * len(texts) if made.heard is None else made.heard.scores.tolist()
        common = {**request.about(self.config.sample, "prompt"), "seconds": frames / codec.frame_rate}
        artifacts: list[Artifact] = []
        for number, (wave, text, score) in enumerate(zip(waves, request.wanted, scores, strict=True)):
            about = {"text": text, "number": number, **({"mulan_score": round(score, 4)} if text else {}), **common}
            artifacts.append(Artifact(f"{number:03d}.wav", partial(write_audio, wave, rate=codec.rate), about))
        pictures = [spectrogram(wave, codec.rate, width=SHOWN) for wave in waves]
        sheet = image_grid(pictures, columns=min(4, len(waves)))
        about = {"texts": request.wanted, **common}
        return [Artifact("spectrograms.png", partial(write_image, sheet), about), *artifacts]

    def _check(self, request: Request) -> None:
        if any(request.texts) and self.listener is None:
            raise UsageError(
                "this model was trained without --condition, and no text can tell it anything; leave --text out"
            )
        if self.config.model.semantic_codes is not None:
            raise UsageError(
                "this model is told semantic tokens, which come with the data: leave --text, --prompt and --seconds "
                "out, and it makes validation clips again"
            )
        if self.config.sample.best_of > 1 and not (self.listener is not None and all(request.texts)):
            raise UsageError("sample.best_of keeps what is nearest to a text: it needs --text, and a mulan to tell")
        if self.config.sample.guidance != self._guidance():
            say("warning: made without guidance, because nothing was left out in training (loss.drop_condition)")

    def _made_again(self, studio: Studio, batch: Batch) -> Made:
        """Clips made from what is told of a batch, as long as its own."""
        wanted = self._wanted(batch) if self.listener is not None else None
        return studio.make(self._told(batch, wanted), batch.draw, wanted)

    def _wanted(self, batch: Batch) -> Tensor:
        """The vectors of the captions; of a clip without one its sound's."""
        assert self.listener is not None
        wanted: Tensor = batch["clip"].clone()
        texts = _texts(batch)
        captioned = [row for row, text in enumerate(texts) if text]
        if captioned:
            wanted[captioned] = self.listener.read([texts[row] for row in captioned]).to(wanted)
        return wanted

    def studio(self, modules: Modules) -> Studio:
        """All that makes sound, put together."""
        model, config = modules["soundstorm"], self.config.sample
        assert isinstance(model, SoundStorm)
        settings = level_settings(config, self._guidance(), model.levels)
        return Studio(model, self.link_to_codec().model, self.listener, settings, config.best_of)

    def _guidance(self) -> float:
        """None, which is 1, for a model that knows no difference between being told something and nothing."""
        possible = self.config.model.conditioned and self.config.loss.drop_condition > 0
        return self.config.sample.guidance if possible else 1.0


def _new_model(config: SoundStormConfig, tokenizer: FrozenModel | None) -> SoundStorm:
    model = SoundStorm(config.model)
    codebooks = getattr(tokenizer.model, "codebooks", None) if tokenizer is not None else None
    if codebooks is not None:
        # Codes that sound alike start alike: the model need not learn that from the clips.
        model.start_from(codebooks[: model.levels])
    return model


def _fitted(config: SoundStormConfig, tokenizer: FrozenModel | None, listener: Listener | None) -> SoundStormConfig:
    """The configuration with what follows from codec, condition and semantic tokens, which must not contradict it."""
    if tokenizer is None:
        if config.model.num_codes is None or config.model.levels is None:
            raise UsageError("soundstorm makes the codes of a codec: name one with --tokenizer RUN")
        return config
    codec = tokenizer.model
    if not hasattr(codec, "frame_rate"):
        raise UsageError(
            f"soundstorm needs a tokenizer of sound; {tokenizer.reference} is of recipe '{tokenizer.recipe.name}'"
        )
    found = {"model.num_codes": codec.num_codes, "model.frame_rate": codec.frame_rate}
    config = config.adopt(f"the tokenizer {tokenizer.reference}", found)
    config = config.changed({"model.levels": min(config.model.levels or codec.levels, codec.levels)})
    config = _told_tokens(config)
    if listener is not None:
        whose = f"the condition {listener.link.reference}"
        config = config.adopt(whose, {"model.clip_dim": listener.dim})
    elif config.model.clip_dim is not None:
        raise UsageError("model.clip_dim is that of a mulan, which --condition names")
    elif config.loss.tell_caption:
        raise UsageError("loss.tell_caption tells captions by the vectors of a mulan: name one with --condition RUN")
    elif config.sample.best_of > 1:
        raise UsageError("sample.best_of keeps what is nearest to a text by a mulan: name one with --condition RUN")
    needed = -(-max(1, round(config.data.seconds * codec.rate)) // codec.hop)
    if config.model.max_frames is None:
        return config.changed({"model.max_frames": needed})
    if config.model.max_frames < needed:
        raise UsageError(
            f"data.seconds={config.data.seconds:g} makes clips of {needed} frames, more than "
            f"model.max_frames={config.model.max_frames}"
        )
    return config


def _told_tokens(config: SoundStormConfig) -> SoundStormConfig:
    """With the vocabulary and rate of the semantic tokens; once they are known the folder need not be there."""
    if config.data.semantic is None or config.model.semantic_codes is not None:
        return config
    tokens = read_semantic(Path(config.data.semantic))
    found = {"model.semantic_codes": tokens.num_codes, "model.semantic_rate": tokens.rate}
    return config.changed({"data.semantic": str(Path(config.data.semantic).resolve()), **found})


def _texts(batch: Batch) -> list[str]:
    return list(batch["texts"]) if "texts" in batch else [""] * len(batch)
