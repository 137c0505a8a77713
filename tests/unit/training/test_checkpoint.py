"""Checkpoints are complete or absent, and every change to one is detected."""

from __future__ import annotations

import errno
import json
import os
import pickle
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from toy import ToyTask, toy_config

from quintet.common import files
from quintet.common.rng import ItemRNG
from quintet.common.weights import checkpoint, tensor_groups
from quintet.common.weights.checkpoint import Contents
from quintet.common.weights.loading import load_module, read_meta
from quintet.errors import CheckpointError
from quintet.training.state import TrainingState


def contents(number: int = 0) -> Contents:
    return Contents(
        tensors={
            "net": {"weight": torch.full((3, 2), number + 0.5), "empty": torch.zeros(0), "scalar": torch.tensor(3)},
            "ema/net": {"weight": torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last)},
            "optim/fit": {"exp_avg/net.weight": torch.ones(2, dtype=torch.float64)},
        },
        json={"meta": {"format": checkpoint.FORMAT, "step": number, "text": "ü"}, "optim/fit": {"name": "adamw"}},
        text={"config.yaml": "recipe: toy\nname: ü\n"},
    )


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return checkpoint.write(tmp_path / "checkpoints", 12, contents())


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


# --- writing and reading ------------------------------------------------------------------------------------------


def test_a_written_checkpoint_is_read_back(tmp_path: Path) -> None:
    made = contents(7)
    folder = checkpoint.write(tmp_path, 7, made)
    assert folder == tmp_path / "step-00000007"
    checkpoint.verify(folder)
    for name, tensors in made.tensors.items():
        read = tensor_groups.read_tensors(folder, name)
        assert read.keys() == tensors.keys()
        for key, value in tensors.items():
            assert torch.equal(read[key], value)
            assert read[key].dtype == value.dtype
    assert checkpoint.read_json(folder, "meta") == made.json["meta"]
    assert (folder / "config.yaml").read_text(encoding="utf-8") == made.text["config.yaml"]
    assert (tmp_path / "latest").read_text(encoding="utf-8") == "step-00000007\n"
    assert checkpoint.read_pointer(tmp_path, "latest") == folder


def test_tied_weights_can_be_saved(tmp_path: Path) -> None:
    """A transformer's embedding and its head are often one tensor under two names."""
    weight = torch.randn(3, 2)
    made = Contents(tensors={"net": {"embedding": weight, "head": weight, "part": weight[1:]}})
    folder = checkpoint.write(tmp_path, 1, made)
    read = tensor_groups.read_tensors(folder, "net")
    assert torch.equal(read["embedding"], weight)
    assert torch.equal(read["head"], weight)
    assert torch.equal(read["part"], weight[1:])


def test_the_same_contents_are_the_same_bytes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    one = checkpoint.write(tmp_path / "one", 3, contents())
    torch.manual_seed(0)
    two = checkpoint.write(tmp_path / "two", 3, contents())
    assert checkpoint.hashes(one) == checkpoint.hashes(two)


