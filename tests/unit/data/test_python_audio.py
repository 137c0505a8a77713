"""Audio of a Python data set: the same items as those of a folder."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from torch import Tensor

from quintet.common.rng import ItemRNG
from quintet.config import WindowedAudioDataConfig
from quintet.data.audio import audio_folder_splits, pad_windows, python_audio_splits
from quintet.errors import UnreadableItem, UsageError

RATE = 8000


def rng(item: int = 0, epoch: int = 0) -> ItemRNG:
    return ItemRNG(0, [epoch], [item])


def wave(seconds: float) -> Tensor:
    """Samples that encode their position."""
    return torch.arange(int(seconds * RATE)) / 200_000


def start_of(samples: Tensor) -> int:
    return round(samples[0].item() * 200_000)


def loaded(item: Any, *, train: bool = True, declared: Any = None, epoch: int = 0, **keys: Any) -> dict[str, Any]:
    config = WindowedAudioDataConfig(**{"seconds": 1.0, **keys})
    result = python_audio_splits([item], config, RATE, declared=declared)
    return (result.train if train else result.validation).load(0, rng(epoch=epoch))


@pytest.mark.parametrize(
    ("item", "declared"),
    [
        ({"wavs": wave(0.5), "texts": "a flute"}, None),
        ({"wavs": wave(0.5), "raw_texts": "a flute"}, None),
        ({"audio": wave(0.5), "caption": "a flute", "id": 7}, None),
        ((wave(0.5), "a flute"), None),
        (("a flute", wave(0.5).double()), None),
        ((wave(0.5).numpy(), "a flute"), None),
        ((wave(0.5)[None], "a flute"), None),
        (("a flute", wave(0.5)), ("raw_texts", "wavs")),
    ],
    ids=["names", "raw texts", "aliases", "tuple", "doubles", "numpy", "one channel", "declared"],
)
def test_items_of_any_form(item: Any, declared: Any) -> None:
    result = loaded(item, declared=declared)
    assert result.keys() == {"wavs", "lengths", "texts"}
    assert result["texts"] == "a flute"
    assert result["wavs"].dtype == torch.float32
    assert torch.equal(result["wavs"], wave(0.5)[None])
    assert result["lengths"].tolist() == [RATE // 2]


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("keys", [{}, {"loudness": -30.0}, {"stride": 0.3, "max_windows": 4}], ids=str)
def test_a_data_set_gives_the_items_that_a_folder_gives(tmp_path: Path, train: bool, keys: dict[str, Any]) -> None:
    clips = [(wave(seconds), f"{seconds} seconds") for seconds in (0.5, 3.5)]
    for samples, text in clips:
        soundfile.write(tmp_path / f"{text}.wav", samples.numpy(), RATE, subtype="FLOAT")
        (tmp_path / f"{text}.txt").write_text(text)
    config = WindowedAudioDataConfig(path=str(tmp_path), seconds=1.0, validation_fraction=0, **keys)
    folder, python = audio_folder_splits(config, RATE), python_audio_splits(clips, config, RATE)
    for item in range(2):
        for epoch in range(2):
            ours, theirs = (
                (result.train if train else result.validation).load(item, rng(item, epoch))
                for result in (python, folder)
            )
            assert ours.keys() == theirs.keys()
            assert ours["texts"] == theirs["texts"]
            assert torch.equal(ours["lengths"], theirs["lengths"])
            torch.testing.assert_close(ours["wavs"], theirs["wavs"], rtol=0, atol=1e-7)


def test_a_long_clip_is_cropped_at_a_random_position() -> None:
    item = (wave(3), "rising")
    starts = {start_of(loaded(item, epoch=epoch)["wavs"][0]) for epoch in range(8)}
    assert len(starts) == 8
    assert all(0 <= start <= 2 * RATE for start in starts)
    assert loaded(item)["wavs"].shape == (1, RATE)
    assert torch.equal(loaded(item)["wavs"], loaded(item)["wavs"])


def test_outside_training_nothing_is_random() -> None:
    result = loaded((wave(3), "rising"), train=False)
    assert [start_of(window) for window in result["wavs"]] == [0, RATE, 2 * RATE]
    assert result["lengths"].tolist() == [RATE] * 3


@pytest.mark.parametrize(
    "ids", [torch.tensor([5, 0, 7]), np.array([5, 0, 7]), torch.tensor([5, 0, 7], dtype=torch.uint8)]
)
def test_texts_may_be_token_ids(ids: Any) -> None:
    for item in ((wave(0.5), ids), {"wavs": wave(0.5), "texts": ids}):
        result = loaded(item)
        assert result.keys() == {"wavs", "lengths", "token_ids"}
        assert result["token_ids"].tolist() == [5, 0, 7]
        assert result["token_ids"].dtype == torch.int64


def test_zeros_at_the_end_of_ids_are_padding() -> None:
    assert loaded((wave(0.5), torch.tensor([5, 0, 7, 0, 0])))["token_ids"].tolist() == [5, 0, 7]
    with pytest.raises(UnreadableItem, match="padding"):
        loaded((wave(0.5), torch.zeros(4, dtype=torch.long)))


def test_a_batch_of_ids_of_different_lengths() -> None:
    items = [loaded((wave(seconds), torch.arange(1, count))) for seconds, count in ((0.5, 4), (1.0, 9))]
    batch = pad_windows(items)
    assert [len(ids) for ids in batch["token_ids"]] == [3, 8]
    assert batch["wavs"].shape == (2, RATE)
    with pytest.raises(UsageError, match="one form for all items"):
        pad_windows([items[0], loaded((wave(0.5), "a flute"))])


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ({"wavs": wave(1)}, "item 0 of the data set has neither raw_texts nor texts"),
        ({"wavs": wave(1), "texts": "a", "raw_texts": "b"}, "both raw_texts and texts"),
        ({"texts": "a flute"}, r"no 'wavs': it is \{texts: str\}; expected wavs \(float samples"),
        ((wave(1), wave(1), "a flute"), "fits a field twice"),
        ((wave(1), "a flute", torch.arange(3)), "fits a field twice"),
        ((wave(1), 7), "int in an item fits no field"),
    ],
)
def test_an_item_that_has_too_little_or_too_much(item: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        loaded(item)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (wave(0), "no samples"),
        (wave(1) * torch.nan, "not finite"),
        (torch.zeros(2, RATE), "2 channels; mix them to one"),
        (torch.zeros(RATE, dtype=torch.int16), r"int16 of shape \(8000,\) for a sound; fractions"),
        ([0.0, 0.1], "list for a sound"),
    ],
)
def test_unusable_audio_is_an_unreadable_item(value: Any, reason: str) -> None:
    with pytest.raises(UnreadableItem, match=reason):
        loaded({"wavs": value, "texts": "a flute"})


def test_the_split_and_a_separate_validation_set() -> None:
    dataset = [(wave(0.1), f"sound {number}") for number in range(40)]
    config = WindowedAudioDataConfig(validation_fraction=0.2)
    split = python_audio_splits(dataset, config, RATE)
    sides = [{side.name(item) for item in range(len(side))} for side in (split.train, split.validation)]
    assert all(sides)
    assert not sides[0] & sides[1]
    assert len(sides[0] | sides[1]) == 40
    separate = python_audio_splits(dataset, config, RATE, validation=[(wave(2), "held out")])
    assert (len(separate.train), len(separate.validation)) == (40, 1)
    assert separate.validation.load(0, rng())["texts"] == "held out"


def test_it_can_be_pickled() -> None:
    result = python_audio_splits([(wave(3), "rising")], WindowedAudioDataConfig(seconds=1.0), RATE)
    again = pickle.loads(pickle.dumps(result.train))
    assert torch.equal(again.load(0, rng())["wavs"], result.train.load(0, rng())["wavs"])
