"""muse-maskgit-pytorch's MaskGit as a worker, in the peer's environment.

`muse_peer.py step|sample ATTENTION PRECISION`, `muse_peer.py loss ATTENTION CODES RATE SECONDS`; ATTENTION is
`flash` or `plain`, its two implementations.

Changes to the peer: text embeddings are precomputed and not timed, because its T5 would be a download; sampling ends
with codes, because its decoder is not timed; and it has no trainer for MaskGit, so that `loss` trains its loss with
AdamW and a warm-up.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import vqgan_peer  # noqa: F401  declares torchvision's operators, without which the peer does not import
from muse_maskgit_pytorch import MaskGit, MaskGitTransformer, VQGanVAE, muse_maskgit_pytorch, t5
from random_text import DIM as TEXT_DIM
from random_text import RandomTextEmbeddings
from torch import Tensor

import loss_task
import muse_task as task
from worker import TimedTraining, serve

PACKAGES = ("muse-maskgit-pytorch", "torchvision")


def make_maskgit(grid: int, attention: str) -> Any:
    """The peer's model with an untrained tokenizer, which only defines the grid and the codebook."""
    torch.manual_seed(0)
    t5.T5_CONFIGS["random"] = {"config": SimpleNamespace(d_model=TEXT_DIM)}
    transformer = MaskGitTransformer(
        num_tokens=task.CODES,
        seq_len=grid * grid,
        dim=task.DIM,
        depth=task.DEPTH,
        heads=task.HEADS,
        dim_head=task.DIM // task.HEADS,
        t5_name="random",
        flash=attention == "flash",
    )
    vae = VQGanVAE(dim=16, codebook_size=task.CODES, use_vgg_and_gan=False)
    return MaskGit(image_size=grid * 16, transformer=transformer, vae=vae, cond_drop_prob=task.DROP_TEXT)


def trained(maskgit: Any) -> list[Any]:
    return [parameter for parameter in maskgit.transformer.parameters() if parameter.requires_grad]


def make_optimizer(maskgit: Any, rate: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(trained(maskgit), lr=rate, betas=loss_task.BETAS, weight_decay=0.0)


def about(maskgit: Any) -> dict[str, Any]:
    def count(module: Any) -> int:
        return sum(parameter.numel() for parameter in module.parameters())

    text = count(maskgit.transformer.text_embed_proj)
    # Created by its constructor even without self-conditioning, where it is never called.
    unused = count(maskgit.transformer.self_cond_to_init_embed)
    own = count(maskgit.transformer) - text - unused
    return {"parameters": {"transformer": own, "text projection": text, "never called": unused}}


def autocast(precision: str) -> Any:
    return torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16")


# --- a step, and sampling -----------------------------------------------------------------------------------------


def serve_step(attention: str, precision: str) -> None:
    maskgit = make_maskgit(task.GRID, attention)
    optimizer = make_optimizer(maskgit, 3e-4)
    codes = torch.randint(0, task.CODES, (task.STEP_BATCH, task.GRID, task.GRID))
    texts = torch.randn(task.STEP_BATCH, task.TEXT_SYMBOLS, TEXT_DIM)

    def step() -> None:
        with autocast(precision):
            loss = maskgit(codes, text_embeds=texts)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    serve(step, about(maskgit), PACKAGES)


def serve_sampling(attention: str, precision: str) -> None:
    maskgit = make_maskgit(task.GRID, attention)
    texts = torch.randn(task.SAMPLE_BATCH, task.TEXT_SYMBOLS, TEXT_DIM)
    maskgit.transformer.encode_text = lambda _: texts
    maskgit.vae.decode_from_ids = lambda codes: codes
    muse_maskgit_pytorch.tqdm = lambda steps, **_: steps

    def step() -> None:
        with autocast(precision):
            maskgit.generate(texts=task.texts(task.SAMPLE_BATCH), timesteps=task.SAMPLE_STEPS, cond_scale=task.GUIDANCE)

    serve(step, about(maskgit), PACKAGES)


# --- training for a fixed time --------------------------------------------------------------------------------------


def serve_training(attention: str, folder: str, rate: str, seconds: str) -> None:
    data, embed = task.read_task(Path(folder)), RandomTextEmbeddings(task.LONGEST_TEXT)
    maskgit = make_maskgit(data.grid[0], attention)
    optimizer = make_optimizer(maskgit, float(rate))
    batches = data.batches()

    def prepare() -> tuple[Tensor, Tensor]:
        codes, texts = next(batches)
        return codes.flatten(1), embed(texts)

    def train(batch: tuple[Tensor, Tensor]) -> None:
        codes, texts = batch
        maskgit(codes, text_embeds=texts).backward()
        optimizer.step()
        optimizer.zero_grad()

    def predict(tokens: Tensor, texts: Sequence[str], shown: bool) -> Tensor:
        logits: Tensor = maskgit.transformer(tokens, text_embeds=embed(texts), cond_drop_prob=0.0 if shown else 1.0)
        return logits

    def measure() -> dict[str, float]:
        return loss_task.masked_loss(predict, data, maskgit.mask_id, (True, False))

    step = loss_task.with_warmup(train, optimizer, float(rate))
    training = TimedTraining(step, measure, float(seconds), prepare)
    serve(training.next_slice, {**about(maskgit), "task": data.digest}, PACKAGES)


WORKS: Mapping[str, Callable[..., None]] = {"step": serve_step, "sample": serve_sampling, "loss": serve_training}


if __name__ == "__main__":
    torch.set_num_threads(1)
    WORKS[sys.argv[1]](*sys.argv[2:])
