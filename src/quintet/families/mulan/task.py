"""`MuLaNTask`: contrastive training over the whole batch, retrieval metrics and samples."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from quintet.common import collectives
from quintet.common.artifact import Artifact
from quintet.common.batch import Batch, Collate, Item, Prepare
from quintet.common.logging import say
from quintet.common.precision import as_float64
from quintet.common.rng import seed_from
from quintet.common.statistics import Statistics
from quintet.data.audio import pad_windows
from quintet.data.splits import Splits
from quintet.families.mulan.config import MuLaNConfig
from quintet.families.mulan.data import mulan_splits
from quintet.families.mulan.model import Vectors
from quintet.families.mulan.pipeline import MuLaNPipeline
from quintet.families.mulan.preparation import MuLaNPreparation, are_made, augmented, noise_of
from quintet.families.mulan.retrieval import caption_number, first_per_group, label_in, retrieval_metrics
from quintet.families.mulan.towers import AudioSpectrogramTransformer, Prepared
from quintet.media.chart import draw_matrix
from quintet.media.image import write_image
from quintet.nn.contrastive import contrastive_loss, similarities
from quintet.pipelines.base import Frozen
from quintet.training.engine import Engine
from quintet.training.grad_cache import grad_cache_backward
from quintet.training.phase import Loss, Modules, Output, Phase
from quintet.training.task import EXAMPLE_CAPTION, Report, Task, Traits

REVIVE_EVERY = 20
"""Steps between two revivals of dead codes; candidates are gathered only then."""
CHANCE_MARGIN = 0.02
"""A loss this close to that of chance means that nothing was learned."""


class MuLaNTask(Task[MuLaNConfig]):
    traits = Traits(best=("text_to_audio_mrr", "max"), varying_shapes=True, minimum_batch=2)
    pipeline_class = MuLaNPipeline

    def __init__(self, config: MuLaNConfig, frozen: Frozen | None = None, modules: Modules | None = None) -> None:
        super().__init__(config, frozen)
        config = self.config
        self.modules = MuLaNPipeline.build_modules(config, self.frozen, modules)
        own: MuLaNPipeline = self.pipeline(self.modules)
        self.mulan = own.mulan
        if config.model.num_quantizers:
            self.quantizer = own.quantizer
        self.phases = [Phase("mulan", ("mulan",), self.loss, config.optim.for_phase())]

    def splits(self) -> Splits:
        return mulan_splits(self.config, self.mulan.text)

    @property
    def collate(self) -> Collate:
        return pad_windows

    def example_item(self) -> Item:
        samples = max(1, round(self.config.data.seconds * self.config.model.audio.sample_rate))
        return {"wavs": torch.zeros(1, samples), "lengths": torch.tensor([samples]), "texts": EXAMPLE_CAPTION}

    @property
    def prepare(self) -> Prepare:
        tower = self.mulan.text
        token_ids = tower.token_ids if tower.frozen is None else None
        data = self.config.data
        return MuLaNPreparation(self.mulan.audio.config, token_ids, data.word_dropout, data.text_swap_prob)

    # --- training -------------------------------------------------------------------------------------------

    def init_from_data(self, modules: Modules, batches: Iterable[Batch], engine: Engine) -> None:
        """Measure mean and deviation of the spectrograms, and initialise the codebooks from the first embeddings."""
        held = list(batches)
        tower = self.mulan.audio
        if isinstance(tower, AudioSpectrogramTransformer):
            moments = [Statistics({"moments": tower.moments(*_waves(batch))}) for batch in held]
            tower.set_normalisation(sum(moments, Statistics()).over_ranks().sums["moments"])
        if self.config.model.num_quantizers:
            with torch.no_grad():
                views = [Statistics(rows={"views": _views(self._vectors(modules, batch))}) for batch in held]
            vectors = sum(views, Statistics()).over_ranks().rows["views"].flatten(0, 1)
            self.quantizer.quantizer.init_from_data(vectors, seed_from(self.config.train.seed, "codebook"))

    def forward(self, modules: Modules, batch: Batch, step: int) -> Output:
        vectors = self._vectors(modules, batch)
        statistics = Statistics()
        if self.config.model.num_quantizers:
            # The codebooks follow the embeddings; no gradient flows back to them.
            counted = self.quantizer(_views(vectors).detach(), return_candidates=step % REVIVE_EVERY == 0)
            statistics = counted.with_prefix("quantizer")
        rows = {"audio": vectors.audio, "text": vectors.text}
        if vectors.negative is not None:
            rows["negative"] = vectors.negative
        return Output({"rows": rows, "shared": {"scale": vectors.scale, "bias": vectors.bias}}, statistics)

    def backward(self, micro_batches: Sequence[Batch], modules: Modules, engine: Engine, step: int) -> Report:
        return grad_cache_backward(self, micro_batches, modules, engine, step)

    def loss(self, modules: Modules, batch: Batch, output: Output, step: int) -> Loss:
        rows, shared = output["rows"], output["shared"]
        # The rows of all ranks, so that each is compared with all; the loss is the same on every rank.
        audio, text = (collectives.gather_rows(rows[name]).unbind(1) for name in ("audio", "text"))
        negatives: Sequence[Tensor | None] = [None] * len(audio)
        if "negative" in rows:
            negatives = collectives.gather_rows(rows["negative"]).unbind(1)
        losses = [
            contrastive_loss(self.config.model.contrastive_loss, clips, texts, scale, bias, negative)
            for clips, texts, scale, bias, negative in zip(
                audio, text, shared["scale"], shared["bias"], negatives, strict=True
            )
        ]
        best = similarities(audio[-1], text[-1]).detach().argmax(1)
        accuracy = (best == torch.arange(len(best), device=best.device)).float().mean()
        parts = {"accuracy": accuracy, "temperature": 1 / shared["scale"][-1]}
        return Loss(torch.stack(losses).sum(), parts)

    @torch.no_grad()
    def after_step(self, statistics: Statistics, step: int) -> None:
        self.mulan.log_scale.clamp_(max=-math.log(self.config.model.min_temperature))
        if self.config.model.num_quantizers:
            seed = seed_from(self.config.train.seed, step, "revival")
            self.quantizer.quantizer.update(statistics.strip_prefix("quantizer"), seed)

    # --- validation -----------------------------------------------------------------------------------------

    def measure(self, modules: Modules, batch: Batch) -> Statistics:
        pipeline: MuLaNPipeline = self.pipeline(modules)
        audio, text = pipeline.embed_batch(batch), pipeline.mulan.embed_prepared(self.prepared_texts(batch))
        captions = torch.tensor([caption_number(each) for each in _texts_of(batch)], device=audio.device)
        sums = self._zero_shot(pipeline, batch, audio) if self.config.eval.zero_shot_labels else {}
        if self.config.model.num_quantizers:
            quantized = pipeline.quantizer.decode(pipeline.quantizer.encode(audio))
            sums["quantized"] = as_float64(F.cosine_similarity(quantized, audio)).sum()
        # The temperature of the evaluated weights, EMA or live; the mean over batches is the same value.
        sums |= {"log_scale": as_float64(pipeline.mulan.log_scale[-1]), "batches": torch.tensor(1.0)}
        return Statistics(sums, {"audio": audio, "text": text, "captions": captions})

    def _zero_shot(self, pipeline: MuLaNPipeline, batch: Batch, audio: Tensor) -> dict[str, Tensor]:
        """The number of clips whose caption contains a label, and of those whose nearest label is that one."""
        labels = self.config.eval.zero_shot_labels
        prompts = pipeline.mulan.embed_texts(
            [self.config.eval.zero_shot_template.replace("{}", label) for label in labels]
        )
        predicted = similarities(audio, prompts).argmax(1).tolist()
        named = [label_in(text, labels) for text in _texts_of(batch)]
        correct = [guess == label for guess, label in zip(predicted, named, strict=True) if label is not None]
        return {"labelled": torch.tensor(float(len(correct))), "correct": torch.tensor(float(sum(correct)))}

    def summarise(self, statistics: Statistics) -> dict[str, float]:
        audio, text, captions = (statistics.rows[name] for name in ("audio", "text", "captions"))
        sums = statistics.sums
        metrics: dict[str, float] = {}
        if "quantized" in sums:
            metrics["quantizer_similarity"] = float(sums["quantized"] / len(audio))
        if self.config.eval.distinct_captions:
            chosen = first_per_group(captions, self.config.eval.distinct_captions)
            audio, text, captions = audio[chosen], text[chosen], captions[chosen]
        metrics |= retrieval_metrics(audio, text, captions)
        metrics["compared"] = float(len(audio))
        metrics["loss"] = _retrieval_loss(audio, text, (sums["log_scale"] / sums["batches"]).exp())
        if sums.get("labelled"):
            metrics["zero_shot_accuracy"] = float(sums["correct"] / sums["labelled"])
            metrics["zero_shot_clips"] = float(sums["labelled"])
        elif "labelled" in sums:
            say("warning: no caption contains any of eval.zero_shot_labels; zero-shot accuracy is not computed")
        return metrics

    def sample(self, modules: Modules, batch: Batch) -> list[Artifact]:
        """An image of the similarities of all clips and captions of a batch; the diagonal should be brightest."""
        pipeline: MuLaNPipeline = self.pipeline(modules)
        audio, text = pipeline.embed_batch(batch), pipeline.mulan.embed_prepared(self.prepared_texts(batch))
        scores = similarities(audio, text).cpu().double()
        image = draw_matrix(scores.numpy(), [Path(name).name for name in batch.names], _texts_of(batch))
        metadata = {"rows": list(batch.names), "columns": _texts_of(batch)}
        return [Artifact("similarities.png", partial(write_image, image), metadata, torch.from_numpy(image.copy()))]

    # --- parts ----------------------------------------------------------------------------------------------

    def prepared_texts(self, batch: Batch) -> Prepared:
        """The captions of a batch, prepared for the text tower, on the device of the batch."""
        tower = self.mulan.text
        is_ids = "token_ids" in batch
        prepared = tower.prepare_ids(batch["token_ids"]) if is_ids else tower.prepare(batch["texts"])
        text, mask = (tensor.to(batch["wavs"].device) for tensor in prepared)
        return text, mask

    def _training_texts(self, batch: Batch) -> tuple[Prepared, tuple[Tensor, Tensor, Tensor] | None]:
        """The captions of a prepared training batch, and their hard negatives."""
        if self.mulan.text.frozen is None:
            names = ("swapped", "swapped_mask", "is_swapped")
            text = batch["text"], batch["text_mask"]
            return text, (batch[names[0]], batch[names[1]], batch[names[2]]) if names[0] in batch else None
        data, device = self.config.data, batch["wavs"].device
        texts, swapped = augmented(batch, data.word_dropout, data.text_swap_prob)
        prepare = self.mulan.text.prepare
        vectors, mask = (tensor.to(device) for tensor in prepare(texts))
        if swapped is None:
            return (vectors, mask), None
        other, other_mask = (tensor.to(device) for tensor in prepare(swapped))
        return (vectors, mask), (other, other_mask, are_made(swapped).to(device))

    def _vectors(self, modules: Modules, batch: Batch) -> Vectors:
        """The embeddings of an augmented training batch."""
        batch = batch.prepared(self.prepare)
        texts, swapped = self._training_texts(batch)
        vectors: Vectors = modules["mulan"](*_waves(batch), *texts, noise_of(batch), swapped)
        return vectors


def _retrieval_loss(audio: Tensor, text: Tensor, scale: Tensor) -> float:
    """The softmax loss over all compared pairs; chance gives the logarithm of their number."""
    loss = float(contrastive_loss("softmax", audio, text, scale.to(audio), torch.zeros_like(scale)))
    chance = math.log(len(audio))
    if len(audio) > 1 and abs(loss - chance) < CHANCE_MARGIN:
        say(
            f"warning: the loss {loss:.3f} is that of chance among {len(audio)} clips, ln({len(audio)}) = "
            f"{chance:.3f}: the embeddings do not distinguish clips; lower optim.lr, or check the captions"
        )
    return loss


def _views(vectors: Vectors) -> Tensor:
    """The embeddings of clip and caption of each item, (batch, 2, latent_dim)."""
    return torch.stack([vectors.audio[:, -1], vectors.text[:, -1]], dim=1)


def _waves(batch: Batch) -> tuple[Tensor, Tensor]:
    """Waveforms (windows, samples) and their lengths (windows,)."""
    return batch["wavs"], batch["lengths"]


def _texts_of(batch: Batch) -> list[str]:
    """The captions; for a dataset of token ids, the ids as text."""
    if "token_ids" in batch:
        return [" ".join(map(str, ids.tolist())) for ids in batch["token_ids"]]
    return list(batch["texts"])
