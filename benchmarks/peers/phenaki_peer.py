"""phenaki-pytorch's Phenaki as a worker, in the peer's environment: `phenaki_peer.py step|sample PRECISION`.

Changes to the peer: text embeddings are precomputed and not timed, because its T5 would be a download; and its loss is
trained with Adam, without its trainer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from cvivit_peer import PACKAGES, make_tokenizer
from phenaki_pytorch import MaskGit, Phenaki, t5

import video_task as task
from worker import serve

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


def about(phenaki: Any) -> dict[str, Any]:
    positions = phenaki.maskgit.pos_emb.weight.numel()
    own = sum(parameter.numel() for parameter in phenaki.maskgit.parameters()) - positions
    return {"parameters": {"transformer": own, "table of positions": positions}}


def autocast(precision: str) -> Any:
    return torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16")


def serve_step(precision: str) -> None:
    phenaki = make_phenaki().train()
    parameters = [parameter for parameter in phenaki.maskgit.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(parameters, lr=1e-4, betas=task.BETAS)
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


WORKS: Mapping[str, Callable[[str], None]] = {"step": serve_step, "sample": serve_sampling}


if __name__ == "__main__":
    torch.set_num_threads(1)
    WORKS[sys.argv[1]](*sys.argv[2:])
