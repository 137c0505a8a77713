"""`CViViT` of phenaki-pytorch: quintet's `CViViT` and its discriminator in one module."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from einops import rearrange
from torch import Tensor, nn

from quintet.compat.model import CompatModel, TrainingParts, build_task, notify, refuse_unless
from quintet.compat.quantizer import set_options
from quintet.errors import UsageError
from quintet.families.cvivit.config import CViViTConfig
from quintet.families.cvivit.model import CViViT as OwnCViViT
from quintet.families.cvivit.task import CViViTTask

NAME = "CViViT"
FRAMES = 16
"""Frames after the first one in the data of a run, about; a trainer sets the exact number."""


class CViViT(CompatModel):
    """Encodes videos (batch, 3, frames, height, width) to codes and decodes them; its discriminator is `discr`.

    The loss is that of quintet's recipe `cvivit`, with the adversarial loss from the first step, as in the original.
    Pixels are centred on 0.5; other ranges than [0, 1] work, and reconstructions are not clamped.
    """

    config_class = CViViTConfig
    task_class = CViViTTask
    absent: ClassVar = {
        "encode": "it took the embeddings of patches; cvivit(videos, return_only_codebook_ids=True) returns codes",
        "vgg": "the perceptual loss reads a safetensors file of VGG-16; pass its path as vgg=",
    }

    def __init__(
        self,
        *,
        dim: int,
        codebook_size: int,
        image_size: int | tuple[int, int],
        patch_size: int | tuple[int, int],
        temporal_patch_size: int,
        spatial_depth: int,
        temporal_depth: int,
        discr_base_dim: int = 16,
        dim_head: int = 64,
        heads: int = 8,
        channels: int = 3,
        use_vgg_and_gan: bool = True,
        vgg: str | Path | None = None,
        discr_attn_res_layers: Sequence[int] = (16,),
        use_hinge_loss: bool = True,
        attn_dropout: float = 0.0,
        ff_dropout: float = 0.0,
        lookup_free_quantization: bool = True,
        lookup_free_quantization_kwargs: Mapping[str, Any] = {},
    ) -> None:
        super().__init__()
        sides = (patch_size, patch_size) if isinstance(patch_size, int) else tuple(patch_size)
        if sides[0] != sides[1]:
            raise UsageError(f"{NAME}: patch_size={patch_size} is refused: patches are square")
        if vgg is not None and not isinstance(vgg, (str, Path)):
            raise UsageError(f"{NAME}: vgg is the path of a safetensors file of VGG-16, not a {type(vgg).__name__}")
        refuse_unless(NAME, "channels", channels, (3,), "videos are RGB; repeat the channel of gray videos")
        refuse_unless(NAME, "use_hinge_loss", use_hinge_loss, (True,), "quintet has only the hinge loss; leave it out")
        for name, value in (("attn_dropout", attn_dropout), ("ff_dropout", ff_dropout)):
            refuse_unless(NAME, name, float(value), (0.0,), "the tokenizer has no dropout; leave it out")
        self.model = OwnCViViT(
            image_size=image_size,
            patch_size=sides[0],
            temporal_patch_size=temporal_patch_size,
            dim=dim,
            spatial_depth=spatial_depth,
            temporal_depth=temporal_depth,
            heads=heads,
            head_dim=dim_head,
            quantizer="lfq" if lookup_free_quantization else "vq",
            codebook_size=codebook_size,
        )
        notices = set_options(NAME, self.model.quantizer, lookup_free_quantization_kwargs)
        self.image_size, self.patch_size = self.model.config.size, sides
        self.temporal_patch_size = temporal_patch_size
        self.lookup_free_quantization = lookup_free_quantization
        self.use_vgg_and_gan = use_vgg_and_gan
        self._keys = {
            "data.frames": 1 + temporal_patch_size * max(1, FRAMES // temporal_patch_size),
            "loss.discriminator": use_vgg_and_gan,
            "loss.discriminator_start": 0,
            "loss.discriminator_ramp": 0,
            "loss.discriminator_dim": discr_base_dim,
            "loss.perceptual_weights": None if vgg is None or not use_vgg_and_gan else str(vgg),
            "loss.perceptual": 1.0,
        }
        self.discr: nn.Module | None = None
        if use_vgg_and_gan:
            self.discr = build_task(CViViTTask, self.training_parts()).modules["discriminator"]
            notices.append("the discriminator classifies patches and has no attention (discr_attn_res_layers)")
            if vgg is None:
                notices.append(
                    "there is no perceptual loss, because nothing is downloaded; "
                    "pass vgg= the path of a safetensors file of VGG-16"
                )
        notify(NAME, *notices)

    def training_parts(self) -> TrainingParts:
        self.apply_statistics()
        modules = {} if self.discr is None else {"discriminator": self.discr}
        return TrainingParts(self.model, {}, modules, dict(self._keys), self._initialised)

    def copy_for_eval(self) -> CViViT:
        """A copy in eval mode without the discriminator."""
        duplicate = copy.deepcopy(self)
        duplicate.discr = None
        duplicate._keys = {**duplicate._keys, "loss.discriminator": False, "loss.perceptual_weights": None}
        return duplicate.eval()

    # --- shapes -------------------------------------------------------------------------------------------------

    @property
    def codebook_size(self) -> int:
        return self.model.num_codes

    @property
    def patch_height_width(self) -> tuple[int, int]:
        """Number of rows and columns of codes in one latent frame."""
        return self.model.config.grid

    @property
    def image_num_tokens(self) -> int:
        """Number of codes of an image."""
        rows, columns = self.patch_height_width
        return rows * columns

    def get_video_patch_shape(self, num_frames: int, include_first_frame: bool = True) -> tuple[int, int, int]:
        """Number of latent frames, rows and columns of codes."""
        frames = num_frames - include_first_frame
        return (include_first_frame + frames // self.temporal_patch_size, *self.patch_height_width)

    def num_tokens_per_frames(self, num_frames: int, include_first_frame: bool = True) -> int:
        """Number of codes of a video."""
        frames = num_frames - include_first_frame
        if frames % self.temporal_patch_size:
            raise UsageError(
                f"{NAME}: {frames} frames after the first are not a multiple of "
                f"temporal_patch_size={self.temporal_patch_size}"
            )
        return (include_first_frame + frames // self.temporal_patch_size) * self.image_num_tokens

    def frames_per_num_tokens(self, num_tokens: int) -> int:
        """Number of frames of a video with that many codes."""
        if num_tokens <= 0 or num_tokens % self.image_num_tokens:
            raise UsageError(f"{NAME}: {num_tokens} codes are not a multiple of {self.image_num_tokens} per frame")
        return self.model.config.frames(num_tokens // self.image_num_tokens)

    def calculate_video_token_mask(self, videos: Tensor | None, video_frame_mask: Tensor) -> Tensor:
        """Mask of codes (batch, codes) of a mask of frames (batch, frames)."""
        if ((video_frame_mask.sum(-1) - 1) % self.temporal_patch_size).any():
            raise UsageError(
                f"{NAME}: a mask selects 1 plus a multiple of temporal_patch_size={self.temporal_patch_size} frames"
            )
        frames = self.model.latent_frame_mask(video_frame_mask)
        return frames.repeat_interleave(self.image_num_tokens, 1)

    # --- encoding and decoding ------------------------------------------------------------------------------------

    def decode_from_codebook_indices(self, indices: Tensor) -> Tensor:
        """Videos (batch, 3, frames, height, width), not clamped, of codes (batch, codes)."""
        vectors = self.model.quantizer.codes_to_vectors(indices.flatten(1))
        return self.decode(vectors)

    def decode(self, tokens: Tensor) -> Tensor:
        """Videos, not clamped, of quantized vectors (batch, codes, dim) or (batch, frames, rows, columns, dim)."""
        flat = tokens if tokens.ndim == 3 else tokens.flatten(1, 3)
        return self.model.decode_vectors(rearrange(flat, "b (k n) d -> b k n d", n=self.image_num_tokens))

    def forward(
        self,
        video: Tensor,
        mask: Tensor | None = None,
        return_recons: bool = False,
        return_recons_only: bool = False,
        return_discr_loss: bool = False,
        apply_grad_penalty: bool = True,
        return_only_codebook_ids: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """The loss of videos (batch, 3, frames, height, width) or images, or one of the other results.

        `mask` (batch, frames) is true for real frames.
        """
        is_image = video.ndim == 4
        if is_image and mask is not None:
            raise UsageError(f"{NAME}: images have no mask")
        videos = (video[:, :, None] if is_image else video).to(self.device, self.dtype)
        if return_only_codebook_ids:
            return self.model.encode(videos)
        if return_recons_only:
            reconstructed: Tensor = self.model(videos, mask).videos
            return reconstructed[:, :, 0] if is_image else reconstructed
        valid = torch.ones(len(videos), videos.shape[2], dtype=torch.bool) if mask is None else mask.bool()
        fields = {"videos": videos, "mask": valid}
        if return_discr_loss:
            loss, recons = self._discriminator(fields, len(videos), apply_grad_penalty)
        else:
            forward_pass = self.forward_pass(fields, len(videos))
            loss = self.phase_loss("generator", forward_pass).value
            recons = forward_pass.output["result"].videos
        return (loss, recons[:, :, 0] if is_image else recons) if return_recons else loss

    def _discriminator(self, fields: dict[str, Tensor], size: int, penalised: bool) -> tuple[Tensor, Tensor]:
        if self.discr is None:
            raise UsageError(f"{NAME} has no discriminator; build it with use_vgg_and_gan=True")
        forward_pass = self.forward_pass(fields, size, updates=False)
        task = self.task
        assert isinstance(task, CViViTTask)
        keeps_graph = torch.is_grad_enabled()
        with torch.enable_grad():  # for the gradient penalty
            loss = task.discriminator_loss_of(task.modules, forward_pass.output, penalised).value
        return loss if keeps_graph else loss.detach(), forward_pass.output["result"].videos
