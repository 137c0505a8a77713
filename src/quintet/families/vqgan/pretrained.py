"""`PretrainedVQ`: image tokenizers of `transformers` (Janus, Emu3) and `diffusers` (VQModel), frozen.

They have the interface of `VQGanVAE`.

The library computes codes and images, so both are exactly its own. Pixels are scaled from [0, 1] to its [-1, 1].
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quintet.common import files
from quintet.common.weights import checkpoint
from quintet.common.weights.pretrained import Pretrained
from quintet.config import validate
from quintet.errors import UsageError
from quintet.families.vqgan.config import DIFFUSERS_VQ, EMU3_VQ, JANUS_VQ, VQGanModelConfig
from quintet.nn.transformers_folder import (
    check_settings,
    check_weights,
    frozen,
    load_model,
    load_transformers,
    loading,
)

MODEL_KIND = "tokenizer of images"
CLASSES = {JANUS_VQ: "JanusVQVAE", EMU3_VQ: "Emu3VQVAE"}
DEFAULT_SIZE = 256
"""Side of the images in pixels, for models that neither fix it nor come with a `preprocessor_config.json`."""
IGNORED_SETTINGS = ("_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version")
"""Settings of a configuration that do not describe the tokenizer."""


@dataclass(frozen=True)
class Codebook:
    """The codes of a pretrained tokenizer, as a generator reads them from `VQGanVAE.quantizer`."""

    vectors: Tensor
    levels: int = 1
    code_axes: int = 0

    @property
    def num_codes(self) -> int:
        return len(self.vectors)

    def all_vectors(self, level: int = 0) -> Tensor:
        """The vectors of all codes, (codes, dim)."""
        return self.vectors


class PretrainedVQ(Pretrained, nn.Module):
    """A pretrained tokenizer: images (batch, channels, height, width) to codes (batch, rows, columns) and back.

        PretrainedVQ.from_folder("janus-vq/")

    `model.pretrained_config` defines it; the other keys that matter are recorded from it.
    """

    CONFIG = VQGanModelConfig
    about: Tensor

    def __init__(self, config: VQGanModelConfig | None = None, model: nn.Module | None = None, **keywords: Any) -> None:
        super().__init__()
        self.config = config = config or validate(VQGanModelConfig, keywords)
        if config.pretrained_config is None:
            raise UsageError("PretrainedVQ needs model.pretrained_config: use PretrainedVQ.from_folder(FOLDER)")
        settings = json.loads(config.pretrained_config)
        self.kind = kind_of(settings)
        self.model: Any = frozen(model or _untrained(settings))
        # The same weights with other settings are another tokenizer, so the settings are part of the hashed state.
        content = hashlib.sha256(config.pretrained_config.encode()).digest()
        self.register_buffer("about", torch.tensor(list(content), dtype=torch.uint8))
        self.eval()

    @classmethod
    def from_folder(cls, folder: str | Path) -> Self:
        """Load the tokenizer of a folder with config.json and safetensors, on the CPU."""
        path = Path(folder)
        settings = checkpoint.read_json(path, "config")
        settings = {name: value for name, value in settings.items() if name not in IGNORED_SETTINGS}
        kind = kind_of(settings)
        model = (
            _load_diffusers(path) if kind == DIFFUSERS_VQ else load_model(path, MODEL_KIND, class_name=CLASSES[kind])
        )
        found = {**_sizes(kind, model.config, path), "pretrained_config": json.dumps(settings, sort_keys=True)}
        return cls(validate(VQGanModelConfig, found), model)

    @property
    def patch_size(self) -> int:
        """Number of pixels per side of a code."""
        return 1 << self.config.layers

    @property
    def num_codes(self) -> int:
        return self.config.codebook_size

    @property
    def code_shape(self) -> tuple[int, ...]:
        """Rows and columns of the codes of one image."""
        return self.config.grid

    @property
    def quantizer(self) -> Codebook:
        vectors = self.model.quantize.embedding.weight.detach()
        return Codebook(F.normalize(vectors, dim=-1) if self.kind == JANUS_VQ else vectors)

    @torch.no_grad()
    def encode(self, images: Tensor) -> Tensor:
        """Codes (batch, rows, columns) of images (batch, channels, height, width) in [0, 1]."""
        height, width = images.shape[-2:]
        if (
            images.ndim != 4
            or images.shape[1] != self.config.channels
            or (height % self.patch_size, width % self.patch_size) != (0, 0)
        ):
            raise UsageError(
                f"images have shape {tuple(images.shape)}, but this tokenizer expects (batch, {self.config.channels}, "
                f"height, width) with sides divisible by {self.patch_size}"
            )
        scaled = (images * 2 - 1).to(self.model.dtype)
        rows, columns = height // self.patch_size, width // self.patch_size
        return _CODES[self.kind](self.model, scaled).reshape(len(images), rows, columns)

    @torch.no_grad()
    def decode(self, codes: Tensor) -> Tensor:
        """Images (batch, channels, height, width), clamped to [0, 1], of codes (batch, rows, columns)."""
        fixed = self.kind == JANUS_VQ
        if codes.ndim != 3 or not codes.numel() or (fixed and tuple(codes.shape[1:]) != self.config.grid):
            grid = "{}, {}".format(*self.config.grid) if fixed else "rows, columns"
            raise UsageError(f"codes have shape {tuple(codes.shape)}, but this tokenizer expects (batch, {grid})")
        images: Tensor = _IMAGES[self.kind](self.model, codes)
        return ((images.float() + 1) / 2).clamp(0, 1)


# --- the libraries ----------------------------------------------------------------------------------------------


def kind_of(settings: Mapping[str, Any]) -> str:
    """The kind of tokenizer that a configuration describes."""
    kind = settings.get("model_type") or f"diffusers:{settings.get('_class_name')}"
    if kind not in _CODES:
        raise UsageError(f"{kind[:60]} is not a supported {MODEL_KIND}; supported are {', '.join(_CODES)}")
    return str(kind)


def _load_diffusers(folder: Path) -> Any:
    check_weights(folder, MODEL_KIND)
    with _loading_diffusers(folder) as library:
        return library.VQModel.from_pretrained(folder, local_files_only=True, use_safetensors=True)


@contextmanager
def _loading_diffusers(folder: Path) -> Iterator[Any]:
    """The module `diffusers`, which is optional; its errors in the block become one sentence."""
    try:
        library = import_module("diffusers")
    except ImportError:
        raise UsageError(f"{folder} needs the package diffusers: pip install 'quintet[diffusers]'") from None
    try:
        yield library
    except (OSError, ValueError, TypeError, KeyError, RuntimeError) as error:
        raise UsageError(
            f"{folder} is not a {MODEL_KIND} that `diffusers` can load ({files.one_line(error)})"
        ) from None


def _untrained(settings: dict[str, Any]) -> nn.Module:
    """The module with random weights, which are loaded later."""
    where = Path("model.pretrained_config")
    if kind_of(settings) == DIFFUSERS_VQ:
        with _loading_diffusers(where) as diffusers:
            made: nn.Module = diffusers.VQModel.from_config(settings)
            return made
    name, library = CLASSES[kind_of(settings)], load_transformers(MODEL_KIND)
    check_settings(settings, str(where))
    with loading(where, MODEL_KIND):
        model: nn.Module = getattr(library, name)(getattr(library, f"{name}Config")(**settings))
        return model


def _sizes(kind: str, settings: Any, folder: Path) -> dict[str, Any]:
    """The keys of `model.*` that follow from the configuration of a tokenizer."""
    if kind == DIFFUSERS_VQ:
        layers, codes = len(settings.block_out_channels) - 1, settings.num_vq_embeddings
    else:
        layers = len(settings.channel_multiplier) - 1
        codes = settings.num_embeddings if kind == JANUS_VQ else settings.codebook_size
    size = settings.num_patches << layers if kind == JANUS_VQ else _image_size(folder)
    return {"image_size": size, "channels": settings.in_channels, "layers": layers, "codebook_size": codes}


def _image_size(folder: Path) -> int | list[int]:
    """The size in `preprocessor_config.json`, if there is one: the model itself takes images of any size."""
    if not (folder / "preprocessor_config.json").is_file():
        return DEFAULT_SIZE
    settings = checkpoint.read_json(folder, "preprocessor_config")
    size = settings.get("size") if isinstance(settings, dict) else None
    sides = [size.get(side) for side in ("height", "width")] if isinstance(size, dict) else [size, size]
    known = [side for side in sides if isinstance(side, int)]
    return known if len(known) == len(sides) else DEFAULT_SIZE


def _emu3_codes(model: Any, images: Tensor) -> Tensor:
    sizes = torch.tensor([images.shape[-2:]] * len(images))
    return torch.stack(list(model.encode(images, sizes).image_tokens))


def _diffusers_codes(model: Any, images: Tensor) -> Tensor:
    _, _, (_, _, codes) = model.quantize(model.encode(images).latents)
    result: Tensor = codes
    return result


def _diffusers_images(model: Any, codes: Tensor) -> Tensor:
    shape = (*codes.shape, model.quantize.vq_embed_dim)
    vectors = codes if model.config.lookup_from_codebook else model.quantize.get_codebook_entry(codes.flatten(), shape)
    images: Tensor = model.decode(vectors, force_not_quantize=True, shape=shape).sample
    return images


_CODES: Mapping[str, Callable[[Any, Tensor], Tensor]] = {
    JANUS_VQ: lambda model, images: model.encode(images).image_tokens,
    EMU3_VQ: _emu3_codes,
    DIFFUSERS_VQ: _diffusers_codes,
}
"""Codes of scaled images."""

_IMAGES: Mapping[str, Callable[[Any, Tensor], Tensor]] = {
    JANUS_VQ: lambda model, codes: model.decode(codes.flatten(1)),
    EMU3_VQ: lambda model, codes: model.decode(codes),
    DIFFUSERS_VQ: _diffusers_images,
}
"""Images in [-1, 1] of codes (batch, rows, columns)."""
