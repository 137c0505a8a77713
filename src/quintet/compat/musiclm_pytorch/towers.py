"""The towers of musiclm-pytorch: quintet's towers of MuLaN with the original constructors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from quintet.compat.model import CompatModel, notify, refuse_unless
from quintet.errors import UsageError
from quintet.families.mulan.towers import AudioSpectrogramTransformer as OwnAudioTransformer
from quintet.families.mulan.towers import Prepared, SpecAugmentNoise
from quintet.families.mulan.towers import TextTransformer as OwnTextTransformer
from quintet.nn.text import NUM_SYMBOLS
from quintet.nn.transformer import Transformer

SAMPLE_RATE = 16_000
"""Sampling rate that the mel scale assumes, in Hz; the original has none."""
MAX_SECONDS = 30.0
VOCABULARY = 49_408
"""Vocabulary size of the tokenizer of the original package."""


class AudioSpectrogramTransformer(CompatModel):
    """Waveforms (batch, samples) to vectors (batch, dim).

    Two keywords are not in the original: the mel scale needs a `sample_rate`, and the position embeddings a maximum
    length, `max_seconds`.
    """

    def __init__(
        self,
        dim: int,
        depth: int,
        patch_size: int | tuple[int, int] = 16,
        dim_head: int = 64,
        heads: int = 8,
        attn_dropout: float = 0.0,
        ff_mult: float = 4,
        ff_dropout: float = 0.0,
        accept_spec: bool = False,
        accept_spec_time_first: bool = True,
        spec_n_fft: int = 128,
        spec_power: float = 2,
        spec_win_length: int = 24,
        spec_hop_length: int | None = None,
        spec_pad: int = 0,
        spec_center: bool = True,
        spec_pad_mode: str = "reflect",
        spec_aug_stretch_factor: float = 0.8,
        spec_aug_freq_mask: int = 80,
        spec_aug_time_mask: int = 80,
        patch_dropout_prob: float = 0.25,
        *,
        sample_rate: int = SAMPLE_RATE,
        max_seconds: float = MAX_SECONDS,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        refuse_unless(name, "accept_spec", accept_spec, (False,), "the tower takes waveforms; leave it out")
        refuse_unless(name, "accept_spec_time_first", accept_spec_time_first, (True, False), "there is no spectrogram")
        refuse_unless(name, "spec_power", spec_power, (2, 2.0), "the spectrogram has the logarithm of powers")
        refuse_unless(name, "spec_pad", spec_pad, (0,), "clips are padded by half a window; leave it out")
        refuse_unless(name, "spec_center", spec_center, (True,), "frames are centred; leave it out")
        side = _one_side(name, patch_size)
        bins = (spec_n_fft // 2 + 1) // side * side
        if not bins:
            raise UsageError(f"{name}: spec_n_fft={spec_n_fft} has fewer frequencies than patch_size={side}")
        self.model = OwnAudioTransformer(
            dim=dim,
            depth=depth,
            heads=heads,
            head_dim=dim_head,
            ff_mult=float(ff_mult),
            dropout=one_dropout(name, attn_dropout, ff_dropout),
            sample_rate=sample_rate,
            n_fft=spec_n_fft,
            hop_length=spec_hop_length or spec_win_length // 2,
            n_mels=bins,
            patch_size=side,
            max_seconds=max_seconds,
            patch_dropout=patch_dropout_prob,
            frequency_mask=min(spec_aug_freq_mask, bins // 2),
            time_mask=spec_aug_time_mask,
        )
        self.dim, self.depth, self.patch_size = dim, depth, (side, side)
        notify(
            name,
            f"spectrograms are log-mel with {bins} bins and a window of spec_n_fft={spec_n_fft} samples, padded with "
            "zeros",
            "augmentation masks at most half of the frequencies and frames, and does not stretch",
            f"clips may have {max_seconds:g} s at {sample_rate} Hz (sample_rate=, max_seconds=)",
        )

    def forward(
        self, x: Tensor, force_no_patch_dropout: bool = False, return_all_layers: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Vectors (batch, dim); with `return_all_layers` also the states of all blocks but the last, stacked."""
        noise = self.new_noise(len(x))
        if noise is not None and force_no_patch_dropout:
            noise = noise._replace(patches=None)
        waves, lengths = checked_waves(x, self)
        out, layers = with_layers(self.model.transformer, lambda: self.model(waves, lengths, noise)[:, -1])
        return (out, layers) if return_all_layers else out

    def new_noise(self, size: int) -> SpecAugmentNoise | None:
        """The random numbers of the augmentation of a training batch; None in eval mode."""
        if not self.model.training:
            return None
        return SpecAugmentNoise.sampled(self.model.config, self.new_rng(size)).to(self.device)


