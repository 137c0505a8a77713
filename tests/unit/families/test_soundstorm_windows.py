"""Parts of a prompt that are kept, and clips of several windows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from quintet.common.rng import ItemRNG
from quintet.config import AudioDataConfig
from quintet.data.audio import AudioFolder, audio_folder_splits
from quintet.data.audio_windows import with_windows
from quintet.errors import UsageError
from quintet.families.soundstorm.keeping import FADE_SECONDS, Keep, composite, kept_frames, parse_spans
from quintet.families.soundstorm.windows import generate_windows, window_starts

RNG = ItemRNG(0, [0], [0])


def test_spans_are_read_in_any_order_and_with_fractions() -> None:
    assert parse_spans("5-7, 0-2") == ((0, 2), (5, 7))
    assert parse_spans(".5-1.25") == ((0.5, 1.25),)
    assert parse_spans([(1, 2)]) == ((1.0, 2.0),)
    assert parse_spans("0-2,2-3") == ((0, 2), (2, 3))


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        ("a-b", "'a-b' is not a range of seconds"),
        ("1", "'1' is not a range of seconds"),
        ("-1-2", "'-1-2' is not a range of seconds"),
        ("nan-2", "'nan-2' is not a range of seconds"),
        ("", "is not a range of seconds"),
        ("2-1", "must end after its start"),
        ("1-1", "must end after its start"),
        ("0-2,1-3", "0-2 and 1-3 overlap"),
        ([(0, float("inf"))], "must end after its start"),
        ([], "names no seconds"),
        ([1, 2], "is not pairs of seconds"),
    ],
)
def test_wrong_spans_are_refused_with_the_span(keep: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_spans(keep)


def test_kept_frames_are_those_of_the_spans_and_every_nth_of_them() -> None:
    spans = Keep(((0.0, 0.4), (0.8, 1.0)))
    assert kept_frames(spans, 10, 10.0, 1.0).nonzero()[:, 0].tolist() == [0, 1, 2, 3, 8, 9]
    assert kept_frames(Keep(every=4), 10, 10.0, 1.0).nonzero()[:, 0].tolist() == [0, 4, 8]
    with pytest.raises(UsageError, match=r"0\.8-1\.2 is outside of the clip, which has 1\.00 s"):
        kept_frames(Keep(((0.8, 1.2),)), 10, 10.0, 1.0)
    assert kept_frames(Keep(((0.41, 0.42), (0.65, 0.7))), 10, 10.0, 1.0).nonzero()[:, 0].tolist() == [4, 6]
    with pytest.raises(UsageError, match="--keep-every 9 keeps no frame"):
        kept_frames(Keep(((0.1, 0.3),), every=9), 10, 10.0, 1.0)


def test_kept_samples_are_those_of_the_original_and_fade_outside() -> None:
    rate = 1000
    fade = round(FADE_SECONDS * rate)
    mixed = composite(torch.zeros(1200), torch.ones(1000), Keep(((0.2, 0.5),)), 10.0, rate)
    assert (mixed[200:500] == 1).all()
    assert (mixed[: 200 - fade] == 0).all()
    assert (mixed[500 + fade :] == 0).all()
    assert (mixed[200 - fade : 200].diff() > 0).all()
    assert (mixed[500 : 500 + fade].diff() < 0).all()
    # Two spans that touch have no gap, and a span may end with the original.
    assert (composite(torch.zeros(1000), torch.ones(1000), Keep(((0.0, 0.5), (0.5, 1.0))), 10.0, rate) == 1).all()


def test_windows_cover_a_clip_and_overlap() -> None:
    assert window_starts(10, 10, 0.5) == [0]
    assert window_starts(4, 10, 0.5) == [0]
    assert window_starts(25, 10, 0.5) == [0, 5, 10, 15]
    assert window_starts(11, 10, 0.5) == [0, 1]
    assert window_starts(100, 10, 0.99)[-1] == 90


def test_each_window_sees_the_codes_of_the_window_before() -> None:
    seen: list[tuple[list[int], int]] = []

    def complete(part: Tensor, rng: ItemRNG) -> Tensor:
        seen.append((part[0, :, 0].tolist(), rng.seed))
        return part.masked_fill(part < 0, len(seen))

    canvas = torch.full((1, 9, 1), -1)
    canvas[0, 8] = 7
    codes = generate_windows(complete, canvas, 4, 0.5, RNG)
    assert codes[0, :, 0].tolist() == [1, 1, 1, 1, 2, 2, 3, 3, 7]
    assert [part for part, _ in seen] == [[-1] * 4, [1, 1, -1, -1], [2, 2, -1, -1]]
    assert len({seed for _, seed in seen}) == 3
    assert (canvas[0, :8] == -1).all()


def test_a_long_file_gives_several_windows(sounds: Path) -> None:
    splits = audio_folder_splits(AudioDataConfig(path=str(sounds), seconds=0.5), 8000, first_window_only=True)
    whole = splits.train
    assert isinstance(whole, AudioFolder)
    source = with_windows(splits, "all").train
    assert isinstance(source, AudioFolder)
    counts = [-(-whole.frames(item) // 4000) for item in range(len(whole))]
    assert len(source) == sum(counts) > 2 * len(whole)
    names = [source.name(item) for item in range(counts[0])]
    assert names[0] == whole.name(0)
    assert names[1].startswith(f"{whole.name(0)} from 0.")
    # The last window ends with the file.
    last = source.load(counts[0] - 1, RNG)["wavs"]
    assert torch.equal(last, torch.from_numpy(whole._full_clip(0)[:, -4000:]))
    assert torch.equal(source.load(0, RNG)["wavs"], whole.load(0, RNG)["wavs"])
    assert source.metadata(1) == whole.metadata(0)
    few = with_windows(splits, 2).train
    assert len(few) == sum(min(count, 2) for count in counts)
    assert few.preprocessing_key != source.preprocessing_key  # type: ignore[attr-defined]
