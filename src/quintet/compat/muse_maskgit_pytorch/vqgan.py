"""`VQGanVAE` of muse-maskgit-pytorch: quintet's `VQGanVAE` and its discriminator in one module."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from einops import rearrange
from torch import Tensor, nn

from quintet.compat.model import CompatModel, TrainingParts, build_task, notify, refuse_unknown, refuse_unless
from quintet.compat.quantizer import set_options
from quintet.config import validate
from quintet.errors import UsageError
from quintet.families.vqgan.config import VQGanConfig, VQGanModelConfig
from quintet.families.vqgan.model import VQGanVAE as OwnVQGanVAE
from quintet.families.vqgan.task import VQGanTask
from quintet.nn.quantize.base import Quantizer

NAME = "VQGanVAE"
GRID = 16
"""Rows and columns of codes until `set_image_size`; the original has no image size, and works with any."""

VQ_DEFAULTS = {
    "codebook_dim": 256,
    "decay": 0.8,
    "commitment_weight": 1.0,
    "kmeans_init": True,
    "use_cosine_sim": True,
}
LFQ_DEFAULTS = {"diversity_gamma": 4.0}


class VQGanVAE(CompatModel):
    """Encodes images (batch, channels, height, width) to codes and decodes them; holds its discriminator as `discr`.

    The loss is that of quintet's recipe `vqgan`, with the adversarial loss from the first step, as in the original.
    Pixels are centred on 0.5; other ranges than [0, 1] work, and reconstructions are not clamped.
    """

    config_class = VQGanConfig
    task_class = VQGanTask
    absent: ClassVar = {"vgg": "the perceptual loss reads a safetensors file of VGG-16; pass its path as vgg="}

    def __init__(
        self,
        *,
        dim: int,
        channels: int = 3,
        layers: int = 4,
        l2_recon_loss: bool = False,
        use_hinge_loss: bool = True,
        vgg: str | Path | None = None,
        lookup_free_quantization: bool = True,
        codebook_size: int = 65536,
        vq_kwargs: Mapping[str, Any] = VQ_DEFAULTS,
        lfq_kwargs: Mapping[str, Any] = LFQ_DEFAULTS,
        use_vgg_and_gan: bool = True,
        discr_layers: int = 4,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        refuse_unless(NAME, "use_hinge_loss", use_hinge_loss, (True,), "quintet has only the hinge loss; leave it out")
        if vgg is not None and not isinstance(vgg, (str, Path)):
            raise UsageError(f"{NAME}: vgg is the path of a safetensors file of VGG-16, not a {type(vgg).__name__}")
        prefixed = {name: kwargs.pop(name) for name in list(kwargs) if name.startswith(("vq_", "encdec_"))}
        refuse_unknown(NAME, kwargs)
        notices = []
        self.model = OwnVQGanVAE(
            image_size=GRID * 2**layers,
            channels=channels,
            dim=dim,
            layers=layers,
            blocks=_blocks(prefixed, layers),
            quantizer="lfq" if lookup_free_quantization else "vq",
            codebook_size=codebook_size,
        )
        vq_options = {**vq_kwargs, **{name[3:]: value for name, value in prefixed.items() if name.startswith("vq_")}}
        notices += set_options(NAME, self.model.quantizer, lfq_kwargs if lookup_free_quantization else vq_options)
        self.channels = channels
        self.codebook_size = codebook_size
        self.dim_divisor: int = 2**layers
        self.lookup_free_quantization = lookup_free_quantization
        self.use_vgg_and_gan = use_vgg_and_gan
        self._keys = {
            "loss.reconstruction": "l2" if l2_recon_loss else "l1",
            "loss.discriminator": use_vgg_and_gan,
            "loss.discriminator_start": 0,
            "loss.discriminator_ramp": 0,
            "loss.discriminator_dim": dim,
            "loss.discriminator_layers": discr_layers,
            "loss.adversarial": 1.0,
            "loss.perceptual_weights": None if vgg is None or not use_vgg_and_gan else str(vgg),
        }
        self.discr: nn.Module | None = None
        if use_vgg_and_gan:
            self.discr = build_task(VQGanTask, self.training_parts()).modules["discriminator"]
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

    def set_image_size(self, size: int | tuple[int, int]) -> None:
        """Record the size of the images, which quintet's data sets and generators need. No weight depends on it."""
        keys = {**self.model.config.model_dump(mode="json"), "image_size": size}
        self.model.config = validate(VQGanModelConfig, keys)
        self._task = None

    # --- attributes of the original -----------------------------------------------------------------------------

    @property
    def quantizer(self) -> Quantizer:
        return self.model.quantizer

    @property
    def encoded_dim(self) -> int:
        """Number of channels of the encoded feature map."""
        return int(self.model.quantizer.dim)

    def get_encoded_fmap_size(self, image_size: int) -> int:
        """Number of rows (and columns) of codes of a square image."""
        return image_size // self.dim_divisor

    def copy_for_eval(self) -> VQGanVAE:
        """A copy in eval mode without the discriminator."""
        duplicate = copy.deepcopy(self)
        duplicate.discr = None
        duplicate._keys = {**duplicate._keys, "loss.discriminator": False, "loss.perceptual_weights": None}
        return duplicate.eval()

    # --- encoding and decoding ------------------------------------------------------------------------------------

    def encode(self, fmap: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The quantized feature map (batch, channels, rows, columns), the codes (batch, rows, columns), and the loss of
        the quantizer, of images."""
        latents = self.model.latent_map(fmap.to(self.dtype))
        rows, columns = latents.shape[-2:]
        quantized = self.model.quantizer(rearrange(latents, "b c h w -> b (h w) c"))
        vectors = rearrange(quantized.vectors, "b (h w) c -> b c h w", h=rows)
        return vectors, quantized.codes.view(-1, rows, columns), quantized.loss

    def decode(self, fmap: Tensor) -> Tensor:
        """Images (batch, channels, height, width) of quantized feature maps (batch, channels, rows, columns)."""
        return self.model.decode_vectors(rearrange(fmap, "b c h w -> b (h w) c"), fmap.shape[-2:])

    def decode_from_ids(self, ids: Tensor) -> Tensor:
        """Images (batch, channels, height, width) of codes (batch, rows, columns)."""
        return self.model.decode_vectors(self.model.quantizer.codes_to_vectors(ids.flatten(1)), ids.shape[1:])

    def forward(
        self,
        img: Tensor,
        return_loss: bool = False,
        return_discr_loss: bool = False,
        return_recons: bool = False,
        add_gradient_penalty: bool = True,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Reconstructed images; the loss of the autoencoder or of the discriminator; with `return_recons` both."""
        self._check(img)
        if not return_loss and not return_discr_loss:
            reconstructed: Tensor = self.model(img.to(self.dtype)).images
            return reconstructed
        if return_loss and return_discr_loss:
            raise UsageError(f"{NAME}: return_loss and return_discr_loss are exclusive; call it once for each")
        loss, recons = self._discriminator(img, add_gradient_penalty) if return_discr_loss else self._generator(img)
        return (loss, recons) if return_recons else loss

    def _generator(self, images: Tensor) -> tuple[Tensor, Tensor]:
        keeps_graph = torch.is_grad_enabled()
        # The adaptive weight needs gradients, also in a validation without them.
        with torch.enable_grad():
            forward_pass = self.forward_pass({"images": images}, len(images))
            loss = self.phase_loss("generator", forward_pass).value
        fake: Tensor = forward_pass.output["fake"]
        return (loss, fake) if keeps_graph else (loss.detach(), fake.detach())

    def _discriminator(self, images: Tensor, penalised: bool) -> tuple[Tensor, Tensor]:
        if self.discr is None:
            raise UsageError(f"{NAME} has no discriminator; build it with use_vgg_and_gan=True")
        forward_pass = self.forward_pass({"images": images}, len(images), updates=False)
        task = self.task
        assert isinstance(task, VQGanTask)
        keeps_graph = torch.is_grad_enabled()
        with torch.enable_grad():  # for the gradient penalty
            loss = task.discriminator_loss_of(task.modules, forward_pass.output, penalised)
        self.collect(loss.statistics)
        return loss.value if keeps_graph else loss.value.detach(), forward_pass.output["fake"]

    def _check(self, images: Tensor) -> None:
        if images.ndim != 4 or images.shape[1] != self.channels:
            raise UsageError(f"{NAME} takes images (batch, {self.channels}, height, width), not {tuple(images.shape)}")


def _blocks(options: dict[str, Any], layers: int) -> int:
    """The number of residual blocks from `encdec_*` options; refuses what quintet's encoder does not have."""
    options = {name.removeprefix("encdec_"): value for name, value in options.items() if name.startswith("encdec_")}
    blocks = options.pop("num_resnet_blocks", 1)
    if not isinstance(blocks, int):
        raise UsageError(f"{NAME}: encdec_num_resnet_blocks is one number for all resolutions, not {blocks!r}")
    multiples = options.pop("layer_mults", None)
    if multiples is not None and list(multiples) != [min(2**number, 8) for number in range(layers)]:
        raise UsageError(f"{NAME}: encdec_layer_mults is refused: channels double at each resolution, up to 8 times")
    for name, fit in (("resnet_groups", 16), ("first_conv_kernel_size", 5)):
        refuse_unless(NAME, f"encdec_{name}", options.pop(name, fit), (fit,), "quintet's encoder has no such setting")
    refuse_unknown(NAME, {f"encdec_{name}": value for name, value in options.items()})
    return blocks
