"""`VQGanPipeline`: encodes images to grids of codes and decodes them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from quintet.common.artifact import Artifact
from quintet.common.batch import Batch
from quintet.config import validate
from quintet.data.image import folder_splits
from quintet.data.splits import Splits
from quintet.families.vqgan.config import VQGanConfig
from quintet.families.vqgan.model import VQGanVAE
from quintet.families.vqgan.pretrained import PretrainedVQ
from quintet.media.image import write_image
from quintet.pipelines.base import Frozen, Origin, Tokenizer


class VQGanPipeline(Tokenizer[VQGanConfig]):
    """An image tokenizer.

    tokenizer = VQGanPipeline.from_pretrained("runs/tok")    # or the folder of a Janus, Emu3 or diffusers VQ model
    images = tokenizer.decode(tokenizer.encode(images))
    """

    recipe = "vqgan"
    exported = "vae"

    @classmethod
    def build_modules(cls, config: VQGanConfig, frozen: Frozen) -> dict[str, nn.Module]:
        return {"vae": (VQGanVAE if config.model.pretrained_config is None else PretrainedVQ)(config.model)}

    @classmethod
    def from_transformers(cls, folder: Path) -> VQGanPipeline:
        vae = PretrainedVQ.from_folder(folder)
        config = validate(VQGanConfig, {"model": vae.config.model_dump(mode="json")})
        return cls(config, {"vae": vae}, origin=Origin(folder))

    @property
    def vae(self) -> VQGanVAE | PretrainedVQ:
        vae = self.modules["vae"]
        assert isinstance(vae, VQGanVAE | PretrainedVQ)
        return vae

    def encode(self, images: Tensor) -> Tensor:
        """Codes (batch, rows, columns[, num_quantizers]) of images (batch, channels, height, width) in [0, 1]."""
        with self.inference():
            return self.vae.encode(self.media(images))

    def decode(self, codes: Tensor) -> Tensor:
        """Images (batch, channels, height, width) in [0, 1] of codes (batch, rows, columns[, num_quantizers])."""
        with self.inference():
            return self.vae.decode(self.checked_codes(codes))

    def splits(self) -> Splits:
        return folder_splits(self.config.data, self.config.model.size, self.config.model.channels)

    def encode_batch(self, batch: Batch) -> Tensor:
        return self.vae.encode(pixels(batch))

    def decode_files(self, codes: Tensor, name: str) -> list[Artifact]:
        images = self.vae.decode(codes)
        return [
            Artifact(f"{name}.png" if len(images) == 1 else f"{name}-{number}.png", partial(write_image, image))
            for number, image in enumerate(images)
        ]


def pixels(batch: Batch) -> Tensor:
    """Images (batch, channels, height, width) in [0, 1], in channels-last memory format."""
    images: Tensor = batch["images"]
    if images.dtype == torch.uint8:
        images = images.to(batch.precision) / 255
    return images.contiguous(memory_format=torch.channels_last)
