"""Trains the models of quintet.compat on one batch, with a hand-written loop and with the trainer of the same name.

    python benchmarks/compat_overfit.py [TRAINER …] [--steps N]

Both use the same initial weights, data, random numbers and optimizer settings; the losses should agree. Prints a JSON
line per trainer.
`MaskGit` has no trainer in the original: its parts are trained by quintet's `MuseTrainer`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from quintet import MuseTrainer
from quintet.compat import (
    CompatibilityNotice,
    meshgpt_pytorch,
    muse_maskgit_pytorch,
    musiclm_pytorch,
    phenaki_pytorch,
    soundstorm_pytorch,
)
from quintet.media.mesh import Mesh, canonical


@dataclass(frozen=True)
class Overfit:
    """The mean loss of some passes: before the training, after the hand-written loop, and after the trainer."""

    first: float
    by_hand: float
    by_trainer: float
    by_seed: tuple[float, ...]
    """The difference of each seed, in percent."""

    @property
    def difference(self) -> float:
        """Of the trainer from the hand-written loop, in percent."""
        return 100 * (self.by_trainer - self.by_hand) / self.by_hand


ITEMS = 8
SEEDS = 4
"""Trainings over which the losses are averaged: single ones differ by up to 15 % with the order of the items."""
PASSES = 50
"""Passes over which a loss is averaged: masks are random."""
MEASURED_WITH = 10**6
"""Seed of these passes: masks are functions of it."""
TEXTS = [f"number {number}" for number in range(ITEMS)]
QUIET = {"log.trackers": [], "data.num_workers": 0, "sample.every": 10**6, "eval.every": 10**6}


def quiet() -> dict[str, Any]:
    """Keys of the trainer: no output, and a seed of its own in each of the trainings."""
    return {**QUIET, "train.seed": int(torch.randint(2**62, ()).item())}


def pictures() -> Tensor:
    """Eight different images (8, 3, 16, 16), smooth enough to learn in seconds."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.randint(0, 256, (ITEMS, 3, 4, 4), generator=generator, dtype=torch.uint8)
    return coarse.repeat_interleave(4, 2).repeat_interleave(4, 3) / 255


def write_pictures(folder: Path) -> None:
    """The same images as files, with captions."""
    for number, (image, text) in enumerate(zip(pictures(), TEXTS, strict=True)):
        pixels = (image * 255).round().byte().permute(1, 2, 0).numpy()
        Image.fromarray(np.ascontiguousarray(pixels)).save(folder / f"{number}.png")
        (folder / f"{number}.txt").write_text(text)


class Videos:
    """Eight clips of three frames, the image of each moving to the right, with captions."""

    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, index: int) -> tuple[Tensor, str]:
        image = pictures()[index]
        return torch.stack([image.roll(4 * frame, -1) for frame in range(3)], 1), TEXTS[index]


Trained = Callable[[Any, str], None]
"""Trains a model with its trainer; the second argument is an empty folder."""


def compare(
    make: Callable[[], nn.Module],
    loss: Callable[[Any], Tensor],
    optimizer: Callable[[Any], torch.optim.Optimizer],
    train: Trained,
    steps: int,
) -> Overfit:
    """Train two copies of a model and measure both; the mean over some seeds."""
    measured = [_compare(make, loss, optimizer, train, steps, seed) for seed in range(SEEDS)]
    first, by_hand, by_trainer = (sum(values) / SEEDS for values in zip(*measured, strict=True))
    return Overfit(first, by_hand, by_trainer, tuple(round(100 * (new - old) / old, 2) for _, old, new in measured))


def _compare(
    make: Callable[[], nn.Module],
    loss: Callable[[Any], Tensor],
    optimizer: Callable[[Any], torch.optim.Optimizer],
    train: Trained,
    steps: int,
    seed: int,
) -> tuple[float, float, float]:
    """The losses before the training, after the hand-written loop, and after the trainer."""
    first, by_hand, by_trainer = (_new(make, seed) for _ in range(3))
    before = _measured(first, loss)
    torch.manual_seed(seed)
    steps_of = optimizer([parameter for parameter in by_hand.parameters() if parameter.requires_grad])
    for _ in range(steps):
        torch.autograd.backward(loss(by_hand))
        steps_of.step()
        steps_of.zero_grad()
    with tempfile.TemporaryDirectory() as folder:
        train(by_trainer, folder)
    return before, _measured(by_hand, loss), _measured(by_trainer, loss)


