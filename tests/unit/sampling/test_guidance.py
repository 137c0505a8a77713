"""Classifier-free guidance: conditional and unconditional prompts, their common batch, and guided logits."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from quintet.errors import UsageError
from quintet.sampling.guidance import check_guidance, combined, encode_prompts, guided, joined, split, twice


class Model:
    """Records the texts to encode; the encoding of a text is its length."""

    def texts(self, texts: Sequence[str], keep: Tensor | None = None) -> dict[str, Tensor]:
        assert keep is not None
        return {"text": torch.tensor([len(text) for text in texts]), "kept": keep}


def encoded(prompts: Sequence[str], negative: str | None = None) -> list[dict[str, list[object]]]:
    return [
        {name: value.tolist() for name, value in each.items()} for each in encode_prompts(Model(), prompts, negative)
    ]


def test_guided_logits_extrapolate_from_uncond_through_cond() -> None:
    one, other = torch.tensor([1.0, 2.0]), torch.tensor([0.5, 3.0])
    assert torch.equal(guided(one, other, 0.0), other)
    assert guided(one, other, 1.0) is one
    assert guided(one, other, 3.0).tolist() == [2.0, 0.0]
    assert guided(torch.tensor([-math.inf, 1.0]), torch.tensor([-math.inf, 0.0]), 2.0).tolist() == [-math.inf, 2.0]
    assert torch.equal(combined(torch.stack([one, other]), 3.0)[0], guided(one, other, 3.0))


def test_the_default_negative_is_no_text() -> None:
    assert encoded(["red", ""]) == [{"text": [3, 0], "kept": [True, False]}, {"text": [3, 0], "kept": [False, False]}]


def test_a_negative_prompt_replaces_no_text() -> None:
    assert encoded(["red", ""], "blue")[1] == {"text": [4, 4], "kept": [True, True]}


def test_an_empty_negative_prompt_counts_as_no_prompt() -> None:
    assert encoded(["red"], "") == encoded(["red"], None)


def test_joined_and_split_are_inverse() -> None:
    cond, uncond = {"text": torch.tensor([1, 2]), "low": torch.tensor([3, 4])}, {"text": torch.tensor([0, 0])}
    both = joined(cond, uncond)
    assert {name: value.tolist() for name, value in both.items()} == {"text": [1, 2, 0, 0], "low": [3, 4, 3, 4]}
    first, second = split(both, 2)
    assert first["text"].tolist() == [1, 2]
    assert second["low"].tolist() == [3, 4]
    assert twice(cond["low"]).tolist() == both["low"].tolist()
    with pytest.raises(ValueError, match="txt"):
        joined(cond, {"txt": torch.zeros(2)})


def test_guidance_needs_an_unconditional_model() -> None:
    check_guidance(1.0, None)
    check_guidance(3.0, {})
    with pytest.raises(UsageError, match="no unconditional model"):
        check_guidance(3.0, None)
