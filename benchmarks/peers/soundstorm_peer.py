"""soundstorm-pytorch's SoundStorm as a worker, in the peer's environment.

`soundstorm_peer.py step|generate STREAMS PRECISION`; STREAMS is the number of residual streams: 4, its default,
or 1, without their cost. `soundstorm_peer.py loss CODES RATE SECONDS`: with its default settings, without semantic
tokens.

Its loss is trained with the optimizer and clipping of its trainer; in `loss` with AdamW, a warm-up and that clipping.
Codes and semantic tokens are precomputed, and generation ends with codes, because its codec is not timed. Its progress
bars are off.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import audio_stand_ins  # noqa: F401  without which the peer does not import
import torch
from torch import Tensor, nn

import loss_task
import soundstorm_task as task
from worker import TimedTraining, serve

warnings.filterwarnings("ignore")

from soundstorm_pytorch import Conformer, ConformerWrapper, SoundStorm, soundstorm  # noqa: E402

soundstorm.tqdm = lambda steps, **_: steps

PACKAGES = ("soundstorm-pytorch", "hyper-connections")


def make_net(levels: int, **keywords: Any) -> Any:
    torch.manual_seed(0)
    conformer = Conformer(
        dim=task.DIM,
        depth=task.DEPTH,
        heads=task.HEADS,
        dim_head=task.HEAD_DIM,
        ff_mult=task.MULTIPLIER,
        conv_expansion_factor=task.EXPANSION,
        conv_kernel_size=task.KERNEL,
        **keywords,
    )
    return ConformerWrapper(codebook_size=task.CODES, num_quantizers=levels, conformer=conformer)


def make_model(streams: str) -> Any:
    return SoundStorm(
        make_net(task.LEVELS, num_residual_streams=int(streams)),
        steps=task.STEPS,
        schedule="cosine",
        num_semantic_token_ids=task.SEMANTIC_CODES,
        wav2vec_target_sample_hz=task.RATE,
        wav2vec_downsample_factor=task.SEMANTIC_SAMPLES,
        codec_target_sample_hz=task.RATE,
        codec_downsample_factor=task.FRAME_SAMPLES,
    )


def about(model: Any) -> dict[str, Any]:
    def count(*modules: Any) -> int:
        return sum(parameter.numel() for module in modules for parameter in module.parameters())

    semantic = [model.semantic_token_emb] if model.should_condition else []
    parameters = {
        "conformer": count(model.net.conformer),
        "embeddings": count(model.net.code_embeds, *semantic),
        "heads": count(model.net.heads, model.net.to_logits),
    }
    assert sum(parameters.values()) == count(model)
    return {"parameters": parameters}


def autocast(precision: str) -> Any:
    return torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16")


def make_step(model: Any, optimizer: Any, precision: str = "fp32") -> Callable[..., None]:
    parameters = list(model.parameters())

    def step(codes: Tensor, **conditioning: Tensor) -> None:
        with autocast(precision):
            # A copy, because it modifies its input.
            loss, _ = model(codes.clone(), **conditioning)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, task.CLIP)
        optimizer.step()
        optimizer.zero_grad()

    return step


def serve_step(streams: str, precision: str) -> None:
    model = make_model(streams).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=task.STEP_RATE, betas=task.BETAS)
    train = make_step(model, optimizer, precision)
    codes, semantic = task.codes(task.STEP_BATCH), task.semantic(task.STEP_BATCH)
    serve(lambda: train(codes, cond_semantic_token_ids=semantic), about(model), PACKAGES)


def serve_generation(streams: str, precision: str) -> None:
    model, semantic = make_model(streams), task.semantic(1)
    passes = 0

    def count_pass(*_: Any) -> None:
        nonlocal passes
        passes += 1

    model.net.register_forward_hook(count_pass)

    def step() -> dict[str, float]:
        nonlocal passes
        passes = 0
        with autocast(precision):
            model.generate(cond_semantic_token_ids=semantic, filter_thres=1 - task.TOP_FRACTION)
        return {"passes": passes}

    serve(step, about(model), PACKAGES)


# --- training for a fixed time --------------------------------------------------------------------------------------


def serve_training(folder: str, rate: str, seconds: str) -> None:
    data = task.read_task(Path(folder))
    model = SoundStorm(make_net(task.CLIP_LEVELS)).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=float(rate), betas=loss_task.BETAS, weight_decay=0.0)
    batches = data.batches()

    def predict(tokens: Tensor, level: int) -> Tensor:
        logits: Tensor = model.net(tokens.flatten(1))
        return logits.view(*tokens.shape, -1)[:, :, level]

    def measure() -> dict[str, float]:
        model.eval()
        metrics = task.masked_loss(predict, data, model.mask_id)
        model.train()
        return metrics

    step = loss_task.with_warmup(make_step(model, optimizer), optimizer, float(rate))
    training = TimedTraining(step, measure, float(seconds), lambda: next(batches)[0])
    serve(training.next_slice, {**about(model), "task": data.digest}, PACKAGES)


WORKS: Mapping[str, Callable[..., None]] = {"step": serve_step, "generate": serve_generation, "loss": serve_training}


if __name__ == "__main__":
    torch.set_num_threads(1)
    WORKS[sys.argv[1]](*sys.argv[2:])
