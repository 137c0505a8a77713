"""musiclm-pytorch's MuLaN as a worker, in the peer's environment.

`mulan_peer.py step VOCABULARY PRECISION`, VOCABULARY `own` (its tokenizer's 49,408) or `small` (as many as ours has).
`mulan_peer.py loss FRONT CLIPS RATE SECONDS`, FRONT `own` (powers) or `log` (their logarithm, as ours).

Its loss is trained with the optimizer and clipping of its trainer. In `loss` its texts are words of the training
captions: the shortest sequences and the smallest embedding table. Its message about cropped spectrograms is hidden.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import audio_stand_ins  # noqa: F401  without which the peer does not import
import torch
from torch import Tensor, nn

import loss_task
import mulan_task as task
from worker import TimedTraining, serve

warnings.filterwarnings("ignore")

from musiclm_pytorch import AudioSpectrogramTransformer, MuLaN, TextTransformer, musiclm_pytorch  # noqa: E402

musiclm_pytorch.print_once = lambda text: None

PACKAGES = ("musiclm-pytorch", "torchaudio", "x-clip")
SMALL_VOCABULARY = 259
MAX_TEXT_LENGTH = 256
N_FFT, HOP = 256, 160
"""129 frequencies and 201 windows for 2 s, which the peer crops to full patches."""


def make_model(vocabulary: int | None = None) -> Any:
    torch.manual_seed(0)
    tower = {"dim": task.DIM, "depth": task.DEPTH, "heads": task.HEADS, "dim_head": task.HEAD_DIM}
    audio = AudioSpectrogramTransformer(
        **tower,
        patch_size=task.PATCH,
        spec_n_fft=N_FFT,
        spec_win_length=N_FFT,
        spec_hop_length=HOP,
        spec_aug_freq_mask=task.BAND_MASK,
        spec_aug_time_mask=task.TIME_MASK,
        patch_dropout_prob=task.PATCH_DROPOUT,
    )
    known = {} if vocabulary is None else {"num_tokens": vocabulary}
    text = TextTransformer(**tower, max_seq_len=MAX_TEXT_LENGTH, **known)
    return MuLaN(audio_transformer=audio, text_transformer=text, dim_latent=task.LATENT_DIM)


def about(model: Any) -> dict[str, Any]:
    def count(*modules: Any) -> int:
        return sum(parameter.numel() for module in modules for parameter in module.parameters())

    trunk = count(model.audio.transformer, model.audio.norm, model.text.transformer, model.text.norm)
    embedding = count(model.text.token_emb)
    others = count(model) - trunk - embedding
    parameters = {"trunk": trunk, "token embedding": embedding, "positions, patches, projections": others}
    return {"parameters": parameters, "patches": task.ROWS * task.COLUMNS}


def make_step(model: Any, optimizer: Any, precision: str = "fp32") -> Callable[[Tensor, Tensor], None]:
    parameters = list(model.parameters())

    def step(waves: Tensor, ids: Tensor) -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = model(waves, texts=ids)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, task.CLIP)
        optimizer.step()
        optimizer.zero_grad()

    return step


def make_optimizer(model: Any, rate: float) -> Any:
    return torch.optim.Adam(model.parameters(), lr=rate, betas=task.BETAS)


def serve_step(vocabulary: str, precision: str) -> None:
    model = make_model(SMALL_VOCABULARY if vocabulary == "small" else None).train()
    step = make_step(model, make_optimizer(model, task.STEP_RATE), precision)
    waves = task.windows(task.STEP_BATCH)
    symbols = model.text.token_emb.num_embeddings
    ids = torch.randint(1, symbols, (task.STEP_BATCH, task.TEXT_SYMBOLS))
    serve(lambda: step(waves, ids), about(model), PACKAGES)


# --- training for a fixed time --------------------------------------------------------------------------------------


def padded(rows: Sequence[Tensor]) -> Tensor:
    """Rows padded with 0, which the peer masks."""
    return nn.utils.rnn.pad_sequence(list(rows), batch_first=True)


class Logarithm(nn.Module):
    def forward(self, powers: Tensor) -> Tensor:
        return powers.clamp(min=1e-5).log()


def serve_training(front: str, folder: str, rate: str, seconds: str) -> None:
    data = task.read_task(Path(folder))
    words = task.Words(data.train.texts)
    model = make_model(len(words)).train()
    if front == "log":
        model.audio.spec = nn.Sequential(model.audio.spec, Logarithm())
    optimizer = make_optimizer(model, float(rate))
    train, batches = make_step(model, optimizer), data.batches()

    def prepare() -> tuple[Tensor, Tensor]:
        items, starts = next(batches)
        return data.train.at(items, starts)[0], padded(words([data.train.texts[item] for item in items]))

    def train_batch(batch: tuple[Tensor, Tensor]) -> None:
        train(*batch)

    def embed(waves: Tensor, lengths: Tensor, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        return model.get_audio_latents(waves), model.get_text_latents(padded(words(texts)))

    def measure() -> dict[str, float]:
        model.eval()
        metrics = task.measured(embed, data.held_out, model.contrast.temperatures.exp().item())
        model.train()
        return metrics

    step = loss_task.with_warmup(train_batch, optimizer, float(rate), task.WARMUP_STEPS)
    training = TimedTraining(step, measure, float(seconds), prepare)
    serve(training.next_slice, {**about(model), "task": data.digest}, PACKAGES)


WORKS: Mapping[str, Callable[..., None]] = {"step": serve_step, "loss": serve_training}


if __name__ == "__main__":
    torch.set_num_threads(1)
    WORKS[sys.argv[1]](*sys.argv[2:])
