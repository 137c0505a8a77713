"""phenaki-pytorch's C-ViViT step as a worker, in the peer's environment: `cvivit_peer.py PRECISION`.

Changes to the peer: torchvision's operators are declared by name, because its compiled part does not load on a CPU
build of torch; the perceptual network, which it would download, is one small convolution, and it is frozen, whereas the
peer's trainer passes it to the optimizer.
"""

from __future__ import annotations

import sys

import torch
import vqgan_peer  # declares torchvision's operators, without which the peer does not import
from phenaki_pytorch import CViViT

import video_task as task
from worker import serve

PACKAGES = ("phenaki-pytorch", "vector-quantize-pytorch", "torchvision")


def make_tokenizer(**keywords: object) -> CViViT:
    torch.manual_seed(0)
    return CViViT(
        **task.TOKENIZER,
        dim_head=task.HEAD_DIM,
        codebook_size=task.CODES,
        image_size=task.SIDE,
        patch_size=task.PATCH,
        temporal_patch_size=task.TUBE,
        **keywords,
    )


def main(precision: str) -> None:
    perceptual = vqgan_peer.TinyPerceptual().requires_grad_(False)
    tokenizer = make_tokenizer(vgg=perceptual).train()
    discriminator = list(tokenizer.discr.parameters())
    members = {id(parameter) for parameter in (*discriminator, *perceptual.parameters())}
    generator = [parameter for parameter in tokenizer.parameters() if id(parameter) not in members]
    optimizer = torch.optim.Adam(generator, lr=3e-4)
    discriminator_optimizer = torch.optim.Adam(discriminator, lr=3e-4)
    clips = task.videos(task.TOKENIZER_BATCH)

    def step() -> None:
        for keywords, stepped in (({}, optimizer), ({"return_discr_loss": True}, discriminator_optimizer)):
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
                loss = tokenizer(clips.clone(), **keywords)
            loss.backward()
            stepped.step()
            stepped.zero_grad()

    parameters = {"cvivit": sum(p.numel() for p in generator), "discriminator": sum(p.numel() for p in discriminator)}
    serve(step, {"parameters": parameters}, PACKAGES)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
