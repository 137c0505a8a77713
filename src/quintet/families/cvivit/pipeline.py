"""`CViViTPipeline`: encodes videos and images to grids of codes, one per latent frame, and decodes them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from quintet.common.artifact import Artifact
from quintet.common.batch import Batch, Collate, Item
from quintet.data.splits import Splits
from quintet.data.video import pad_clips, video_folder_splits
from quintet.errors import UsageError
from quintet.families.cvivit.config import CViViTConfig, CViViTModelConfig
from quintet.families.cvivit.model import CViViT
from quintet.media.video_writing import write_video
from quintet.pipelines.base import Tokenizer


class CViViTPipeline(Tokenizer[CViViTConfig]):
    """A video tokenizer.

    tokenizer = CViViTPipeline.from_pretrained("runs/vtok")
    videos = tokenizer.decode(tokenizer.encode(videos))
    """

    recipe = "cvivit"
    exported = "cvivit"
    model_class = CViViT

    @property
    def cvivit(self) -> CViViT:
        cvivit = self.modules["cvivit"]
        assert isinstance(cvivit, CViViT)
        return cvivit

    def encode(self, videos: Tensor, mask: Tensor | None = None) -> Tensor:
        """Codes (batch, latent frames, rows, columns[, num_quantizers]) of videos or images.

        Videos are (batch, 3, frames, height, width) in [0, 1], images (batch, 3, height, width).

        `mask` (batch, frames) is true for real frames; the codes of padding are -1.
        """
        with self.inference():
            if mask is not None and (videos.ndim != 5 or mask.shape != (videos.shape[0], videos.shape[2])):
                raise UsageError(f"the mask must have the shape (batch, frames), not {tuple(mask.shape)}")
            mask = None if mask is None else mask.to(self.device)
            return self.cvivit.encode(self.media(videos), mask)

    def decode(self, codes: Tensor) -> Tensor:
        """Videos (batch, 3, frames, height, width) in [0, 1].

        Codes are (batch, latent frames, rows, columns[, num_quantizers]). Frames of codes -1 are meaningless.
        """
        with self.inference():
            return self.cvivit.decode(self.checked_codes(codes))

    def splits(self) -> Splits:
        return video_folder_splits(self.config.data, self.config.model.size)

    @property
    def collate(self) -> Collate:
        return partial(_collate_clips, self.config.model)

    def encode_batch(self, batch: Batch) -> Tensor:
        return self.cvivit.encode(pixels(batch), batch["mask"])

    def decode_files(self, codes: Tensor, name: str) -> list[Artifact]:
        videos = self.cvivit.decode(codes)
        latent_frames = (codes >= 0).flatten(2).any(2).sum(1)
        lengths = [self.config.model.frames(int(count)) for count in latent_frames]
        return [
            Artifact(
                f"{name}.mp4" if len(videos) == 1 else f"{name}-{number}.mp4",
                partial(write_video, video[:, :length].cpu()),
            )
            for number, (video, length) in enumerate(zip(videos, lengths, strict=True))
        ]


def _collate_clips(model: CViViTModelConfig, items: Sequence[Item]) -> dict[str, Any]:
    """Clips padded to the longest one, rounded up to full latent frames."""
    longest = max(item["videos"].shape[1] for item in items)
    return pad_clips(items, model.frames(model.latent_frames(longest)))


def pixels(batch: Batch) -> Tensor:
    """Videos (batch, 3, frames, height, width) in [0, 1]."""
    videos: Tensor = batch["videos"]
    return videos.to(batch.precision) / 255 if videos.dtype == torch.uint8 else videos
