"""Definitions shared by both sides of the MuLaN benchmarks: sizes, clips, captions, and metrics of embeddings.

Imported by workers in several environments, so it depends only on torch and safetensors.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

import loss_task

RATE = 16_000
SAMPLES = 2 * RATE
"""Samples of a window."""
DIM, DEPTH, HEADS, HEAD_DIM = 256, 4, 4, 64
"""Sizes of both encoders."""
LATENT_DIM = 128
PATCH = 16
ROWS, COLUMNS = 8, 12
"""Patches over frequency and over time, before patch dropout."""
PATCH_DROPOUT = 0.25
BAND_MASK, TIME_MASK = 32, 32
"""Maximum widths of SpecAugment masks."""
SCALE = 10.0
"""Initial scale of similarities."""
CLIP = 0.5
BETAS = (0.9, 0.99)

# One training step
STEP_BATCH = 8
STEP_RATE = 3e-4
TEXT_SYMBOLS = 32
TEXTS = ("a slow rising run of quiet flute notes", "one deep note on a powerful violin", "a loud snare drum beat, fast")

# Training for a fixed time
TRAIN_BATCH = 16
WARMUP_STEPS = 20
HELD_OUT = 200
MEASURED_TOGETHER = 25
FOUND_AMONG = (1, 5, 10)
SCALES = tuple(10 ** (number / 20) for number in range(41))
"""From 1 to 100. The loss is reported at the best scale, so that the temperature has no influence."""

Embed = Callable[[Tensor, Tensor, Sequence[str]], tuple[Tensor, Tensor]]
"""From windows (batch, samples), their lengths without padding, and captions to normalized embeddings of both."""


def texts(count: int) -> list[str]:
    """Texts of exactly `TEXT_SYMBOLS` symbols, including start and end."""
    repeated = [" ".join([TEXTS[number % len(TEXTS)]] * 2) for number in range(count)]
    return [text[: TEXT_SYMBOLS - 2] for text in repeated]


def windows(count: int) -> Tensor:
    return torch.randn(count, SAMPLES, generator=torch.Generator().manual_seed(0)) / 10


# --- training for a fixed time --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Clips:
    """Clips (items, samples) in 16 bits, padded with silence, with their lengths and captions."""

    waves: Tensor
    lengths: Tensor
    texts: list[str]

    def at(self, items: Sequence[int], starts: Sequence[int]) -> tuple[Tensor, Tensor]:
        """A window of each of these items, and its length without padding."""
        rows = [self.waves[item, start : start + SAMPLES] for item, start in zip(items, starts, strict=True)]
        left = self.lengths[list(items)] - torch.tensor(starts)
        return torch.stack(rows).float() / 2**15, left.clamp(max=SAMPLES)


@dataclass(frozen=True)
class Task:
    train: Clips
    held_out: Clips

    @property
    def digest(self) -> str:
        """Must be equal for all workers, otherwise their results are not comparable."""
        both = (self.train, self.held_out)
        tensors = [tensor for clips in both for tensor in (clips.waves, clips.lengths)]
        return loss_task.digest_of(tensors, [clips.texts for clips in both])

    def batches(self) -> Iterator[tuple[list[int], list[int]]]:
        """Endless batches of items and starts of their windows, the same for both sides."""
        generator = torch.Generator().manual_seed(0)
        while True:
            order = torch.randperm(len(self.train.texts), generator=generator)
            positions = torch.rand(len(order), generator=generator)
            for items in torch.split(order, TRAIN_BATCH):
                if len(items) == TRAIN_BATCH:
                    room = (self.train.lengths[items] - SAMPLES).clamp(min=0) + 1
                    yield items.tolist(), (positions[items] * room).long().tolist()


class Words:
    """Word ids of captions; 1 is a word that is not in the training captions, 0 is padding."""

    def __init__(self, texts: Sequence[str]) -> None:
        known = sorted({word for text in texts for word in self._split(text)})
        self.numbers = {word: number for number, word in enumerate(known, 2)}

    def __len__(self) -> int:
        return len(self.numbers) + 2

    def __call__(self, texts: Sequence[str]) -> list[Tensor]:
        return [torch.tensor([self.numbers.get(word, 1) for word in self._split(text)]) for text in texts]

    @staticmethod
    def _split(text: str) -> list[str]:
        return text.lower().replace(",", " ").replace(":", " ").split()


def read_task(folder: Path) -> Task:
    """Read the files written by `mulan.py`."""
    tensors = load_file(folder / "sounds.safetensors")
    captions = json.loads((folder / "texts.json").read_text(encoding="utf-8"))
    train, held_out = (
        Clips(tensors[f"{split}.waves"], tensors[f"{split}.lengths"], captions[split])
        for split in ("train", "held_out")
    )
    return Task(train, held_out)


@torch.no_grad()
def measured(embed: Embed, clips: Clips, scale: float) -> dict[str, float]:
    """Loss and retrieval metrics; `scale` is the model's own scale of similarities."""
    parts = []
    for items in torch.split(torch.arange(len(clips.texts)), MEASURED_TOGETHER):
        numbers = items.tolist()
        waves, lengths = clips.at(numbers, [0] * len(numbers))
        parts.append(embed(waves, lengths, [clips.texts[number] for number in numbers]))
    audio, text = (torch.cat(view).float() for view in zip(*parts, strict=True))
    similarities = text @ audio.T
    best = min(SCALES, key=lambda each: _loss(similarities, each))
    metrics = {
        "loss": _loss(similarities, best),
        "best scale": best,
        "loss at its own scale": _loss(similarities, scale),
        "own scale": scale,
    }
    ranks = (similarities > similarities.diagonal()[:, None]).sum(1)
    for count in FOUND_AMONG:
        metrics[f"R@{count}"] = (ranks < count).float().mean().item()
    metrics["median rank"] = ranks.float().median().item() + 1
    return metrics


def _loss(similarities: Tensor, scale: float) -> float:
    """Softmax loss over all held-out items, averaged over both directions; ln(items) at chance level."""
    targets = torch.arange(len(similarities))
    both = [F.cross_entropy(scale * view, targets) for view in (similarities, similarities.T)]
    return (sum(both) / 2).item()  # type: ignore[union-attr]


def chance() -> float:
    return math.log(HELD_OUT)
