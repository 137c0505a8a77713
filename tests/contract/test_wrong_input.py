"""Tensors of wrong shapes, types and ranges for the pipelines: one sentence each, never an error of torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from contract.cases import GOLDEN
from quintet.errors import UsageError
from quintet.pipelines.base import Pipeline
from quintet.pipelines.loading import open_pipeline

LONG = torch.int64


MEDIA: dict[str, list[tuple[Any, ...]]] = {
    "vqgan": [
        (torch.rand(3, 16, 16),), (torch.rand(1, 4, 16, 16),), (torch.rand(1, 3, 15, 16),), (torch.rand(0, 3, 16, 16),),
        (torch.rand(1, 3, 0, 16),), (torch.ones(1, 3, 16, 16, dtype=LONG),), (torch.tensor(1.0),),
    ],
    "cvivit": [
        (torch.rand(3, 5, 16, 16),), (torch.rand(1, 1, 5, 16, 16),), (torch.rand(1, 3, 4, 16, 16),),
        (torch.rand(1, 3, 5, 16, 16), torch.ones(1, 4, dtype=torch.bool)), (torch.rand(1, 3, 10_001, 16, 16),),
    ],
    "audio-codec": [
        (torch.rand(100),), (torch.rand(1, 2, 100),), (torch.rand(1, 0),), (torch.ones(1, 100, dtype=LONG),),
        (torch.rand(1, 100), torch.tensor([101])), (torch.rand(1, 100), torch.tensor([0])),
        (torch.rand(1, 100), torch.tensor([5, 5])), (torch.rand(1, 100), torch.tensor([5.0])),
    ],
    "mesh-autoencoder": [
        (torch.rand(4, 2), torch.tensor([[0, 1, 2]])), (torch.rand(4, 3), torch.tensor([0, 1, 2])),
        (torch.rand(4, 3), torch.tensor([[0, 1, 4]])), (torch.rand(4, 3), torch.tensor([[0, 1, -1]])),
        (torch.rand(4, 3), torch.rand(1, 3)), (torch.rand(4, 3), torch.tensor([[0, 1]])),
        (torch.rand(0, 3), torch.zeros(0, 3, dtype=LONG)), (torch.rand(1, 4, 3), torch.tensor([[0, 1, 2]])),
    ],
}  # fmt: skip
"""Arguments of `encode`."""

CODES: dict[str, tuple[tuple[int, ...], list[tuple[int, ...]]]] = {
    "vqgan": ((1, 4, 4), [(4, 4), (1, 4), (1, 4, 4, 1, 1), (1, 0, 4), ()]),
    "cvivit": ((1, 3, 2, 2), [(3, 2, 2), (1, 3, 2, 3), (1, 0, 2, 2), ()]),
    "audio-codec": ((1, 5, 2), [(5, 2), (1, 5, 9), (1, 0, 2), ()]),
    "mesh-autoencoder": ((1, 4, 6), [(1, 4, 5), (4,), (1, 1, 4, 6), (1, 0, 6), ()]),
}
"""A shape of codes that `decode` takes, and shapes that it does not."""


def opened(recipe: str) -> Any:
    return open_pipeline(str(GOLDEN / f"{recipe}-format-1" / "hub"))


def assert_refused(call: Callable[[], object]) -> None:
    with pytest.raises(UsageError) as refused:
        call()
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 250


@pytest.mark.parametrize("recipe", MEDIA)
def test_media_that_a_tokenizer_cannot_encode(recipe: str) -> None:
    tokenizer = opened(recipe)
    for arguments in MEDIA[recipe]:
        assert_refused(lambda: tokenizer.encode(*arguments))  # noqa: B023 - called at once


@pytest.mark.parametrize("recipe", CODES)
def test_codes_that_a_tokenizer_cannot_decode(recipe: str) -> None:
    tokenizer: Pipeline[Any] = opened(recipe)
    shape, wrong = CODES[recipe]
    decode: Callable[[torch.Tensor], object] = tokenizer.decode  # type: ignore[attr-defined]
    decode(torch.zeros(shape, dtype=torch.int32))
    for each in wrong:
        assert_refused(lambda: decode(torch.zeros(each, dtype=LONG)))  # noqa: B023 - called at once
    for value in (tokenizer.model.num_codes, -2, 2**40):
        assert_refused(lambda: decode(torch.full(shape, value, dtype=LONG)))  # noqa: B023 - called at once
    for dtype in (torch.float32, torch.bool, torch.complex64):
        assert_refused(lambda: decode(torch.zeros(shape, dtype=dtype)))  # noqa: B023 - called at once


@pytest.mark.parametrize(
    ("waves", "rate"),
    [
        ([torch.rand(1, 8000)], 8000),
        ([torch.rand(0)], 8000),
        ([torch.tensor(1.0)], 8000),
        (torch.rand(8000), 8000),
        ([torch.ones(8000, dtype=LONG)], 8000),
        ([[0.0, 1.0]], 8000),
        ([], 8000),
        ([torch.rand(8000)], 0),
        ([torch.rand(8000)], -8000),
        ([torch.rand(8000)], 8000.5),
    ],
)
def test_clips_that_cannot_be_embedded(waves: Any, rate: Any) -> None:
    assert_refused(lambda: opened("mulan").embed_audio(waves, rate))


@pytest.mark.parametrize("texts", [[], [1], [None]])
def test_texts_that_cannot_be_embedded(texts: Any) -> None:
    assert_refused(lambda: opened("mulan").embed_texts(texts))
