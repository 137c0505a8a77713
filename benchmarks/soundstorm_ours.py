"""quintet's SoundStorm as a worker.

`soundstorm_ours.py step SIZES PRECISION`: a training step (masks, conditioning, loss at the masked codes of the
selected quantizers, clipping, AdamW). `soundstorm_ours.py generate SIZES SETTINGS PRECISION`: decoding of one clip.
SIZES is `peer` (the peer's convolution) or `own` (the recipe's); SETTINGS is `peer` (the peer's sampling) or `own`.
`soundstorm_ours.py loss TOKENIZER CODES SETTINGS SECONDS`: trains for slices of CPU seconds, and measures after each;
SETTINGS is a learning rate, for the peer's sizes, or a preset.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import ours_training
import soundstorm_task as task
from quintet.common.rng import ItemRNG
from quintet.config import EngineConfig, OptimizerConfig
from quintet.families.soundstorm.config import SoundStormConfig, SoundStormSampleConfig
from quintet.families.soundstorm.decoding import canvas, generate, level_settings
from quintet.families.soundstorm.masking import mask_codes
from quintet.families.soundstorm.model import SoundStorm
from quintet.families.soundstorm.task import SoundStormTask
from quintet.pipelines.loading import open_pipeline
from quintet.sampling import masked
from quintet.training.engine import Engine
from quintet.training.optim import clip_gradients, gradient_norm, make_optimizer
from worker import count_parameters, serve

SIZES: Mapping[str, Any] = {
    "dim": task.DIM,
    "depth": task.DEPTH,
    "heads": task.HEADS,
    "head_dim": task.HEAD_DIM,
    "ff_mult": task.MULTIPLIER,
}
CONVOLUTION: Mapping[str, dict[str, Any]] = {
    "peer": {"conv_kernel_size": task.KERNEL, "conv_expansion": task.EXPANSION},
    "own": {},
}


def make_model(sizes: str) -> SoundStorm:
    torch.manual_seed(0)
    return SoundStorm(
        num_codes=task.CODES,
        num_quantizers=task.LEVELS,
        frame_rate=task.RATE / task.FRAME_SAMPLES,
        max_frames=task.FRAMES,
        semantic_codes=task.SEMANTIC_CODES,
        semantic_rate=task.RATE / task.SEMANTIC_SAMPLES,
        **SIZES,
        **CONVOLUTION[sizes],
    )


def about(model: SoundStorm) -> dict[str, Any]:
    net = model.net
    heads = model.head_weights.numel() + model.head_biases.numel()
    conformer = count_parameters(net.conformer)
    embeddings = count_parameters(net) - conformer
    assert heads + conformer + embeddings == count_parameters(model)
    return {"parameters": {"conformer": conformer, "embeddings": embeddings, "heads": heads}}


def make_engine(precision: str) -> Engine:
    return Engine(EngineConfig.model_validate({"precision": precision, "device": "cpu"}))


def serve_step(sizes: str, precision: str) -> None:
    model, engine = make_model(sizes).train(), make_engine(precision)
    parameters = dict(model.named_parameters())
    optimizer = make_optimizer(OptimizerConfig(lr=task.STEP_RATE, betas=task.BETAS), parameters)
    count = task.STEP_BATCH
    codes, semantic = task.codes(count), task.semantic(count)
    frames = torch.ones(count, task.FRAMES, dtype=torch.bool)
    number = 0

    def step() -> None:
        nonlocal number
        hidden = mask_codes(codes, frames, ItemRNG(0, [number] * count, range(count)), model.mask_id)
        with engine.autocast():
            conditioning = model.conditioning(frames, semantic)
            logits = model(hidden.tokens, conditioning, hidden.levels, hidden.where)
            loss = F.cross_entropy(logits.float(), hidden.targets)
        loss.backward()  # type: ignore[no-untyped-call]
        clip_gradients(parameters, gradient_norm(parameters), task.CLIP)
        optimizer.step()
        optimizer.zero_grad()
        number += 1

    serve(step, about(model), ("quintet",))


def sampling(settings: str) -> masked.Sampling:
    if settings == "peer":
        # Defaults of the peer: the top 30 % of the codes, a temperature that decreases to 0, no noise.
        return masked.Sampling(
            temperature_schedule=masked.linear, top_k=task.TOP_FRACTION, choice_temperature=0.0, greedy_last_step=True
        )
    own = SoundStormSampleConfig()
    return masked.Sampling(
        temperature=own.temperature,
        temperature_schedule=masked.TEMPERATURE_SCHEDULES[own.temperature_schedule],
        top_k=own.top_k,
        top_p=own.top_p,
        choice_temperature=own.choice_temperature,
        greedy_last_step=own.greedy_last_step,
    )


def serve_generation(sizes: str, settings: str, precision: str) -> None:
    model, engine = make_model(sizes).eval(), make_engine(precision)
    each = level_settings(sampling(settings), (task.STEPS, 1), task.LEVELS)
    frames = torch.ones(1, task.FRAMES, dtype=torch.bool)
    empty, semantic = canvas(frames, task.LEVELS), task.semantic(1)
    number = passes = 0

    def count_pass(*_: Any) -> None:
        nonlocal passes
        passes += 1

    model.net.register_forward_hook(count_pass)

    def step() -> dict[str, float]:
        nonlocal number, passes
        number, passes = number + 1, 0
        with torch.no_grad(), engine.autocast():
            generate(model, empty, model.conditioning(frames, semantic), ItemRNG(number, [0], [0]), each)
        return {"passes": passes}

    serve(step, about(model), ("quintet",))


# --- training for a fixed time --------------------------------------------------------------------------------------


def serve_training(tokenizer: str, folder: str, settings: str, seconds: str) -> None:
    data = task.read_task(Path(folder))
    frozen = {"tokenizer": open_pipeline(tokenizer)}
    sizes = {f"model.{name}": value for name, value in {**SIZES, **CONVOLUTION["peer"]}.items()}
    peer_sizes = {**sizes, "optim.max_grad_norm": task.CLIP}
    same_codes = {"model.num_quantizers": task.CLIP_LEVELS}
    ours = ours_training.make_task(SoundStormConfig, settings, frozen, peer_sizes, same_codes)
    assert isinstance(ours, SoundStormTask)

    def measure(model: SoundStorm) -> dict[str, float]:
        def predict(tokens: Tensor, level: int) -> Tensor:
            frames = torch.ones(tokens.shape[:2], dtype=torch.bool)
            logits: Tensor = model(tokens, model.conditioning(frames), torch.full((len(tokens),), level))
            return logits

        return task.masked_loss(predict, data, model.mask_id)

    train = ours_training.CodeDataset(data.train_codes, data.train_texts)
    held_out = ours_training.CodeDataset(data.codes, data.texts)
    facts = {**about(ours.soundstorm), "task": data.digest}
    ours_training.serve_training(ours, train, held_out, measure, facts, seconds)


WORKS: Mapping[str, Callable[..., None]] = {"step": serve_step, "generate": serve_generation, "loss": serve_training}


if __name__ == "__main__":
    torch.set_num_threads(1)
    WORKS[sys.argv[1]](*sys.argv[2:])
