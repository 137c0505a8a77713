"""muse-maskgit-pytorch's VQ-GAN step as a worker, in the peer's environment: `vqgan_peer.py PRECISION`.

Changes to the peer: torchvision's two operators are declared by name, because its compiled part does not load on a CPU
build of torch; and the perceptual network, which the peer would download, is one small convolution.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from worker import serve

warnings.filterwarnings("ignore")
library: Any = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
for schema in (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
):
    library.define(schema)

from muse_maskgit_pytorch import VQGanVAE  # noqa: E402


class TinyPerceptual(nn.Module):
    """A very cheap network, so that the tokenizer and the discriminator are timed."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 8, 3, 2)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.convolution(images)
        return features.flatten(1)


def main(precision: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    vae = VQGanVAE(dim=32, layers=4, discr_layers=4, codebook_size=1024)
    discriminator = list(vae.discr.parameters())
    members = {id(parameter) for parameter in discriminator}
    generator = [parameter for parameter in vae.parameters() if id(parameter) not in members]
    optimizer = torch.optim.Adam(generator, lr=3e-4)
    discriminator_optimizer = torch.optim.Adam(discriminator, lr=3e-4)
    vae._vgg = TinyPerceptual()
    images = torch.rand(4, 3, 128, 128)

    def step() -> None:
        for keyword, stepped in (("return_loss", optimizer), ("return_discr_loss", discriminator_optimizer)):
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
                loss = vae(images.clone(), **{keyword: True})
            loss.backward()
            stepped.step()
            stepped.zero_grad()

    parameters = {"vae": sum(p.numel() for p in generator), "discriminator": sum(p.numel() for p in discriminator)}
    serve(step, {"parameters": parameters}, ("muse-maskgit-pytorch", "vector-quantize-pytorch", "torchvision"))


if __name__ == "__main__":
    main(*sys.argv[1:])