class TextTransformer(CompatModel):
    """Token ids (batch, length), or raw texts, to vectors (batch, dim).

    Raw texts are UTF-8 bytes: nothing is downloaded, so that there is no tokenizer. Use either token ids or raw texts.
    """

    def __init__(
        self,
        dim: int,
        depth: int,
        num_tokens: int = VOCABULARY,
        max_seq_len: int = 256,
        dim_head: int = 64,
        heads: int = 8,
        attn_dropout: float = 0.0,
        ff_dropout: float = 0.0,
        ff_mult: float = 4,
        pad_id: int = 0,
    ) -> None:
        super().__init__()
        self.model = OwnTextTransformer(
            dim=dim,
            depth=depth,
            heads=heads,
            head_dim=dim_head,
            ff_mult=float(ff_mult),
            dropout=one_dropout(type(self).__name__, attn_dropout, ff_dropout),
            vocab_size=num_tokens,
            max_length=max_seq_len,
        )
        self.dim, self.depth, self.max_seq_len, self.pad_id = dim, depth, max_seq_len, pad_id
        notify(type(self).__name__, "the vector of a text is the mean of its tokens; raw texts are read as UTF-8 bytes")

    def forward(
        self,
        x: Tensor | None = None,
        raw_texts: Sequence[str] | None = None,
        mask: Tensor | None = None,
        return_all_layers: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Vectors (batch, dim); with `return_all_layers` also the states of all blocks but the last, stacked."""
        text, valid = (tensor.to(self.device) for tensor in self._prepared(x, raw_texts, mask))
        out, layers = with_layers(self.model.transformer, lambda: self.model(text, valid)[:, -1])
        return (out, layers) if return_all_layers else out

    def fields(
        self, texts: Tensor | None, raw_texts: Sequence[str] | None, mask: Tensor | None = None
    ) -> dict[str, Any]:
        """The texts as fields of a batch: `token_ids`, one row per text without padding, or `texts`."""
        if (texts is None) == (raw_texts is None):
            raise UsageError("give either texts, token ids (batch, length), or raw_texts, a list of texts")
        if raw_texts is not None:
            self._check_bytes()
            return {"texts": list(raw_texts)}
        assert texts is not None
        if texts.ndim != 2 or texts.is_floating_point():
            raise UsageError(f"texts are token ids (batch, length), not {texts.dtype} of shape {tuple(texts.shape)}")
        if texts.shape[1] > self.max_seq_len:
            raise UsageError(f"a text of {texts.shape[1]} tokens is longer than max_seq_len={self.max_seq_len}")
        valid = (texts != self.pad_id) if mask is None else mask.bool()
        return {"token_ids": [row[kept].cpu() for row, kept in zip(texts, valid, strict=True)]}

    def _prepared(self, texts: Tensor | None, raw_texts: Sequence[str] | None, mask: Tensor | None) -> Prepared:
        fields = self.fields(texts, raw_texts, mask)
        if "texts" in fields:
            return self.model.prepare(fields["texts"])
        return self.model.prepare_ids(fields["token_ids"])

    def _check_bytes(self) -> None:
        if self.model.embedding.num_embeddings < NUM_SYMBOLS:
            raise UsageError(
                f"raw_texts are bytes and need num_tokens of at least {NUM_SYMBOLS}, not "
                f"{self.model.embedding.num_embeddings}"
            )


def checked_waves(waves: Tensor, tower: AudioSpectrogramTransformer) -> tuple[Tensor, Tensor]:
    """Waveforms on the device of the tower, and their lengths."""
    if waves.ndim != 2:
        raise UsageError(f"waveforms have the shape (batch, samples), not {tuple(waves.shape)}")
    waves = waves.to(tower.device, tower.dtype)
    return waves, torch.full((len(waves),), waves.shape[1], device=waves.device)


def with_layers(transformer: Transformer, call: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
    """The result of a call, and the outputs (depth - 1, batch, positions, dim) of the blocks before the last."""
    states: list[Tensor] = []

    def keep(_: nn.Module, __: Any, output: Tensor) -> None:
        states.append(output)

    handles = [block.register_forward_hook(keep) for block in list(transformer.blocks)[:-1]]
    try:
        out = call()
    finally:
        for handle in handles:
            handle.remove()
    return out, torch.stack(states) if states else out.new_zeros(0)


def one_dropout(owner: str, attention: float, feed_forward: float) -> float:
    """quintet's blocks have one dropout probability, of the output of each residual branch."""
    if attention != feed_forward:
        raise UsageError(f"{owner}: attn_dropout={attention} and ff_dropout={feed_forward} must be the same here")
    return attention


def _one_side(owner: str, patch_size: int | tuple[int, int]) -> int:
    sides = {patch_size} if isinstance(patch_size, int) else {*patch_size}
    if len(sides) != 1:
        raise UsageError(f"{owner}: patch_size={patch_size} is refused: patches are square")
    return sides.pop()
