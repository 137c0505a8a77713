"""The trainers with the smallest models and data, for the tests of their members and usages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from compat.usages.meshgpt_pytorch import autoencoder, transformer
from compat.usages.musiclm_pytorch import mulan
from quintet.compat import meshgpt_pytorch, muse_maskgit_pytorch, musiclm_pytorch, phenaki_pytorch, soundstorm_pytorch
from quintet.media.image import write_image
from quintet.media.video_writing import write_video


class Items(Dataset[Any]):
    """A data set of items that a function makes of their index."""

    def __init__(self, make: Callable[[int], Any], length: int = 8) -> None:
        self.make, self.length = make, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        torch.manual_seed(index)
        return self.make(index)


def pictures(folder: Path, count: int = 8) -> Path:
    """A folder of random pictures."""
    folder.mkdir()
    generator = torch.Generator().manual_seed(0)
    for number in range(count):
        pixels = torch.randint(0, 256, (16, 16, 3), generator=generator, dtype=torch.uint8)
        write_image(pixels.numpy(), folder / f"{number}.png")
    return folder


CUBE = torch.tensor([[x, y, z] for z in (-0.5, 0.5) for y in (-0.5, 0.5) for x in (-0.5, 0.5)])
QUADS = torch.tensor([[0, 2, 3, 1], [4, 5, 7, 6], [0, 1, 5, 4], [2, 6, 7, 3], [0, 4, 6, 2], [1, 3, 7, 5]])
TRIANGLES = torch.cat([QUADS[:, [0, 1, 2]], QUADS[:, [0, 2, 3]]])


def mesh(index: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A box; every second one is open."""
    return CUBE * torch.tensor([1.0, 0.5 + 0.05 * index, 0.8]), TRIANGLES[: 12 - 2 * (index % 2)]


RATES: dict[str, Any] = {
    "wav2vec_target_sample_hz": 16000,
    "wav2vec_downsample_factor": 640,
    "codec_target_sample_hz": 16000,
    "codec_downsample_factor": 320,
}
"""25 semantic and 50 acoustic tokens per second."""


def vae(**options: Any) -> Any:
    return muse_maskgit_pytorch.VQGanVAE(
        **{"dim": 8, "layers": 2, "codebook_size": 16, "discr_layers": 1, "use_vgg_and_gan": True, **options}
    )


def storm(**options: Any) -> Any:
    wrapper = soundstorm_pytorch.ConformerWrapper(
        codebook_size=9,
        num_quantizers=3,
        conformer={"dim": 16, "depth": 1, "heads": 2, "dim_head": 8},
    )
    return soundstorm_pytorch.SoundStorm(wrapper, num_semantic_token_ids=5, **{**RATES, "steps": 2, **options})


def phenaki(**options: Any) -> Any:
    sizes: dict[str, Any] = {"dim": 16, "codebook_size": 16, "image_size": 16, "patch_size": 8}
    depths: dict[str, Any] = {"temporal_patch_size": 2, "spatial_depth": 1, "temporal_depth": 1, "dim_head": 8}
    maskgit = phenaki_pytorch.MaskGit(
        num_tokens=16, max_seq_len=40, dim=16, dim_context=768, depth=1, heads=2, dim_head=8
    )
    cvivit = phenaki_pytorch.CViViT(**sizes, **depths, heads=2)
    return phenaki_pytorch.Phenaki(cvivit=cvivit, maskgit=maskgit, steps=2, **options)


def results(folder: Path) -> dict[str, Any]:
    return {"results_folder": str(folder / "results")}


def make_mulan(folder: Path, **options: Any) -> Any:
    data = Items(lambda index: (torch.randn(1024), torch.randint(0, 300, (16,))))
    settings = {"batch_size": 2, "num_train_steps": 8, "valid_frac": 0.4}
    return musiclm_pytorch.MuLaNTrainer(
        mulan(), options.pop("dataset", data), **{**settings, **results(folder), **options}
    )


def make_soundstorm(folder: Path, **options: Any) -> Any:
    data = Items(lambda index: (torch.randint(0, 5, (10,)), torch.randint(0, 9, (20, 3))))
    settings = {"num_train_steps": 8, "num_warmup_steps": 2, "batch_size": 2, "valid_frac": 0.3, "dataset": data}
    return soundstorm_pytorch.SoundStormTrainer(
        options.pop("model", None) or storm(), **{**settings, **results(folder), **options}
    )


def make_vqgan(folder: Path, **options: Any) -> Any:
    images = folder / "photos"
    settings = {"folder": str(images if images.exists() else pictures(images)), "image_size": 16, "batch_size": 2}
    return muse_maskgit_pytorch.VQGanVAETrainer(
        vae(), **{**settings, "num_train_steps": 8, **results(folder), **options}
    )


def clips(folder: Path, count: int = 8) -> Path:
    """A folder of random videos."""
    folder.mkdir()
    generator = torch.Generator().manual_seed(0)
    for number in range(count):
        write_video(torch.rand(3, 5, 16, 16, generator=generator), folder / f"{number}.gif")
    return folder


def make_cvivit(folder: Path, **options: Any) -> Any:
    videos = folder / "clips"
    settings = {"folder": str(videos if videos.exists() else clips(videos)), "num_frames": 5, "batch_size": 2}
    sizes = {"dim": 16, "codebook_size": 16, "image_size": 16, "patch_size": 8, "temporal_patch_size": 2}
    depths = {"spatial_depth": 1, "temporal_depth": 1, "dim_head": 8, "heads": 2}
    return phenaki_pytorch.CViViTTrainer(
        phenaki_pytorch.CViViT(**sizes, **depths), **{**settings, "num_train_steps": 8, **results(folder), **options}
    )


def make_phenaki(folder: Path, **options: Any) -> Any:
    data = Items(lambda index: (torch.rand(3, 5, 16, 16), f"clip {index}"))
    settings = {"dataset": data, "num_frames": 5, "batch_size": 2, "train_num_steps": 8, "sample_texts": ["a clip"]}
    keys = {"data.num_workers": 0}
    return phenaki_pytorch.PhenakiTrainer(
        phenaki(),
        **{**settings, "num_samples": 4, **results(folder), "config": keys, **options},
    )


def make_autoencoder(folder: Path, **options: Any) -> Any:
    settings = {"num_train_steps": 8, "batch_size": 2, "grad_accum_every": 1, "val_dataset": Items(mesh, 2)}
    more = {"val_num_batches": 1, "checkpoint_folder": str(folder / "checkpoints"), "ema_kwargs": {"beta": 0.9}}
    return meshgpt_pytorch.MeshAutoencoderTrainer(
        **{"model": autoencoder(), "dataset": Items(mesh), **settings, **more, **options}
    )


def make_transformer(folder: Path, **options: Any) -> Any:
    settings = {"num_train_steps": 8, "batch_size": 2, "grad_accum_every": 1, "val_dataset": Items(mesh, 2)}
    more = {"val_num_batches": 1, "val_every": 4, "checkpoint_folder": str(folder / "checkpoints")}
    return meshgpt_pytorch.MeshTransformerTrainer(
        transformer(max_seq_len=96), Items(mesh), **{**settings, **more, **options}
    )


MAKERS: Mapping[str, Callable[..., Any]] = {
    "MuLaNTrainer": make_mulan,
    "SoundStormTrainer": make_soundstorm,
    "VQGanVAETrainer": make_vqgan,
    "CViViTTrainer": make_cvivit,
    "PhenakiTrainer": make_phenaki,
    "MeshAutoencoderTrainer": make_autoencoder,
    "MeshTransformerTrainer": make_transformer,
}
