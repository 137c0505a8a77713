"""Owns how the judge of the embedded sounds is asked about clips: which figures, over which clips."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from quintet.media.audio import resample
from quintet.synthetic.sounds import RATE, SoundRecord
from quintet.synthetic.sounds_judge import judge, match

WITHHELD = "withheld"
"""The split of sounds of a timbre in a register that were never trained on together."""

WORDS = ("timbre", "register", "tempo", "direction", "loudness")


def are_known(records: Any) -> bool:
    """Whether these are what is true of embedded sounds, and not a column of somebody's own of the same name."""
    known = {"kind", *WORDS}
    return isinstance(records, list) and all(isinstance(one, dict) and known <= one.keys() for one in records)


def judged(
    waves: Sequence[Tensor], rate: int, records: Sequence[Mapping[str, Any]], split: str, suffix: str = ""
) -> dict[str, Tensor]:
    """Of how many clips each word of the caption is found, and how many captions say such a word.

    Of the withheld ones one figure: of how many both timbre and register are.
    """
    found = [_found(wave, rate, record) for wave, record in zip(waves, records, strict=True)]
    if split == WITHHELD:
        both = [each["timbre"] and each.get("register", True) for each in found]
        return _counts(f"match_withheld{suffix}", both)
    sums: dict[str, Tensor] = {}
    for word in WORDS:
        sums |= _counts(f"match_{word}{suffix}", [each[word] for each in found if word in each])
    return sums


def figures(sums: Mapping[str, Tensor]) -> dict[str, float]:
    """The share of right ones, of all that `judged` has counted."""
    return {
        name: float(sums[name] / sums[f"asked/{name}"])
        for name in sums
        if name.startswith("match_") and sums[f"asked/{name}"]
    }


def _found(wave: Tensor, rate: int, record: Mapping[str, Any]) -> dict[str, bool]:
    samples = resample(wave.detach().float().cpu().numpy(), rate, RATE)
    return match(cast(SoundRecord, record), judge(np.asarray(samples, np.float64)))


def _counts(name: str, right: Sequence[bool]) -> dict[str, Tensor]:
    counts = {name: sum(right), f"asked/{name}": len(right)}
    return {key: torch.tensor(float(count), dtype=torch.float64) for key, count in counts.items()}
