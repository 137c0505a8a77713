"""`SoundStormTask`: trains a masked conformer on the codes of clips; validation metrics and samples."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from quintet.common.artifact import Artifact
from quintet.common.batch import Batch, Collate, Dataset, Item, Prepare
from quintet.common.precision import as_float64, at_least_fp32
from quintet.common.statistics import Statistics
from quintet.data.splits import Splits
from quintet.data.token_files import read_semantic
from quintet.families.soundstorm import data
from quintet.families.soundstorm.clips import SPECTROGRAM_WIDTH, GeneratedAudio, to_mono
from quintet.families.soundstorm.config import SoundStormConfig
from quintet.families.soundstorm.masking import MaskedCodes, mask_level
from quintet.families.soundstorm.mulan_conditioner import MuLaNConditioner
from quintet.families.soundstorm.pipeline import SoundStormPipeline, codec_of
from quintet.families.soundstorm.preparation import SoundStormPreparation, masked_codes_of
from quintet.media.audio import write_audio
from quintet.media.chart import spectrogram
from quintet.media.image import image_grid, write_image
from quintet.nn.similarity import frechet_distance
from quintet.nn.text import mask_dropped
from quintet.pipelines.base import Frozen
from quintet.sampling import filters, masked
from quintet.training.engine import Engine
from quintet.training.judge import judge_of, judged_rows, mean_scores
from quintet.training.maskgit_task import refuse_untrained, score_loss, token_loss
from quintet.training.phase import Loss, Modules, Output, Phase
from quintet.training.task import EXAMPLE_CAPTION, Task, Traits


class SoundStormTask(Task[SoundStormConfig]):
    traits = Traits(best=("loss", "min"), varying_shapes=True, shardable=True)
    pipeline_class = SoundStormPipeline

    def __init__(self, config: SoundStormConfig, frozen: Frozen | None = None, modules: Modules | None = None) -> None:
        super().__init__(config, frozen)
        tokenizer = self.frozen.get("tokenizer")
        if tokenizer is not None:
            self.config = _with_semantic_keys(self.config)
        if not modules:
            self.config = self.config.changed(data.text_keys(self.config, "condition" in self.frozen))
        self.conditioner = MuLaNConditioner.of(self.frozen, self.config.model.condition_form)
        self.is_new = not modules
        self.modules = dict(modules or SoundStormPipeline.build_modules(self.config, self.frozen))
        own: SoundStormPipeline = self.pipeline(self.modules)
        self.soundstorm = own.soundstorm
        if self.is_new and tokenizer is not None and hasattr(tokenizer.model, "codebooks"):
            # Codes with similar vectors start with similar weights; the model need not learn this from the data.
            self.soundstorm.init_from_codebooks(tokenizer.model.codebooks[: self.soundstorm.num_quantizers])
        if self.config.data.cache_dir:
            self.soundstorm.net.cache_texts(Path(self.config.data.cache_dir))
        self.phases = [self._phase()]

    def _phase(self) -> Phase:
        only, optim = self.config.loss.train_only, self.config.optim.for_phase()
        critic = self.soundstorm.to_score
        if only == "critic":
            assert critic is not None
            self.soundstorm.requires_grad_(False)
            critic.requires_grad_(True)
            return Phase("critic", ("soundstorm",), self.critic_loss, optim)
        if only == "generator" and critic is not None:
            critic.requires_grad_(False)
        return Phase("generator", ("soundstorm",), self.generator_loss, optim)

    def splits(self) -> Splits:
        return data.clip_splits(self.config, codec_of(self.frozen), self.conditioner)

    @property
    def collate(self) -> Collate:
        return data.collate

    @property
    def prepare(self) -> Prepare:
        encoder = self.soundstorm.net.text_encoder
        return SoundStormPreparation(
            self.soundstorm.config, self.config.loss, None if encoder is None else encoder.preparation
        )

    def lengths(self, dataset: Dataset) -> Sequence[int] | None:
        return dataset.lengths() if hasattr(dataset, "lengths") else None

    def example_item(self) -> Item:
        frames: int = self.soundstorm.net.max_frames
        item: Item = {"codes": torch.zeros(frames, self.soundstorm.num_quantizers, dtype=torch.long)}
        if self.conditioner is not None:
            item["clip"] = torch.zeros(self.conditioner.dim)
        if self.config.model.semantic_codes is not None:
            item["semantic"] = torch.zeros(frames, dtype=torch.long)
        if self.config.model.vector_dim is not None:
            return {**item, "vectors": torch.zeros(len(EXAMPLE_CAPTION.split()), self.config.model.vector_dim)}
        return item if self.config.model.text == "none" else {**item, "texts": EXAMPLE_CAPTION}

    # --- training ---------------------------------------------------------------------------------------------

    def init_from_data(self, modules: Modules, batches: Iterable[Batch], engine: Engine) -> None:
        if self.config.loss.train_only == "critic":
            refuse_untrained(self.is_new and self.config.init is None)

    def forward(self, modules: Modules, batch: Batch, step: int) -> Output:
        batch = batch.prepared(self.prepare)
        masked_codes = masked_codes_of(batch)
        conditioning = self._conditioning(batch, self._clips(batch), batch["keep_condition"])
        # On a CPU a mask costs nothing, and results do not depend on whether there is padding.
        has_padding = batch["has_padding"] or batch["frames"].device.type == "cpu"
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.config.loss.train_only != "critic"):
            previous = self._previous_vectors(batch, masked_codes, conditioning, has_padding)
            logits = modules["soundstorm"](
                masked_codes.tokens,
                conditioning,
                masked_codes.levels,
                where=masked_codes.positions,
                previous=previous,
                has_padding=has_padding,
            )
        values = {"masked_codes": masked_codes, "conditioning": conditioning, "logits": logits}
        return Output({**values, "critic_noise": batch.fields.get("critic_noise"), "has_padding": has_padding})

    def _clips(self, batch: Batch) -> Tensor | None:
        """The embeddings (batch, dim) that condition training clips: of their audio, or for some of their caption."""
        if self.conditioner is None:
            return None
        clip: Tensor = batch["clip"]
        if "caption" in batch:
            clip = torch.where((batch["use_caption"] & batch["captioned"])[:, None], batch["caption"], clip)
        return clip

    def _conditioning(self, batch: Batch, clip: Tensor | None, keep: Tensor | None = None) -> dict[str, Tensor]:
        if clip is not None and self.conditioner is not None:
            clip = self.conditioner.conditioning(clip)
        aligned: Tensor | None = batch.fields.get("aligned_semantic")
        semantic = None if aligned is not None else batch.fields.get("semantic")
        return self.soundstorm.conditioning(batch["frames"], semantic, clip, keep, aligned, self._texts(batch, keep))

    def _texts(self, batch: Batch, keep: Tensor | None) -> dict[str, Tensor]:
        """The conditioning of the texts of a batch, which the data workers have prepared if no weights are needed."""
        net, encoder = self.soundstorm.net, self.soundstorm.net.text_encoder
        if encoder is None:
            return {}
        if "vectors" in batch:
            return net.text_vectors(batch["vectors"], batch["words"], keep)
        if not batch.is_prepared:
            captions = texts_of(batch)
            has_caption = torch.tensor([bool(text) for text in captions])
            return net.texts(captions, has_caption if keep is None else keep & has_caption)
        if encoder.preparation is not None:
            return {name: batch[name] for name in ("text", "text_mask")}
        texts = net.texts(batch["texts"])
        return {**texts, "text_mask": mask_dropped(texts["text_mask"], batch["keep_text"])}

    def _previous_vectors(
        self, batch: Batch, masked_codes: MaskedCodes, conditioning: dict[str, Tensor], has_padding: bool
    ) -> Tensor | None:
        """Self-conditioning: the outputs (batch, frames, dim) of a first pass; zero for some rows."""
        if not self.config.model.self_conditioning:
            return None
        with torch.no_grad():
            vectors: Tensor = self.soundstorm(
                masked_codes.tokens, conditioning, masked_codes.levels, output="vectors", has_padding=has_padding
            )
        self_conditioned: Tensor = batch["self_conditioned"]
        return vectors * self_conditioned[:, None, None]

    def generator_loss(self, modules: Modules, batch: Batch, output: Output, step: int) -> Loss:
        loss = token_loss(output["logits"], output["masked_codes"].targets, self.config.loss.label_smoothing)
        if self.config.model.self_critic and self.config.loss.train_only is None:
            critic_loss = self.critic_loss(modules, batch, output, step).value
            weight = self.config.loss.critic_weight
            return Loss(loss.value + weight * critic_loss, {**loss.parts, "self_critic": critic_loss})
        return loss

    def critic_loss(self, modules: Modules, batch: Batch, output: Output, step: int) -> Loss:
        """Loss of classifying whether a code that the generator predicted is the original one."""
        masked_codes, logits = output["masked_codes"], output["logits"]
        # In fp32, also if the batch was converted to fp64: the choices do not depend on the precision.
        predicted = filters.sample_on_device(logits.detach(), output["critic_noise"].float())
        scores = modules["soundstorm"](
            masked_codes.filled(predicted),
            output["conditioning"],
            masked_codes.levels,
            where=masked_codes.positions,
            output="scores",
            has_padding=output["has_padding"],
        )
        return Loss(score_loss(scores, predicted != masked_codes.targets))

    # --- validation -------------------------------------------------------------------------------------------

    def measure(self, modules: Modules, batch: Batch) -> Statistics:
        """Loss and accuracy of each level without a prompt; the same codes are masked every time."""
        codes, frames = batch["codes"], batch["frames"]
        conditioning = self._conditioning(batch, batch["clip"] if self.conditioner is not None else None)
        no_prompt = torch.zeros(len(codes), dtype=torch.long, device=codes.device)
        sums: dict[str, Tensor] = {}
        for level in range(self.soundstorm.num_quantizers):
            name, levels = f"level_{level + 1}", torch.full_like(no_prompt, level)
            schedule = masked.MASK_SCHEDULES[self.config.loss.mask_schedule]
            masked_codes = mask_level(
                codes, frames, no_prompt, levels, batch.rng, self.soundstorm.mask_id, schedule, name=name
            )
            logits = at_least_fp32(
                modules["soundstorm"](masked_codes.tokens, conditioning, levels, where=masked_codes.where)
            )
            sums[f"loss_{name}"] = as_float64(F.cross_entropy(logits, masked_codes.targets, reduction="sum"))
            sums[f"accuracy_{name}"] = as_float64((logits.argmax(-1) == masked_codes.targets).sum())
            sums[f"count_{name}"] = as_float64(masked_codes.where.sum())
        return Statistics(sums)

    def measure_generated(self, modules: Modules, batch: Batch, split: str) -> Statistics:
        """Scores of clips generated from captions: by the judge of a synthetic dataset, which also scores
        reconstructions, and by the MuLaN of the run."""
        judge = judge_of(batch, split)
        use_mulan = self.conditioner is not None and split == "validation"
        if "tokenizer" not in self.frozen or not self.config.model.conditioned or (judge is None and not use_mulan):
            return Statistics()
        pipeline: SoundStormPipeline = self.pipeline(modules)
        generated = self._generated(pipeline, batch)
        total = Statistics()
        if judge is not None:
            rate, reconstructed = pipeline.sample_rate, pipeline.decode(batch["codes"], batch["frames"])
            ours, real = ([(to_mono(wave), rate) for wave in waves] for waves in (generated.waves, reconstructed))
            total = total + Statistics(rows=judged_rows(judge, batch, split, ours, real))
        if use_mulan:
            total = total + self._mulan_scores(batch, generated)
        return total

    def _mulan_scores(self, batch: Batch, generated: GeneratedAudio) -> Statistics:
        """Similarities of clips and captions by MuLaN, and the embeddings of generated and real clips."""
        vectors = generated.vectors
        assert vectors is not None
        real = batch["clip"].to(vectors)
        captioned = torch.tensor([bool(text) for text in texts_of(batch)], device=real.device)
        target = self._target(batch).to(real)
        sums = {
            "mulan_score": as_float64((vectors * target).sum(1)[captioned]).sum(),
            "mulan_score_real": as_float64((real * target).sum(1)[captioned]).sum(),
            "captioned": as_float64(captioned.sum()),
        }
        return Statistics(sums, {"generated": vectors, "real": real})

    def summarise(self, statistics: Statistics) -> dict[str, float]:
        sums, rows = statistics.sums, statistics.rows
        names = [f"level_{level + 1}" for level in range(self.soundstorm.num_quantizers)]
        metrics: dict[str, float] = {}
        for kind in ("loss", "accuracy"):
            per_level = {f"{kind}_{name}": float(sums[f"{kind}_{name}"] / sums[f"count_{name}"]) for name in names}
            metrics[kind] = sum(per_level.values()) / len(per_level)
            metrics |= per_level
        metrics |= mean_scores(rows)
        if sums.get("captioned"):
            metrics |= {name: float(sums[name] / sums["captioned"]) for name in ("mulan_score", "mulan_score_real")}
        if "generated" in rows and len(rows["generated"]) > 1:
            # The name holds the digest of the MuLaN: distances by different weights are not comparable.
            weights = self.frozen["condition"].digest[:8]
            metrics[f"frechet_mulan_{weights}"] = frechet_distance(rows["generated"], rows["real"])
        if "generated" in rows and self.config.sample.best_of > 1:
            metrics["best_of"] = float(self.config.sample.best_of)
        return metrics

    def sample(self, modules: Modules, batch: Batch) -> list[Artifact]:
        """The reconstruction of each clip and a clip generated from its conditioning; and a sheet of spectrograms."""
        if "tokenizer" not in self.frozen:
            return []
        pipeline: SoundStormPipeline = self.pipeline(modules)
        generated = self._generated(pipeline, batch).waves
        reconstructed = pipeline.decode(batch["codes"], batch["frames"])
        texts, rate = texts_of(batch), pipeline.sample_rate
        artifacts: list[Artifact] = []
        images = []
        for number, name in enumerate(batch.names):
            for what, waves in (("reconstruction", reconstructed), ("made", generated)):
                write = partial(write_audio, waves[number], rate=rate)
                metadata = {"item": name, "what": what, "text": texts[number]}
                artifacts.append(Artifact(f"{number:03d}-{what}.wav", write, metadata))
                images.append(spectrogram(waves[number], rate, width=SPECTROGRAM_WIDTH))
        sheet = image_grid(images, columns=2)
        columns = f"reconstruction, made from {self._conditioned_on()}"
        summary = {"columns": columns, "items": [*batch.names], "texts": texts}
        image = Artifact("spectrograms.png", partial(write_image, sheet), summary, torch.from_numpy(sheet))
        return [image, *artifacts]

    def _conditioned_on(self) -> str:
        if self.config.model.semantic_codes is not None:
            return "its semantic tokens"
        has_text = self.conditioner is not None or self.config.model.text != "none"
        return "its caption" if has_text else "nothing"

    def _generated(self, pipeline: SoundStormPipeline, batch: Batch) -> GeneratedAudio:
        """Clips generated from the conditioning of a batch, with the lengths of its clips."""
        target = self._target(batch) if self.conditioner is not None else None
        return pipeline.generate(self._conditioning(batch, target), batch.rng, target)

    def _target(self, batch: Batch) -> Tensor:
        """The embeddings (batch, dim) of the captions; of the audio for a clip without a caption."""
        assert self.conditioner is not None
        target: Tensor = batch["clip"].clone()
        texts = texts_of(batch)
        captioned = [row for row, text in enumerate(texts) if text]
        if captioned:
            target[captioned] = self.conditioner.embed_texts([texts[row] for row in captioned]).to(target)
        return target


def _with_semantic_keys(config: SoundStormConfig) -> SoundStormConfig:
    """The configuration with vocabulary size and rate of the semantic tokens; after that the folder is not needed."""
    if config.data.semantic_tokens is None or config.model.semantic_codes is not None:
        return config
    tokens = read_semantic(Path(config.data.semantic_tokens))
    found = {"model.semantic_codes": tokens.num_codes, "model.semantic_rate": tokens.rate}
    return config.changed({"data.semantic_tokens": str(Path(config.data.semantic_tokens).resolve()), **found})


def texts_of(batch: Batch) -> list[str]:
    return list(batch["texts"]) if "texts" in batch else [""] * len(batch)