def _new(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return make()


@torch.no_grad()
def _measured(model: Any, loss: Callable[[Any], Tensor]) -> float:
    model.eval()
    torch.manual_seed(MEASURED_WITH)  # the same masks for every model, none of which was trained on
    return float(torch.stack([loss(model) for _ in range(PASSES)]).mean())


def adam(rate: float, *betas: float) -> Callable[[Any], torch.optim.Optimizer]:
    return lambda parameters: torch.optim.Adam(parameters, lr=rate, betas=(betas[0], betas[1]))


def vqgan(steps: int) -> Overfit:
    def train(model: Any, folder: str) -> None:
        write_pictures(Path(folder))
        muse_maskgit_pytorch.VQGanVAETrainer(
            model,
            folder=folder,
            image_size=16,
            num_train_steps=steps,
            batch_size=ITEMS,
            lr=1e-3,
            valid_frac=0.0,
            use_ema=False,
            results_folder=f"{folder}/results",
            config={**quiet(), "data.flip": False},
        ).train()

    return compare(tiny_vae, lambda vae: vae(pictures(), return_loss=True), adam(1e-3, 0.9, 0.999), train, steps)


def tiny_vae() -> Any:
    return muse_maskgit_pytorch.VQGanVAE(
        dim=32, layers=2, codebook_size=256, lookup_free_quantization=False, use_vgg_and_gan=False
    )


def cvivit(steps: int) -> Overfit:
    def train(model: Any, folder: str) -> None:
        write_pictures(Path(folder))
        phenaki_pytorch.CViViTTrainer(
            model,
            folder=folder,
            train_on_images=True,
            num_train_steps=steps,
            batch_size=ITEMS,
            lr=1e-3,
            max_grad_norm=None,
            valid_frac=0.0,
            use_ema=False,
            results_folder=f"{folder}/results",
            config=quiet(),
        ).train()

    return compare(
        lambda: tiny_cvivit(lookup_free_quantization=False),
        lambda model: model(pictures()),
        adam(1e-3, 0.9, 0.99),
        train,
        steps,
    )


def tiny_cvivit(**options: Any) -> Any:
    sizes: dict[str, Any] = {
        "dim": 64,
        "codebook_size": 256,
        "image_size": 16,
        "patch_size": 4,
        "temporal_patch_size": 2,
    }
    depths: dict[str, Any] = {
        "spatial_depth": 1,
        "temporal_depth": 1,
        "dim_head": 32,
        "heads": 2,
        "use_vgg_and_gan": False,
    }
    return phenaki_pytorch.CViViT(**sizes, **depths, **options)


def phenaki(steps: int) -> Overfit:
    def train(model: Any, folder: str) -> None:
        phenaki_pytorch.PhenakiTrainer(
            model,
            dataset=Videos(),
            num_frames=3,
            batch_size=ITEMS,
            train_num_steps=steps,
            train_lr=1e-3,
            results_folder=f"{folder}/results",
            config=quiet(),
        ).train()

    videos = torch.stack([Videos()[index][0] for index in range(ITEMS)])
    return compare(tiny_phenaki, lambda model: model(videos, texts=TEXTS), adam(1e-3, 0.9, 0.99), train, steps)


def tiny_phenaki() -> Any:
    maskgit = phenaki_pytorch.MaskGit(num_tokens=256, max_seq_len=32, dim=64, depth=2, heads=2, dim_head=32)
    return phenaki_pytorch.Phenaki(maskgit=maskgit, cvivit=tiny_cvivit())


def maskgit(steps: int) -> Overfit:
    def train(model: Any, folder: str) -> None:
        data = Path(folder) / "data"
        data.mkdir()
        write_pictures(data)
        parts = model.training_parts()
        constant = {"optim.schedule": "constant", "optim.warmup_steps": 0, "optim.weight_decay": 0.0}
        shared = {"optim.max_grad_norm": None, "optim.betas": [0.9, 0.99], "ema.enabled": False}
        MuseTrainer(
            parts.model,
            tokenizer=parts.frozen["tokenizer"],
            data=str(data),
            validation=str(data),
            out=f"{folder}/run",
            steps=steps,
            batch_size=ITEMS,
            lr=1e-3,
            config={**quiet(), **parts.keys, **constant, **shared, "optim.name": "adam"},
        ).train()

    return compare(tiny_maskgit, lambda model: model(pictures(), texts=TEXTS), adam(1e-3, 0.9, 0.99), train, steps)


def tiny_maskgit() -> Any:
    sizes: dict[str, Any] = {"num_tokens": 256, "seq_len": 16, "dim": 64, "depth": 2, "heads": 2, "dim_head": 32}
    transformer = muse_maskgit_pytorch.MaskGitTransformer(**sizes)
    return muse_maskgit_pytorch.MaskGit(image_size=16, transformer=transformer, vae=tiny_vae())


# --- audio and meshes ---------------------------------------------------------------------------------------------

CONSTANT = {"optim.schedule": "constant", "optim.warmup_steps": 0}


class Items(list[Any]):
    """A data set of the values of a list."""


def mulan(steps: int) -> Overfit:
    tones = torch.stack([torch.sin(torch.arange(2048) * 0.05 * (number + 1)) for number in range(ITEMS)])
    texts = torch.randint(1, 300, (ITEMS, 8), generator=torch.Generator().manual_seed(0))

    def train(model: Any, folder: str) -> None:
        musiclm_pytorch.MuLaNTrainer(
            model,
            Items(zip(tones, texts, strict=True)),
            num_train_steps=steps,
            batch_size=ITEMS,
            lr=1e-3,
            max_grad_norm=None,
            valid_frac=0.0,
            results_folder=f"{folder}/results",
            config={**quiet(), "optim.name": "adam"},
        ).train()

    return compare(tiny_mulan, lambda model: model(tones, texts), adam(1e-3, 0.9, 0.99), train, steps)


def tiny_mulan() -> Any:
    sizes: dict[str, Any] = {"dim": 32, "depth": 2, "heads": 2, "dim_head": 16}
    plain: dict[str, Any] = {"spec_aug_freq_mask": 0, "spec_aug_time_mask": 0, "patch_dropout_prob": 0.0}
    return musiclm_pytorch.MuLaN(
        musiclm_pytorch.AudioSpectrogramTransformer(**sizes, **plain, max_seconds=1.0),
        musiclm_pytorch.TextTransformer(**sizes, num_tokens=300),
        decoupled_contrastive_learning=False,
    )


def soundstorm(steps: int) -> Overfit:
    codes = torch.randint(0, 64, (ITEMS, 16, 2), generator=torch.Generator().manual_seed(0))

    def train(model: Any, folder: str) -> None:
        soundstorm_pytorch.SoundStormTrainer(
            model,
            dataset=Items({"acoustic_token_ids": each} for each in codes),
            num_train_steps=steps,
            num_warmup_steps=0,
            batch_size=ITEMS,
            lr=2e-3,
            max_grad_norm=None,
            valid_frac=0.0,
            results_folder=f"{folder}/results",
            config={**quiet(), **CONSTANT, "optim.name": "adam"},
        ).train()

    return compare(tiny_soundstorm, lambda model: model(codes)[0], adam(2e-3, 0.9, 0.99), train, steps)


def tiny_soundstorm() -> Any:
    conformer = {"dim": 64, "depth": 2, "heads": 2, "dim_head": 32, "conv_kernel_size": 5}
    wrapper = soundstorm_pytorch.ConformerWrapper(codebook_size=64, num_quantizers=2, conformer=conformer)
    return soundstorm_pytorch.SoundStorm(wrapper)


def boxes() -> tuple[Tensor, Tensor]:
    """Eight boxes in canonical order, as quintet's trainers read them: vertices (8, 8, 3) and faces (8, 12, 3)."""
    corners = np.array([[x, y, z] for z in (-1, 1) for y in (-1, 1) for x in (-1, 1)], np.float64)
    quads = np.array([[0, 2, 3, 1], [4, 5, 7, 6], [0, 1, 5, 4], [2, 6, 7, 3], [0, 4, 6, 2], [1, 3, 7, 5]])
    triangles = np.concatenate([quads[:, [0, 1, 2]], quads[:, [0, 2, 3]]])
    sizes = [(0.9, 0.1 + 0.1 * number, 0.9 - 0.1 * number) for number in range(ITEMS)]
    meshes = [canonical(Mesh(corners * size, triangles), 64) for size in sizes]
    vertices = torch.from_numpy(np.stack([mesh.vertices for mesh in meshes])).float()
    return vertices, torch.from_numpy(np.stack([mesh.faces for mesh in meshes]))


def mesh_autoencoder(steps: int) -> Overfit:
    vertices, faces = boxes()

    def train(model: Any, folder: str) -> None:
        meshgpt_pytorch.MeshAutoencoderTrainer(
            model,
            Items(zip(vertices, faces, strict=True)),
            num_train_steps=steps,
            batch_size=ITEMS,
            grad_accum_every=1,
            learning_rate=2e-3,
            warmup_steps=0,
            checkpoint_folder=f"{folder}/results",
            config={**quiet(), **CONSTANT, "optim.name": "adam", "data.validation_fraction": 0.0},
        ).train()

    def loss(model: Any) -> Tensor:
        value: Tensor = model(vertices=vertices, faces=faces)
        return value

    return compare(tiny_autoencoder, loss, adam(2e-3, 0.9, 0.99), train, steps)


def tiny_autoencoder() -> Any:
    embeddings: dict[str, Any] = {f"dim_{name}_embed": 16 for name in ("coor", "area", "normal", "angle")}
    dims: dict[str, Any] = {"encoder_dims_through_depth": (32, 64), "decoder_dims_through_depth": (64, 64)}
    return meshgpt_pytorch.MeshAutoencoder(64, **embeddings, **dims, dim_codebook=32, codebook_size=1024)


def mesh_transformer(steps: int) -> Overfit:
    vertices, faces = boxes()

    def train(model: Any, folder: str) -> None:
        meshgpt_pytorch.MeshTransformerTrainer(
            model,
            Items(zip(vertices, faces, TEXTS, strict=True)),
            num_train_steps=steps,
            batch_size=ITEMS,
            grad_accum_every=1,
            learning_rate=1e-3,
            max_grad_norm=None,
            warmup_steps=0,
            data_kwargs=["vertices", "faces", "texts"],
            checkpoint_folder=f"{folder}/results",
            config={**quiet(), **CONSTANT, "optim.name": "adam", "data.validation_fraction": 0.0},
        ).train()

    def loss(model: Any) -> Tensor:
        value: Tensor = model(vertices=vertices, faces=faces, texts=TEXTS)
        return value

    return compare(tiny_transformer, loss, adam(1e-3, 0.9, 0.99), train, steps)


def tiny_transformer() -> Any:
    sizes: dict[str, Any] = {"dim": 64, "max_seq_len": 96, "attn_depth": 2, "attn_heads": 2, "fine_attn_depth": 1}
    return meshgpt_pytorch.MeshTransformer(tiny_autoencoder(), **sizes, condition_on_text=True)


TRAINERS: dict[str, Callable[[int], Overfit]] = {
    "VQGanVAETrainer": vqgan,
    "CViViTTrainer": cvivit,
    "PhenakiTrainer": phenaki,
    "MaskGit": maskgit,
    "MuLaNTrainer": mulan,
    "SoundStormTrainer": soundstorm,
    "MeshAutoencoderTrainer": mesh_autoencoder,
    "MeshTransformerTrainer": mesh_transformer,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trainers", nargs="*", metavar="TRAINER")
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    warnings.simplefilter("ignore", CompatibilityNotice)
    for name in options.trainers or TRAINERS:
        result = TRAINERS[name](options.steps)
        print(json.dumps({"trainer": name, **asdict(result), "difference_percent": result.difference}), flush=True)


if __name__ == "__main__":
    main()