def test_sha256sum_accepts_a_checkpoint(saved: Path) -> None:
    done = subprocess.run(
        ["sha256sum", "--strict", "-c", checkpoint.MANIFEST], cwd=saved, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    verified = {line.removesuffix(": OK") for line in done.stdout.splitlines()}
    assert verified == names(saved) - {checkpoint.MANIFEST}


def test_sha256sum_rejects_a_changed_checkpoint(saved: Path) -> None:
    (saved / "meta.json").write_text("{}", encoding="utf-8")
    done = subprocess.run(["sha256sum", "-c", checkpoint.MANIFEST], cwd=saved, capture_output=True, check=False)
    assert done.returncode == 1


# --- damage -------------------------------------------------------------------------------------------------------


def places(folder: Path, count: int) -> Iterator[tuple[Path, int, int]]:
    """Sampled (file, byte, bit), every file among them."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    rng = ItemRNG(0, [0] * count, range(count))
    for number, where, bit in zip(
        range(count), rng.uniform("place").tolist(), rng.integers("bit", 0, 8).tolist(), strict=True
    ):
        file = files[number % len(files)]
        yield file, int(where * file.stat().st_size), bit


def test_every_flipped_bit_is_noticed(saved: Path) -> None:
    seen = set()
    for file, place, bit in places(saved, 105):
        good = file.read_bytes()
        file.write_bytes(good[:place] + bytes([good[place] ^ (1 << bit)]) + good[place + 1 :])
        with pytest.raises(CheckpointError, match=r"damaged|no readable"):
            checkpoint.verify(saved)
        file.write_bytes(good)
        seen.add(file.name)
    checkpoint.verify(saved)
    assert seen == {"SHA256SUMS", "meta.json", "config.yaml", "net.safetensors", "fit.json", "fit.safetensors"}


def test_bytes_of_the_manifest_count_to_the_last(saved: Path) -> None:
    manifest = saved / checkpoint.MANIFEST
    good = manifest.read_bytes()
    for place in [*range(0, len(good), 9), *range(len(good) - 100, len(good))]:
        manifest.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        with pytest.raises(CheckpointError):
            checkpoint.verify(saved)


@pytest.mark.parametrize("kept", [0, 1, 0.5, -1])
def test_truncated_files_are_noticed(saved: Path, kept: float) -> None:
    for file in sorted(path for path in saved.rglob("*") if path.is_file()):
        good = file.read_bytes()
        file.write_bytes(good[: int(len(good) * kept) if isinstance(kept, float) else kept])
        with pytest.raises(CheckpointError, match=file.name):
            checkpoint.verify(saved)
        file.write_bytes(good)


def test_a_longer_manifest_is_noticed(saved: Path) -> None:
    with (saved / checkpoint.MANIFEST).open("a", encoding="utf-8") as file:
        file.write("\n")
    with pytest.raises(CheckpointError, match="SHA256SUMS is damaged"):
        checkpoint.verify(saved)


def test_missing_files_are_named(saved: Path) -> None:
    for name in sorted(names(saved) - {checkpoint.MANIFEST}):
        good = (saved / name).read_bytes()
        (saved / name).unlink()
        with pytest.raises(CheckpointError, match=f"{name} is missing"):
            checkpoint.verify(saved)
        (saved / name).write_bytes(good)


def test_a_missing_manifest_and_a_missing_folder_are_noticed(saved: Path) -> None:
    (saved / checkpoint.MANIFEST).unlink()
    with pytest.raises(CheckpointError, match="no readable SHA256SUMS"):
        checkpoint.verify(saved)
    with pytest.raises(CheckpointError, match="no readable SHA256SUMS"):
        checkpoint.verify(saved / "nowhere")


def test_extra_files_are_named(saved: Path) -> None:
    (saved / "ema" / "more.safetensors").touch()
    with pytest.raises(CheckpointError, match=r"ema/more\.safetensors is not part of the checkpoint"):
        checkpoint.verify(saved)


# --- choosing -----------------------------------------------------------------------------------------------------


def test_the_newest_valid_checkpoint_is_found_and_the_problems_are_named(tmp_path: Path) -> None:
    for step in (5, 10, 15, 100):
        checkpoint.write(tmp_path, step, contents(step))
    (tmp_path / "step-00000100" / "meta.json").unlink()
    (tmp_path / "step-00000015" / "net.safetensors").write_bytes(b"")
    folder, problems = checkpoint.newest_sound(tmp_path)
    assert folder.name == "step-00000010"
    assert ["step-00000100/meta.json is missing" in problems[0], "step-00000015/net" in problems[1]] == [True, True]
    assert len(problems) == 2


def test_a_file_that_cannot_be_read_is_a_problem_like_any_other(tmp_path: Path) -> None:
    """A bad sector answers with an input/output error, as this file of the kernel does."""
    for step in (5, 10):
        checkpoint.write(tmp_path, step, contents(step))
    damaged = tmp_path / "step-00000010" / "meta.json"
    damaged.unlink()
    damaged.symlink_to("/proc/self/mem")
    with pytest.raises(OSError, match="Input/output error"):
        damaged.read_bytes()
    folder, problems = checkpoint.newest_sound(tmp_path)
    assert folder.name == "step-00000005"
    assert "meta.json" in problems[0]


def test_without_a_valid_checkpoint_each_problem_is_named(tmp_path: Path) -> None:
    for step in (5, 10):
        (checkpoint.write(tmp_path, step, contents(step)) / "meta.json").unlink()
    with pytest.raises(CheckpointError, match=r"is damaged: .*00000010/meta.json.*00000005/meta.json"):
        checkpoint.newest_sound(tmp_path)


@pytest.mark.parametrize("exists", [True, False])
def test_no_checkpoint_yet(tmp_path: Path, exists: bool) -> None:
    with pytest.raises(CheckpointError, match="contains no checkpoint yet"):
        checkpoint.newest_sound(tmp_path if exists else tmp_path / "nowhere")


def test_steps_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for step in (999_999_999, 7, 10_000_000, 99):
        checkpoint.write(tmp_path, step, contents(step))
    assert [checkpoint.step_of(path) for path in checkpoint.steps(tmp_path)] == [7, 99, 10_000_000, 999_999_999]


@pytest.mark.parametrize("name", ["2024", "step-5", "step-²", "step-00000009-copy", "step-", ".writing-step-00000009"])
def test_other_folders_are_not_checkpoints(tmp_path: Path, name: str) -> None:
    checkpoint.write(tmp_path, 7, contents())
    (tmp_path / name).mkdir()
    (tmp_path / "step-00000008").touch()  # a file
    assert checkpoint.steps(tmp_path) == [tmp_path / "step-00000007"]


# --- pruning ------------------------------------------------------------------------------------------------------


def standing(root: Path) -> list[int]:
    return [checkpoint.step_of(path) for path in checkpoint.steps(root)]


def test_pruning_keeps_the_newest_and_the_best(tmp_path: Path) -> None:
    for step in (10, 20, 30, 40, 50):
        checkpoint.write(tmp_path, step, contents(step))
    checkpoint.write_pointer(tmp_path, "best", tmp_path / "step-00000020")
    checkpoint.prune(tmp_path, 2)
    assert standing(tmp_path) == [20, 40, 50]
    checkpoint.prune(tmp_path, 1)
    assert standing(tmp_path) == [20, 50]
    for folder in checkpoint.steps(tmp_path):
        checkpoint.verify(folder)


def test_pruning_fewer_than_keep_deletes_nothing(tmp_path: Path) -> None:
    checkpoint.write(tmp_path, 10, contents())
    checkpoint.prune(tmp_path, 3)
    assert standing(tmp_path) == [10]


def test_pruning_touches_nothing_of_the_users(tmp_path: Path) -> None:
    for name in ("2023", "2024", "mine", "step-1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "notes.txt").write_text("keep", encoding="utf-8")
    for step in (10, 20):
        checkpoint.write(tmp_path, step, contents(step))
    checkpoint.prune(tmp_path, 1)
    assert {path.name for path in tmp_path.iterdir()} == {"2023", "2024", "mine", "step-1", "step-00000020", "latest"}


def test_leftovers_of_killed_processes_are_ignored_and_removed(tmp_path: Path) -> None:
    checkpoint.write(tmp_path, 10, contents())
    for name in (".writing-step-00000020", ".deleting-step-00000005"):
        shutil.copytree(tmp_path / "step-00000010", tmp_path / name)
    assert checkpoint.newest_sound(tmp_path)[0].name == "step-00000010"
    checkpoint.prune(tmp_path, 3)
    assert {path.name for path in tmp_path.iterdir()} == {"step-00000010", "latest"}


def test_an_unfinished_folder_of_the_same_step_is_replaced(tmp_path: Path) -> None:
    (tmp_path / ".writing-step-00000010").mkdir()
    (tmp_path / ".writing-step-00000010" / "stray.json").touch()
    checkpoint.verify(checkpoint.write(tmp_path, 10, contents()))


def test_a_pointer_to_a_missing_checkpoint_is_none(tmp_path: Path) -> None:
    assert checkpoint.read_pointer(tmp_path, "best") is None
    for text in ("step-00000099\n", "../elsewhere\n", ""):
        (tmp_path / "best").write_text(text, encoding="utf-8")
        assert checkpoint.read_pointer(tmp_path, "best") is None


# --- all or nothing -----------------------------------------------------------------------------------------------


def test_contents_that_cannot_be_written_leave_nothing(tmp_path: Path) -> None:
    checkpoint.write(tmp_path, 10, contents())
    for bad in (
        Contents(tensors={"net": {"weight": torch.ones(3).to_sparse()}}),
        Contents(tensors={"net": {"weight": torch.ones(3)}}, json={"meta": {"value": float("nan")}}),
        Contents(tensors={"net": {"weight": torch.ones(3)}}, json={"meta": object()}),
    ):
        with pytest.raises((OSError, ValueError, TypeError, RuntimeError)):
            checkpoint.write(tmp_path, 20, bad)
        assert {path.name for path in tmp_path.iterdir()} == {"step-00000010", "latest"}
    assert checkpoint.read_pointer(tmp_path, "latest") == tmp_path / "step-00000010"


@pytest.mark.parametrize("call", ["rename", "fsync"])
def test_a_failing_disk_leaves_nothing_under_the_final_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    checkpoint.write(tmp_path, 10, contents())

    def fail(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(OSError, match="No space left"):
            checkpoint.write(tmp_path, 20, contents(20))
    assert {path.name for path in tmp_path.iterdir()} == {"step-00000010", "latest"}
    checkpoint.verify(tmp_path / "step-00000010")


def test_a_folder_that_cannot_be_created_leaves_the_last_one_intact(tmp_path: Path) -> None:
    checkpoint.write(tmp_path, 10, contents())
    (tmp_path / ".writing-step-00000020").touch()  # a file where the temporary folder should be
    with pytest.raises(OSError, match="exists"):
        checkpoint.write(tmp_path, 20, contents(20))
    checkpoint.verify(tmp_path / "step-00000010")
    assert checkpoint.read_pointer(tmp_path, "latest") == tmp_path / "step-00000010"


def test_a_damaged_checkpoint_of_the_same_step_is_replaced(tmp_path: Path) -> None:
    (checkpoint.write(tmp_path, 10, contents(1)) / "meta.json").unlink()
    folder = checkpoint.write(tmp_path, 10, contents(2))
    checkpoint.verify(folder)
    assert checkpoint.read_json(folder, "meta")["step"] == 2
    assert {path.name for path in tmp_path.iterdir()} == {"step-00000010", "latest", "replaced-step-00000010"}


def test_replacing_a_text_leaves_no_second_file(tmp_path: Path) -> None:
    for text in ("one", "two ü"):
        files.replace_text(tmp_path / "latest", text)
        assert (tmp_path / "latest").read_text(encoding="utf-8") == text
    assert [path.name for path in tmp_path.iterdir()] == ["latest"]


# --- files that are not what they are called ----------------------------------------------------------------------


class Trap:
    """A pickle that would write a file when it is opened."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.target,))


@pytest.mark.parametrize("wrap", [pickle.dumps, None], ids=["pickle", "torch.save"])
def test_a_pickle_is_never_opened(tmp_path: Path, wrap: Any) -> None:
    trap = Trap(tmp_path / "sprung")
    if wrap is None:
        torch.save({"weight": trap}, tmp_path / "net.safetensors")
    else:
        (tmp_path / "net.safetensors").write_bytes(wrap({"weight": trap}))
    with pytest.raises(CheckpointError, match=r"cannot read .*net\.safetensors"):
        tensor_groups.read_tensors(tmp_path, "net")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("size", [100_000_001, 2**40, 2**63, 2**64 - 1])
def test_an_oversized_header_is_refused(tmp_path: Path, size: int) -> None:
    (tmp_path / "net.safetensors").write_bytes(struct.pack("<Q", size) + b"{}" + b" " * 100)
    with pytest.raises(CheckpointError, match="header"):
        tensor_groups.read_tensors(tmp_path, "net")


@pytest.mark.parametrize(
    "content",
    [b"", b"\x00", b"not a tensor file at all", struct.pack("<Q", 5) + b"{]]]}", struct.pack("<Q", 2) + b"[]"],
)
def test_files_that_hold_no_tensors_are_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "net.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"net\.safetensors"):
        tensor_groups.read_tensors(tmp_path, "net")


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 100_000])
def test_files_that_hold_no_json_are_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "meta.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"meta\.json"):
        checkpoint.read_json(tmp_path, "meta")
    with pytest.raises(CheckpointError, match=r"other\.json"):
        checkpoint.read_json(tmp_path, "other")


