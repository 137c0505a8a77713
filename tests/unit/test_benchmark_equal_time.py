"""Comparisons of held-out loss after equal CPU time: the codes, the masks, the loss, and the table of the outcome."""

from __future__ import annotations

import importlib
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

NAMES = ("equal_time", "loss_task", "side_by_side", "soundstorm_task", "video_task", "worker")


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    for name in NAMES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    return {name: importlib.import_module(name) for name in NAMES}


def contender(benchmarks: dict[str, ModuleType], name: str, *measured: tuple[float, float]) -> Any:
    """A contender with measurements (CPU seconds, loss)."""
    made = benchmarks["side_by_side"].Contender(name, "python", "worker.py", ())
    made.about = {"parameters": {"transformer": 1_000_000}, "task": "same"}
    made.costs = [
        {"trained": seconds, "loss": loss, "steps": 10 * seconds, "peak_megabytes": 100.0} for seconds, loss in measured
    ]
    return made


def write_codes(folder: Path, codes: Tensor, splits: Sequence[str]) -> None:
    folder.mkdir()
    save_file({"codes": codes.int()}, folder / "codes.safetensors")
    rows = [{"text": f"item {number}", "split": split} for number, split in enumerate(splits)]
    (folder / "texts.json").write_text(json.dumps(rows), encoding="utf-8")


# --- the table ------------------------------------------------------------------------------------------------------


def cells(table: str, name: str) -> list[str]:
    (row,) = [line for line in table.splitlines() if line.startswith(f"| {name} |")]
    return [cell.strip() for cell in row.strip("|").split("|")]


def test_time_is_compared_with_the_better_rate_of_the_peer(benchmarks: dict[str, ModuleType]) -> None:
    table = benchmarks["equal_time"].outcome(
        [
            contender(benchmarks, "peer, slow", (0, 7.0), (40, 6.9), (80, 6.8)),
            contender(benchmarks, "peer, fast", (0, 7.0), (40, 6.5), (80, 6.0)),
            contender(benchmarks, "ours, good", (0, 7.0), (10, 5.9), (80, 5.0)),
            contender(benchmarks, "ours, late", (0, 7.0), (40, 6.1), (60, 6.0)),
            contender(benchmarks, "ours, bad", (0, 7.0), (40, 6.6), (80, 6.5)),
        ],
        {},
    )
    assert "best loss, 6.000" in table
    assert cells(table, "peer, slow")[4:6] == ["not reached", ""]
    assert cells(table, "peer, fast")[4:6] == ["80", ""]
    assert cells(table, "ours, good")[4:6] == ["10", "0.125"]
    assert cells(table, "ours, late")[4:6] == ["60", "0.750, **missed**"]
    assert cells(table, "ours, bad")[4:6] == ["not reached", "not reached"]


def test_a_loss_that_is_reached_untrained_says_nothing(benchmarks: dict[str, ModuleType]) -> None:
    peer = contender(benchmarks, "peer", (0, 7.2), (40, 7.1))
    table = benchmarks["equal_time"].outcome([peer, contender(benchmarks, "ours", (0, 7.0), (40, 6.0))], {})
    assert cells(table, "ours")[4:6] == ["0", "not comparable: reached untrained"]


def test_a_column_of_some_contenders_is_empty_for_the_others(benchmarks: dict[str, ModuleType]) -> None:
    peer, ours = (contender(benchmarks, name, (0, 7.0), (40, 6.5)) for name in ("peer", "ours"))
    ours.costs[-1]["averaged loss"] = 6.25
    equal_time = benchmarks["equal_time"]
    table = equal_time.outcome([peer, ours], {"averaged": equal_time.shown("averaged loss")})
    assert cells(table, "peer")[4] == ""
    assert cells(table, "ours")[4] == "6.250"


def chosen_by(benchmarks: dict[str, ModuleType], defaults_only: bool) -> list[Any]:
    equal_time = benchmarks["equal_time"]
    return equal_time.contenders(  # type: ignore[no-any-return]
        equal_time.Plan(480, 24, ("3e-4", "1e-3"), defaults_only),
        lambda name, rate, seconds: contender(benchmarks, f"{name}: {rate}, {seconds} s"),
        lambda name, settings, seconds: contender(benchmarks, f"{name}: {settings}, {seconds} s"),
    )


def test_default_settings_alone_train_for_a_quarter_of_the_time_of_the_peer(benchmarks: dict[str, ModuleType]) -> None:
    assert [each.name for each in chosen_by(benchmarks, defaults_only=True)] == [
        "peer, rate 3e-4: 3e-4, 20.0 s",
        "peer, rate 1e-3: 1e-3, 20.0 s",
        "ours, default settings, preset small: small, 5.0 s",
    ]


def test_every_rate_has_both_sides_and_the_preset_comes_last(benchmarks: dict[str, ModuleType]) -> None:
    chosen = chosen_by(benchmarks, defaults_only=False)
    assert [each.name for each in chosen] == [
        "peer, rate 3e-4: 3e-4, 20.0 s",
        "ours, rate 3e-4: 3e-4, 20.0 s",
        "peer, rate 1e-3: 1e-3, 20.0 s",
        "ours, rate 1e-3: 1e-3, 20.0 s",
        "ours, default settings, preset small: small, 20.0 s",
    ]


