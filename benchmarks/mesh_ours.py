"""quintet's mesh models as workers.

`mesh_ours.py autoencoder PRECISION`: a training step of the recipe on a batch of the loader.
`mesh_ours.py transformer PRECISION`: a training step on codes.
`mesh_ours.py generate BATCH DEPTH FINE_DEPTH`: greedy decoding by `MeshTransformer.generate`.
`mesh_ours.py loss TOKENIZER CODES SETTINGS SECONDS`: trains for slices of CPU seconds, and measures after each;
SETTINGS is a learning rate, for the peer's sizes and optimizer, or a preset.
`mesh_ours.py adjacency`: edges and features of a large mesh.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import loss_task
import mesh_task as task
import ours_training
from quintet import config, runs
from quintet.common.batch import Batch, Item
from quintet.common.rng import ItemRNG
from quintet.families.mesh_autoencoder.config import MeshAutoencoderConfig
from quintet.families.mesh_autoencoder.features import FaceFeatures
from quintet.families.mesh_autoencoder.model import MeshAutoencoder
from quintet.families.mesh_autoencoder.packed import collate, pack
from quintet.families.mesh_transformer.config import MeshTransformerConfig
from quintet.families.mesh_transformer.model import MeshTransformer
from quintet.families.mesh_transformer.task import MeshTransformerTask
from quintet.pipelines.loading import open_pipeline
from quintet.sampling.autoregressive import Sampling
from quintet.training.engine import Engine
from quintet.training.state import TrainingState
from worker import TimedTraining, count_parameters, serve

AUTOENCODER: Mapping[str, Any] = {
    "bins": task.BINS,
    "coordinate_dim": task.COORDINATE_DIM,
    "normal_dim": task.NORMAL_DIM,
    "angle_dim": task.SMALL_DIM,
    "area_dim": task.SMALL_DIM,
    "encoder_dims": task.ENCODER,
    "code_dim": task.CODE_DIM,
    "codebook_size": task.CODES,
    "num_quantizers": task.LEVELS,
    "decoder_dims": task.DECODER,
}


def make_transformer(
    max_faces: int = task.MAX_FACES, depth: int = task.DEPTH, fine_depth: int = task.FINE_DEPTH
) -> MeshTransformer:
    """A model without text conditioning, as the peer."""
    torch.manual_seed(0)
    return MeshTransformer(
        num_codes=task.CODES,
        tokens_per_face=task.TOKENS_PER_FACE,
        max_faces=max_faces,
        dim=task.DIM,
        depth=depth,
        fine_depth=fine_depth,
        heads=task.HEADS,
        face_buckets=0,
        text="none",
    )


def about_transformer(model: MeshTransformer) -> dict[str, Any]:
    layers = f"{model.config.depth} over faces, {model.config.fine_depth} within a face"
    return {"parameters": {"transformer": count_parameters(model)}, "layers": layers}


# --- a step -------------------------------------------------------------------------------------------------------


def serve_autoencoder(precision: str) -> None:
    keys: dict[str, Any] = {
        **{f"model.{name}": value for name, value in AUTOENCODER.items()},
        "train.batch_size": task.MESHES,
        "engine.precision": precision,
        "optim.name": "adam",
    }
    torch.manual_seed(0)
    settings = config.build(MeshAutoencoderConfig, overrides=keys)
    training = runs.make_task(settings, {})
    engine = Engine(settings.engine)
    engine.to_device(training.modules)
    state = TrainingState(training)
    items = [{"vertices": vertices, "faces": faces} for vertices, faces in zip(*task.meshes(), strict=True)]
    batch = Batch(
        collate(items), tuple(map(str, range(task.MESHES))), ItemRNG(0, [0] * task.MESHES, range(task.MESHES))
    )
    number = 0

    def step() -> None:
        nonlocal number
        report = training.backward([batch], training.modules, engine, number)
        for phase in state.phases:
            phase.optimizer.step()
            phase.optimizer.zero_grad()
        training.after_step(report.statistics, number)
        number += 1

    model = training.modules["autoencoder"]
    layers = f"{len(task.ENCODER)} graph convolutions, {len(task.DECODER)} residual blocks"
    serve(step, {"parameters": {"autoencoder": count_parameters(model)}, "layers": layers}, ("quintet",))


def make_step(
    model: MeshTransformer, optimizer: torch.optim.Optimizer, precision: str = "fp32"
) -> Callable[[Tensor], None]:
    parameters = list(model.parameters())

    def step(codes: Tensor) -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            predicted = model(codes, task.lengths_of(codes), {})
        loss = F.cross_entropy(predicted.logits.float(), predicted.targets)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(parameters, task.CLIP)
        optimizer.step()
        optimizer.zero_grad()

    return step


def serve_transformer(precision: str) -> None:
    model = make_transformer()
    step = make_step(model, torch.optim.Adam(model.parameters(), lr=2e-4, betas=task.BETAS), precision)
    codes = task.random_codes()
    serve(lambda: step(codes), about_transformer(model), ("quintet",))


# --- generation ---------------------------------------------------------------------------------------------------


def serve_generation(batch: str, depth: str, fine_depth: str) -> None:
    model = make_transformer(depth=int(depth), fine_depth=int(fine_depth)).eval()
    count = int(batch)

    def endless(tokens: Tensor) -> Tensor:
        """Forbids the end token, so that both sides generate the same number of tokens."""
        return (torch.arange(task.CODES + 1) < task.CODES).expand(len(tokens), -1)

    def step() -> dict[str, float]:
        rng, greedy = ItemRNG(0, [0] * count, range(count)), Sampling(temperature=0.0)
        result = model.generate([""] * count, rng, greedy, max_faces=task.GENERATED_FACES, legal=endless)
        return {"tokens": result.codes.numel()}

    serve(step, about_transformer(model), ("quintet",))


# --- training for a fixed time --------------------------------------------------------------------------------------


def serve_training(tokenizer: str, path: str, settings: str, seconds: str) -> None:
    data = task.read_task(Path(path))
    if settings in MeshTransformerConfig.PRESETS:
        serve_preset(tokenizer, data, settings, seconds)
    else:
        serve_peer_sizes(data, float(settings), seconds)


@dataclass
class CodeDataset:
    """A dataset of codes of meshes, (meshes, faces, tokens per face), padded with -1."""

    codes: Tensor

    def __len__(self) -> int:
        return len(self.codes)

    def name(self, item: int) -> str:
        return str(item)

    def lengths(self) -> list[int]:
        return [int(length) for length in task.lengths_of(self.codes)]

    def load(self, item: int, rng: ItemRNG) -> Item:
        faces = int(task.lengths_of(self.codes[item : item + 1]))
        return {"codes": self.codes[item, :faces], "faces": faces, "begins": True, "ends": True, "texts": ""}


def serve_preset(tokenizer: str, data: task.Task, preset: str, seconds: str) -> None:
    frozen = {"tokenizer": open_pipeline(tokenizer)}
    ours = ours_training.make_task(MeshTransformerConfig, preset, frozen, {}, {"model.text": "none"})
    assert isinstance(ours, MeshTransformerTask)
    ours_training.serve_training(
        ours,
        CodeDataset(data.train),
        CodeDataset(data.held_out),
        lambda model: measured(model, data),
        {**about_transformer(ours.transformer), "task": data.digest},
        seconds,
    )


def measured(model: MeshTransformer, data: task.Task) -> dict[str, float]:
    def predict(codes: Tensor) -> Tensor:
        logits: Tensor = model(codes, task.lengths_of(codes), {}).logits
        return logits.view(len(codes), -1, task.CODES + 1)

    return task.validation_loss(predict, data)


def serve_peer_sizes(data: task.Task, rate: float, seconds: str) -> None:
    model = make_transformer(max(data.train.shape[1], data.held_out.shape[1]))
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, betas=task.BETAS)
    batches = data.batches()

    def measure() -> dict[str, float]:
        model.eval()
        metrics = measured(model, data)
        model.train()
        return metrics

    step = loss_task.with_warmup(make_step(model, optimizer), optimizer, rate)
    training = TimedTraining(step, measure, float(seconds), lambda: next(batches))
    serve(training.next_slice, {**about_transformer(model), "task": data.digest}, ("quintet",))


# --- a large mesh -------------------------------------------------------------------------------------------------


def serve_adjacency() -> None:
    """Edges and features of every face; includes embedding and projection, unlike the peer's worker."""
    model = MeshAutoencoder(**AUTOENCODER)
    vertices, faces = task.large_mesh()
    features: FaceFeatures = model.features

    def step() -> None:
        with torch.no_grad():
            features(pack([vertices], [faces]).corners)

    serve(step, {"parameters": {"autoencoder": count_parameters(model)}, "layers": ""}, ("quintet",))


WORKS: Mapping[str, Callable[..., None]] = {
    "autoencoder": serve_autoencoder,
    "transformer": serve_transformer,
    "generate": serve_generation,
    "loss": serve_training,
    "adjacency": serve_adjacency,
}


if __name__ == "__main__":
    torch.set_num_threads(1)
    WORKS[sys.argv[1]](*sys.argv[2:])