# --- the training state ------------------------------------------------------------------------------------------


def test_a_state_restored_is_the_state_saved(tmp_path: Path) -> None:
    recipe = ToyTask(toy_config(model__critic=True))
    state = TrainingState(recipe)
    state.progress.step, state.progress.best_value = 12, 0.25
    folder = checkpoint.write(tmp_path, 12, state.contents(2, "data"))
    other = TrainingState(ToyTask(toy_config(model__critic=True, train__seed=9)))
    meta = other.restore(folder)
    assert other.progress == state.progress
    assert (meta["world_size"], meta["data_fingerprint"], meta["recipe"]) == (2, "data", "toy")
    own, restored = state.contents(1, "").tensors, other.contents(1, "").tensors
    assert {*own} == {"net", "critic", "ema/net", "optim/fit", "optim/critic"}
    for group, tensors in own.items():
        assert all(torch.equal(value, restored[group][name]) for name, value in tensors.items())


@pytest.mark.parametrize("found", [0, 2, None, "1"])
def test_another_format_is_refused(tmp_path: Path, found: Any) -> None:
    (tmp_path / "meta.json").write_text(json.dumps({"format": found, "recipe": "toy"}), encoding="utf-8")
    with pytest.raises(CheckpointError, match=f"format {found}; this version reads {checkpoint.FORMAT}"):
        read_meta(tmp_path, "toy")


