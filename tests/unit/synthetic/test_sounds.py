"""The dataset `sounds` and its judge."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from quintet.errors import UsageError
from quintet.media.audio import read_audio, read_header
from quintet.synthetic.sounds import (
    DRUMS,
    LOUDNESS,
    NOISES,
    RATE,
    REGISTERS,
    TIMBRES,
    WITHHELD_PAIRS,
    SoundRecord,
    draw_item,
    make_sounds,
    render,
    split_of,
)
from quintet.synthetic.sounds_judge import SILENCE, judge, match

ITEMS = [draw_item(0, index) for index in range(150)]


def read_rows(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "metadata.jsonl").read_text().splitlines()]


def test_an_item_depends_only_on_seed_and_index(tmp_path: Path) -> None:
    make_sounds(tmp_path / "few", num=2, seed=5)
    make_sounds(tmp_path / "more", num=3, seed=5)
    assert read_rows(tmp_path / "few") == read_rows(tmp_path / "more")[:2]
    for index in range(2):
        name = f"sounds/{index:05d}.flac"
        assert (tmp_path / "few" / name).read_bytes() == (tmp_path / "more" / name).read_bytes()
    assert draw_item(6, 0).caption != draw_item(5, 0).caption


def test_the_folder_matches_its_metadata(tmp_path: Path) -> None:
    make_sounds(tmp_path / "new", num=3, seed=2)
    about = {"name": "sounds", "version": 1, "num": 3, "rate": RATE, "seed": 2}
    assert json.loads((tmp_path / "new" / "dataset.json").read_text()) == about
    for index, row in enumerate(read_rows(tmp_path / "new")):
        item = draw_item(2, index)
        path = tmp_path / "new" / str(row["file_name"])
        assert read_header(path).rate == RATE
        assert np.abs(read_audio(path)[0] - item.wave).max() < 1e-4
        assert (row["text"], row["sound"]) == (item.caption, item.record)
        assert row["split"] == split_of(item.caption, item.record)


@pytest.mark.parametrize(("key", "value"), [("num", 0), ("seed", -1)])
def test_invalid_values_and_non_empty_folders_are_refused(tmp_path: Path, key: str, value: int) -> None:
    with pytest.raises(UsageError, match=f"--{key} is {value}"):
        make_sounds(tmp_path / "new", **{key: value})
    assert not (tmp_path / "new").exists()
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(UsageError, match="not empty"):
        make_sounds(tmp_path, num=1)
    with pytest.raises(UsageError, match="is a file"):
        make_sounds(tmp_path / "mine.txt", num=1)


def test_clips_have_the_configured_length_and_loudness() -> None:
    for item in ITEMS:
        assert 1.0 <= len(item.wave) / RATE <= 4.0
        low, high = LOUDNESS[item.record["loudness"]]
        assert low - 1e-6 <= np.abs(item.wave).max() <= high + 1e-6
    assert {item.record["timbre"] for item in ITEMS} == {*TIMBRES, *DRUMS, *NOISES}


def test_captions_are_true_and_use_the_right_article() -> None:
    for item in ITEMS:
        words = re.findall(r"[a-z-]+", item.caption)
        if item.record["timbre"] != "whoosh":
            assert item.record["timbre"] in item.caption
        register = item.record["register"]
        heard = {"low": {"low", "deep"}, "middle": {"middle", "mid-range"}, "high": {"high", "high-pitched"}}
        for name, spoken in heard.items():
            assert bool(spoken & set(words)) == (name == register), item.caption
        up = bool({"rising", "ascending", "climbs", "up"} & set(words))
        down = bool({"falling", "descending", "descends", "down"} & set(words))
        assert (up, down) == (item.record["direction"] == "rising", item.record["direction"] == "falling")
        assert not re.search(r"\ba [aeiou]|\ban [^aeiou]|  ", item.caption), item.caption
    assert len({item.caption for item in ITEMS}) > 0.9 * len(ITEMS)


def test_splits_share_no_caption_and_withheld_pairs_have_their_own() -> None:
    splits: dict[str, set[str]] = {}
    for item in ITEMS:
        split = split_of(item.caption, item.record)
        splits.setdefault(item.caption, set()).add(split)
        assert ((item.record["timbre"], item.record["register"]) in WITHHELD_PAIRS) == (split == "withheld")
        assert split_of(f" {item.caption.upper()}.", item.record) == split
    assert all(len(found) == 1 for found in splits.values())
    counts = Counter(split for found in splits.values() for split in found)
    assert min(counts["validation"], counts["withheld"]) >= 5


def test_the_judge_recognises_synthesised_clips() -> None:
    right: dict[str, list[bool]] = {}
    for item in ITEMS:
        for name, value in match(item.record, judge(item.wave)).items():
            right.setdefault(name, []).append(value)
    assert set(right) == {"timbre", "register", "tempo", "direction", "loudness"}
    assert {name: np.mean(values) >= 0.98 for name, values in right.items()} == dict.fromkeys(right, True)


def test_the_judge_tolerates_noise_and_eight_bits() -> None:
    rng = np.random.default_rng(0)
    right: list[bool] = []
    for item in ITEMS[:60]:
        peak = float(np.abs(item.wave).max())
        spoilt = np.rint((item.wave / peak + 0.003 * rng.standard_normal(len(item.wave))) * 127) / 127 * peak
        right += match(item.record, judge(spoilt)).values()
    assert np.mean(right) >= 0.9


@pytest.mark.parametrize("timbre", TIMBRES)
@pytest.mark.parametrize("register", REGISTERS)
def test_each_timbre_is_recognised_in_each_register(timbre: str, register: str) -> None:
    record = SoundRecord(
        kind="run", timbre=timbre, register=register, tempo="medium", direction="falling", loudness="loud"
    )
    assert all(match(record, judge(render(np.random.default_rng(3), record))).values())


def test_the_judge_rejects_wrong_attributes() -> None:
    record = SoundRecord(kind="run", timbre="flute", register="high", tempo="fast", direction="rising", loudness="loud")
    wrong = SoundRecord(kind="run", timbre="organ", register="low", tempo="slow", direction="falling", loudness="quiet")
    assert not any(match(wrong, judge(render(np.random.default_rng(0), record))).values())


def test_silence_and_invalid_clips_have_no_timbre() -> None:
    for wave in (np.zeros(RATE), np.zeros(0), np.full(RATE, np.nan)):
        assert judge(wave) == SILENCE
    assert judge(np.array([0.5])).tempo is None