def test_texts_follow_the_order_of_the_codes(benchmarks: dict[str, ModuleType], tmp_path: Path) -> None:
    data, codes = tmp_path / "data", tmp_path / "codes"
    data.mkdir()
    codes.mkdir()
    known = [{"file_name": f"{name}.png", "text": f"a {name}", "split": "train", "more": 1} for name in "ab"]
    items = [{"file": "b.png", "row": 0}, {"file": "c.png", "skipped": "broken"}, {"file": "a.png", "row": 1}]
    for path, rows in ((data / "metadata.jsonl", known), (codes / "items.jsonl", items)):
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    benchmarks["equal_time"].write_texts(data, codes)
    assert json.loads((codes / "texts.json").read_text(encoding="utf-8")) == [
        {"text": "a b", "split": "train"},
        {"text": "a a", "split": "train"},
    ]


# --- codes, masks and the loss --------------------------------------------------------------------------------------


def test_masks_hide_the_same_fraction_of_every_item_every_time(
    benchmarks: dict[str, ModuleType], tmp_path: Path
) -> None:
    splits = ["train"] * 20 + ["validation"] * 5 + ["test"]
    write_codes(tmp_path / "codes", torch.randint(0, 1024, (26, 2, 4, 4)), splits)
    first, second = (benchmarks["video_task"].read_task(tmp_path / "codes") for _ in range(2))
    assert first.digest == second.digest
    assert first.grid == (2, 4, 4)
    assert (len(first.train_codes), len(first.codes)) == (20, 5)
    assert first.texts == [f"item {number}" for number in range(20, 25)]
    assert first.masks.sum(-1).tolist() == [[round(ratio * 32)] * 5 for ratio in (0.25, 0.5, 0.75, 1.0)]
    codes, texts = next(first.batches())
    assert codes.shape == (16, 2, 4, 4)
    assert all(
        torch.equal(first.train_codes[int(text.split()[1])], row) for row, text in zip(codes, texts, strict=True)
    )


def test_another_mask_changes_the_digest(benchmarks: dict[str, ModuleType], tmp_path: Path) -> None:
    write_codes(tmp_path / "codes", torch.randint(0, 1024, (20, 2, 4, 4)), ["train"] * 16 + ["validation"] * 4)
    task = benchmarks["video_task"].read_task(tmp_path / "codes")
    before = task.digest
    task.masks[0, 0, 0] = ~task.masks[0, 0, 0]
    assert task.digest != before


def test_the_loss_is_the_plain_cross_entropy_of_masked_codes(benchmarks: dict[str, ModuleType], tmp_path: Path) -> None:
    write_codes(tmp_path / "codes", torch.randint(0, 1024, (56, 2, 4, 4)), ["train"] * 16 + ["validation"] * 40)
    task = benchmarks["video_task"].read_task(tmp_path / "codes")
    seen: list[bool] = []

    def predict(tokens: Tensor, texts: Sequence[str], shown: bool) -> Tensor:
        """Wrong at visible codes, which must not count, and without a preference at masked ones."""
        assert len(tokens) == len(texts)
        seen.append(shown)
        wrong = F.one_hot((tokens + 1) % 1024, 1024).float()
        return 100 * wrong.masked_fill((tokens == 1024)[..., None], 0)

    metrics = benchmarks["loss_task"].masked_loss(predict, task, 1024)
    assert metrics["loss"] == pytest.approx(math.log(1024), abs=1e-4)
    assert metrics["loss/0.25"] == pytest.approx(math.log(1024), abs=1e-4)
    assert set(seen) == {True}


def test_finer_quantizers_are_masked_and_coarser_ones_visible(
    benchmarks: dict[str, ModuleType], tmp_path: Path
) -> None:
    task = benchmarks["soundstorm_task"]
    codes = torch.randint(0, 1024, (24, 60, 6))
    codes[3, 49:] = -1
    write_codes(tmp_path / "codes", codes, ["train"] * 16 + ["validation"] * 8)
    data = task.read_task(tmp_path / "codes")
    assert data.train_codes.shape == (15, task.CLIP_FRAMES, task.CLIP_LEVELS)

    def predict(tokens: Tensor, level: int) -> Tensor:
        """Certain of the right codes of one level, at chance for the others."""
        assert torch.equal(tokens[..., :level], data.codes[..., :level])
        assert (tokens[..., level + 1 :] == 1024).all()
        return (100 if level == 1 else 0) * F.one_hot(data.codes[..., level], 1024).float()

    metrics = task.masked_loss(predict, data, 1024)
    assert metrics["loss/level 1"] == pytest.approx(math.log(1024), abs=1e-4)
    assert metrics["loss/level 2"] == pytest.approx(0, abs=1e-4)
    assert metrics["loss"] == pytest.approx(0.75 * math.log(1024), abs=1e-4)


def test_codes_of_another_tokenizer_are_refused(benchmarks: dict[str, ModuleType], tmp_path: Path) -> None:
    write_codes(tmp_path / "large", torch.full((20, 2, 4, 4), 1024), ["train"] * 20)
    with pytest.raises(SystemExit, match="1024 codes"):
        benchmarks["video_task"].read_task(tmp_path / "large")
    write_codes(tmp_path / "few", torch.zeros(20, 60, 3), ["train"] * 20)
    with pytest.raises(SystemExit, match="at least 4 quantizers"):
        benchmarks["soundstorm_task"].read_task(tmp_path / "few")


def test_the_learning_rate_rises_to_its_value_and_stays(benchmarks: dict[str, ModuleType]) -> None:
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    rates: list[float] = []
    step = benchmarks["loss_task"].with_warmup(
        lambda batch: rates.append(optimizer.param_groups[0]["lr"]), optimizer, 0.4, warmup_steps=3
    )
    for _ in range(5):
        step(None)
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4])
