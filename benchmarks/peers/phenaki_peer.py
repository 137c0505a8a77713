"""phenaki-pytorch's Phenaki as a worker, in the peer's environment.

`phenaki_peer.py step|sample PRECISION`, `phenaki_peer.py loss CODES RATE SECONDS`.

Changes to the peer: text embeddings are precomputed and not timed, because its T5 would be a download; and its loss is
trained with Adam, in `loss` with AdamW and a warm-up, without its trainer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from cvivit_peer import PACKAGES, make_tokenizer
from phenaki_pytorch import MaskGit, Phenaki, t5
from random_text import RandomTextEmbeddings
from torch import Tensor

import loss_task
import video_task as task
from worker import TimedTraining, serve

MAX_TOKENS = 1024
"""Size of its position table, as in its example."""


def make_phenaki() -> Any:
    t5.T5_CONFIGS[t5.DEFAULT_T5_NAME] = {"config": SimpleNamespace(d_model=task.TEXT_DIM)}
    tokenizer = make_tokenizer(use_vgg_and_gan=False)
    maskgit = MaskGit(
        dim=task.DIM,
        num_tokens=task.CODES,
        max_seq_len=MAX_TOKENS,
        dim_context=task.TEXT_DIM,
        depth=task.DEPTH,
        heads=task.HEADS,
        dim_head=task.DIM // task.HEADS,
    )
    return Phenaki(maskgit=maskgit, cvivit=tokenizer, steps=task.SAMPLE_STEPS)


def trained(phenaki: Any) -> list[Any]:
    return [parameter for parameter in phenaki.maskgit.parameters() if parameter.requires_grad]


def about(phenaki: Any) -> dict[str, Any]:
    positions = phenaki.maskgit.pos_emb.weight.numel()
    own = sum(parameter.numel() for parameter in phenaki.maskgit.parameters()) - positions
    return {"parameters": {"transformer": own, "table of positions": positions}}


def autocast(precision: str) -> Any:
    return torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16")


def serve_step(precision: str) -> None:
    phenaki = make_phenaki().train()
    optimizer = torch.optim.Adam(trained(phenaki), lr=1e-4, betas=task.BETAS)
    codes, texts = task.codes(task.STEP_BATCH), task.embeddings(task.STEP_BATCH)

    def step() -> None:
        with autocast(precision):
            loss = phenaki(video_codebook_ids=codes, text_embeds=texts)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    serve(step, about(phenaki), PACKAGES)


def serve_sampling(precision: str) -> None:
    phenaki = make_phenaki()
    texts = task.embeddings(task.SAMPLE_BATCH)
    phenaki.encode_texts = lambda *_, **__: texts

    def step() -> None:
        with autocast(precision):
            phenaki.sample(texts=task.texts(task.SAMPLE_BATCH), num_frames=task.FRAMES, cond_scale=task.GUIDANCE)

    serve(step, about(phenaki), PACKAGES)


# --- training for a fixed time --------------------------------------------------------------------------------------


def serve_training(folder: str, rate: str, seconds: str) -> None:
    data, embed = task.read_task(Path(folder)), RandomTextEmbeddings(task.LONGEST_TEXT)
    phenaki = make_phenaki().train()
    maskgit = phenaki.maskgit
    optimizer = torch.optim.AdamW(trained(phenaki), lr=float(rate), betas=loss_task.BETAS, weight_decay=0.0)
    batches = data.batches()

    def prepare() -> tuple[Tensor, Tensor]:
        codes, texts = next(batches)
        return codes, embed(texts)

    def train(batch: tuple[Tensor, Tensor]) -> None:
        codes, texts = batch
        phenaki(video_codebook_ids=codes, text_embeds=texts).backward()
        optimizer.step()
        optimizer.zero_grad()

    def predict(tokens: Tensor, texts: Sequence[str], shown: bool) -> Tensor:
        context = embed(texts)
        logits: Tensor = maskgit(tokens.view(-1, *data.grid), text_mask=(context != 0).any(-1), context=context)
        return logits

    def measure() -> dict[str, float]:
        maskgit.eval()
        metrics = loss_task.masked_loss(predict, data, maskgit.mask_id)
        maskgit.train()
        return metrics

    step = loss_task.with_warmup(train, optimizer, float(rate))
    training = TimedTraining(step, measure, float(seconds), prepare)
    serve(training.next_slice, {**about(phenaki), "task": data.digest}, PACKAGES)


WORKS: Mapping[str, Callable[..., None]] = {"step": serve_step, "sample": serve_sampling, "loss": serve_training}


if __name__ == "__main__":
    torch.set_num_threads(1)
    WORKS[sys.argv[1]](*sys.argv[2:])