def test_a_checkpoint_of_another_recipe_is_refused(tmp_path: Path) -> None:
    (tmp_path / "meta.json").write_text(json.dumps({"format": 1, "recipe": "muse"}), encoding="utf-8")
    with pytest.raises(CheckpointError, match="of recipe 'muse', not of 'toy'"):
        read_meta(tmp_path, "toy")
    (tmp_path / "meta.json").write_text("[]", encoding="utf-8")
    with pytest.raises(CheckpointError, match="format None"):
        read_meta(tmp_path, "toy")


def test_tensors_that_do_not_fit_are_named(tmp_path: Path) -> None:
    checkpoint.write_folder(tmp_path / "saved", Contents(tensors={"net": nn.Linear(2, 3).state_dict()}))
    before = nn.Linear(2, 3)
    kept = before.weight.detach().clone()
    load_module(before, tmp_path / "saved", "net")
    assert not torch.equal(before.weight, kept)
    with pytest.raises(CheckpointError, match=r"'weight' has shape \(3, 2\), the model expects \(4, 2\)"):
        load_module(nn.Linear(2, 4), tmp_path / "saved", "net")
    with pytest.raises(CheckpointError, match="has an unknown tensor 'bias'"):
        load_module(nn.Linear(2, 3, bias=False), tmp_path / "saved", "net")
    with pytest.raises(CheckpointError, match=r"lacks tensor '0\.bias'"):
        load_module(nn.Sequential(nn.Linear(2, 3)), tmp_path / "saved", "net")


def test_a_model_that_does_not_fit_is_left_as_it_was(tmp_path: Path) -> None:
    checkpoint.write_folder(tmp_path / "saved", Contents(tensors={"net": nn.Linear(2, 3).state_dict()}))
    model = nn.Linear(2, 4)
    before = model.weight.detach().clone()
    with pytest.raises(CheckpointError):
        load_module(model, tmp_path / "saved", "net")
    assert torch.equal(model.weight, before)
