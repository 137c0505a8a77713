"""A full or read-only disk costs the files that do not fit, never the checkpoint that stands, never the training."""

from __future__ import annotations

import ctypes
import json
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from contract.cases import Case
from faults.conftest import Ledger
from faults.ledger import WHOLE
from faults.moments import All, held, hold, part, run_at
from helpers import (
    LAST_STEP,
    TINY,
    error_line,
    executed,
    forked,
    metrics,
    python,
    quintet,
    steps_saved,
    succeed,
    tensor_hashes,
    tree,
)
from quintet.common.weights import checkpoint
from quintet.families.vqgan.pipeline import VQGanPipeline
from quintet.training.metrics import TensorBoard
from quintet.training.run_folder import Run

FULL, READ_ONLY = "No space left on device", "Read-only file system"
KINDS = {"disk-full": FULL, "read-only": READ_ONLY}
"""The rows of the ledger, and what the operating system says."""

TRACKED = "log.trackers=[tensorboard]"
MOMENTS = (
    "save, after its files",
    "metrics",
    "sampling",
    "save, before its files",
    "save, before its name",
    "save, before the pointer",
    "save, before old ones go",
    "log",
    "state",
    "tensorboard",
    "validation",
    "step",
)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = mount("-t", "tmpfs", "-o", "size=16m", "tmpfs", disk)
    if mounted.returncode:
        pytest.skip(f"this user may not mount a small file system ({mounted.stderr.strip()}); see the file-size test")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


def mount(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["mount", *map(str, words)], check=False, capture_output=True, text=True)


@contextmanager
def full(disk: Path, spare_blocks: int = 0) -> Iterator[None]:
    """No byte is free, for a while, or only some blocks."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            file.truncate(max(0, file.tell() - 4096 * spare_blocks))
    yield
    ballast.unlink()


@contextmanager
def read_only(disk: Path) -> Iterator[None]:
    """Nothing can be written, for a while. A disk with open files cannot be made so, a second view of it can."""
    assert mount("--bind", disk, disk).returncode == 0
    assert mount("-o", "remount,ro,bind", disk).returncode == 0
    yield
    subprocess.run(["umount", "--lazy", disk], check=True)


TROUBLES: dict[str, Callable[[Path], object]] = {"disk-full": full, "read-only": read_only}


def assert_sound(run: Path) -> None:
    """Every folder with a checkpoint name is a complete checkpoint."""
    assert steps_saved(run)
    for step in steps_saved(run):
        checkpoint.verify(checkpoint.folder_of(run / "checkpoints", step))


@pytest.mark.parametrize("moment", MOMENTS if WHOLE else MOMENTS[:2])
@pytest.mark.parametrize("row", KINDS)
def test_training_continues_through_a_temporary_fault(
    row: str, moment: str, straight: Path, small_disk: Path, tmp_path: Path, ledger: Ledger
) -> None:
    run = run_at(30, straight, small_disk / "run")
    # Resuming points, too, and says something.
    begin = hold(
        moment, tmp_path, when={"save, before the pointer": "step-00000035", "log": "validation"}.get(moment, "")
    )
    # That save begins after the one before it has ended; the metrics of step 46 are written later than it begins.
    mend = hold("save, before its folder", tmp_path, when="step-00000040")
    words = ["resume", run, TRACKED, f"train.steps={LAST_STEP + 10}"]
    with forked(words, tmp_path / "said", All((begin, mend))) as process:
        with held(process, begin):
            trouble = TROUBLES[row](small_disk)
            trouble.__enter__()
        with held(process, mend):
            trouble.__exit__(None, None, None)
        assert process.end() == 0, process.seen

    said = process.seen.splitlines()
    assert any(KINDS[row] in line for line in said), said
    lost = [line for line in said if "cannot write" in line]
    assert all(KINDS[row] in line for line in lost), lost
    # Each file's loss is said once, not at every step; again only after it could be written (a short row may still fit
    # into the last block of a full disk).
    names = [line.removeprefix("warning: cannot write ").partition(" (")[0] for line in lost]
    for name in set(names):
        assert names.count(name) <= 1 + said.count(f"{name} can be written again"), said
        assert f"{name} can be written again" in said or name in ("samples", "checkpoints/best"), said
    rows = [row["step"] for row in metrics(run)]
    assert rows == sorted(rows)
    assert_sound(run)
    assert (run / "checkpoints" / "latest").read_text() == f"step-{LAST_STEP + 10:08d}\n"
    assert tensor_hashes(run, LAST_STEP) == tensor_hashes(straight, LAST_STEP)
    assert not list(run.glob("checkpoints/.*"))
    ledger(row, 1)


@pytest.mark.parametrize("moment", MOMENTS if WHOLE else MOMENTS[:1])
@pytest.mark.parametrize("row", KINDS)
def test_a_permanent_fault_leaves_the_last_checkpoint_intact(
    row: str, moment: str, straight: Path, small_disk: Path, tmp_path: Path, ledger: Ledger
) -> None:
    run = run_at(30, straight, small_disk / "run")
    begin = hold(
        moment, tmp_path, when={"save, before the pointer": "step-00000035", "log": "validation"}.get(moment, "")
    )
    with forked(["resume", run, TRACKED], tmp_path / "said", begin) as process:
        with held(process, begin):
            trouble = TROUBLES[row](small_disk)
            trouble.__enter__()
        assert process.end() == 1, process.seen

    sentence = error_line(process.seen)
    assert "could not save the final checkpoint" in sentence
    assert KINDS[row] in sentence
    assert_sound(run)

    trouble.__exit__(None, None, None)
    succeed("resume", run)

    assert tensor_hashes(run, LAST_STEP) == tensor_hashes(straight, LAST_STEP)
    assert not list(run.glob("checkpoints/.*"))
    ledger(row, 1)


@pytest.mark.parametrize("row", KINDS)
def test_training_succeeds_if_curves_cannot_be_plotted(
    row: str, straight: Path, small_disk: Path, tmp_path: Path, ledger: Ledger
) -> None:
    run = run_at(35, straight, small_disk / "run")
    place = hold("curves", tmp_path)
    with forked(["resume", run], tmp_path / "said", place) as process:
        with held(process, place):
            trouble = TROUBLES[row](small_disk)
            trouble.__enter__()
        assert process.end() == 0, process.seen
    assert f"warning: cannot write curves.png ({KINDS[row]})" in process.seen
    assert not [path for path in run.iterdir() if "curves" in path.name]
    trouble.__exit__(None, None, None)
    ledger(row, 1)


@pytest.mark.parametrize("moment", part(("lock", "first files", "readable data")))
@pytest.mark.parametrize("row", KINDS)
def test_a_new_run_that_finds_no_room_says_so_and_can_be_started_again(
    row: str,
    moment: str,
    recipe: str,
    case: Case,
    data: Path,
    finished: Path,
    small_disk: Path,
    tmp_path: Path,
    ledger: Ledger,
) -> None:
    run = small_disk / "run"
    words = ["train", recipe, data, *case.tiny, "--out", run]
    place = hold(moment, tmp_path)
    with forked(words, tmp_path / "said", place) as process:
        with held(process, place):
            trouble = TROUBLES[row](small_disk)
            trouble.__enter__()
        assert process.end() in (1, 2), process.seen
    assert f"cannot write to the run folder {run}: {KINDS[row]}" in error_line(process.seen)

    trouble.__exit__(None, None, None)
    succeed(*words)
    assert tensor_hashes(run, 12) == tensor_hashes(finished, 12)
    ledger(row, 1)


@pytest.mark.parametrize("row", KINDS)
def test_resuming_without_room_says_so_and_changes_nothing(
    row: str, straight: Path, small_disk: Path, ledger: Ledger
) -> None:
    run = run_at(35, straight, small_disk / "run")
    before = tree(run)
    with TROUBLES[row](small_disk):
        outcome = quintet("resume", run)
        after = tree(run)
    assert outcome.code in (1, 2)
    assert f"cannot write to the run folder {run}: {KINDS[row]}" in error_line(outcome.errors)
    assert {name for name in before if before[name] != after.get(name)} <= {"lock"}
    assert after.keys() == before.keys()

    succeed("resume", run)
    assert tensor_hashes(run, LAST_STEP) == tensor_hashes(straight, LAST_STEP)
    ledger(row, 1)


@pytest.mark.parametrize("row", KINDS)
def test_commands_that_find_no_room_say_so_and_leave_nothing_half_written(
    row: str, case: Case, data: Path, finished: Path, small_disk: Path, tmp_path: Path, ledger: Ledger
) -> None:
    out = small_disk / "out"
    figures = small_disk / "eval.json"
    succeed("eval", finished, "--out", figures)
    before = tree(small_disk)
    commands: list[list[object]] = [
        ["eval", finished, "--out", figures],
        ["sample", finished, "--num", 2, "--out", out / "sample"],
        ["export", finished, out / "export"],
    ]
    if case.tokenizer:
        succeed("encode", finished, data, "--out", tmp_path / "codes")
        commands += [
            ["encode", finished, data, "--out", out / "codes"],
            ["decode", finished, tmp_path / "codes", "--out", out / "decoded"],
        ]
    for words in commands:
        with TROUBLES[row](small_disk):
            outcome = quintet(*words)
        assert outcome.code in (1, 2), words
        assert KINDS[row] in error_line(outcome.errors), words
        assert "unexpected" not in outcome.errors, outcome.errors
        assert tree(small_disk) == before, words
    ledger(row, len(commands))


@pytest.fixture
def partial_results(trained: Path, pictures: Path, tmp_path: Path) -> list[list[object]]:
    """Commands that write more files than fit into a few blocks, without the name of the result."""
    succeed("encode", trained, pictures, "--out", tmp_path / "codes")
    return [["decode", trained, tmp_path / "codes", "--out"], ["view", trained, "--export"]]


@pytest.mark.parametrize("empty", [False, True], ids=["new folder", "empty folder"])
def test_results_that_fit_only_partly_leave_nothing(
    empty: bool, partial_results: list[list[object]], small_disk: Path, ledger: Ledger
) -> None:
    out = small_disk / "out"
    for words in partial_results:
        if empty:
            out.mkdir(exist_ok=True)
        with full(small_disk, spare_blocks=6):
            outcome = quintet(*words, out)
            assert {path.name for path in small_disk.iterdir()} == ({"ballast", "out"} if empty else {"ballast"})
        assert not empty or not any(out.iterdir())
        assert (outcome.code, error_line(outcome.errors)) == (2, f"error: cannot write {out}: {FULL}")
        succeed(*words, out)
        shutil.rmtree(out)
    ledger("disk-full", len(partial_results))


def test_a_page_that_does_not_fit_leaves_nothing(trained: Path, small_disk: Path, ledger: Ledger) -> None:
    page = small_disk / "page.html"
    with full(small_disk, spare_blocks=2):
        outcome = quintet("view", trained, "--export", page)
        assert [path.name for path in small_disk.iterdir()] == ["ballast"]
    assert (outcome.code, error_line(outcome.errors)) == (2, f"error: cannot write {page}: {FULL}")
    ledger("disk-full", 1)


def test_a_sample_is_listed_or_not_written(trained: Path, small_disk: Path, ledger: Ledger) -> None:
    out = small_disk / "out"
    succeed("sample", trained, "--num", 1, "--out", out)
    before = tree(out)
    for spare in range(3):
        with full(small_disk, spare_blocks=spare):
            quintet("sample", trained, "--num", 2, "--out", out)
        lines = [json.loads(line)["file"] for line in (out / "samples.jsonl").read_text().splitlines()]
        assert {*lines} == {path.name for path in out.iterdir()} - {"samples.jsonl"}
        assert before.items() - {"samples.jsonl": before["samples.jsonl"]}.items() <= tree(out).items()
    ledger("disk-full", 3)


def test_an_interrupt_leaves_nothing(
    partial_results: list[list[object]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "place"
    place.mkdir()

    def interrupt(*_: object) -> None:
        assert any(place.rglob("*")), "something is already written"
        raise KeyboardInterrupt

    decode = VQGanPipeline.decode_files
    monkeypatch.setattr("quintet.web.export._page", interrupt)
    monkeypatch.setattr(
        VQGanPipeline,
        "decode_files",
        lambda self, codes, name: interrupt() if name.startswith("00002") else decode(self, codes, name),
    )
    for words in partial_results:
        assert quintet(*words, place / "out").code == 130
        assert not any(place.iterdir())


def test_a_console_on_a_full_disk_stops_nothing(
    straight: Path, small_disk: Path, tmp_path: Path, ledger: Ledger
) -> None:
    """As with `quintet … 2> log` on the disk that is full."""
    run = run_at(35, straight, tmp_path / "run")
    said = small_disk / "said"
    said.touch()
    with full(small_disk), forked(["resume", run], said) as process:
        assert process.end() == 0
    assert said.stat().st_size == 0
    assert tensor_hashes(run, LAST_STEP) == tensor_hashes(straight, LAST_STEP)
    ledger("disk-full", 1)


def test_a_line_that_does_not_fit_is_dropped_completely_and_reported_once(small_disk: Path, ledger: Ledger) -> None:
    run, messages = Run(small_disk), list[str]()
    run.notify = messages.append
    with full(small_disk):
        for step in range(200):  # a started block of the file is still free, and ends in the middle of a line
            run.write_metrics({"step": step, "text": "x" * 90})
    assert messages == [f"warning: cannot write metrics.jsonl ({FULL}); training continues without it"]
    run.write_metrics({"step": 200})

    assert messages[1:] == ["metrics.jsonl can be written again"]
    assert not run.lost_writes
    lines = run.metrics_file.read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines][-1] == 200
    ledger("disk-full", 1)


def log_steps(tracker: TensorBoard, steps: int) -> None:
    for step in range(steps):
        tracker.log({"loss": 1.0}, step)


def test_a_new_event_file_starts_after_a_partial_record(small_disk: Path, ledger: Ledger) -> None:
    """Readers give up a file at half a record."""
    tracker = TensorBoard(small_disk)
    with full(small_disk), pytest.raises(OSError, match=FULL):
        log_steps(tracker, 2000)
    (broken,) = (small_disk / "tensorboard").iterdir()
    size = broken.stat().st_size
    tracker.log({"loss": 2.0}, 2000)
    tracker.close()

    assert broken.stat().st_size == size
    assert len(list((small_disk / "tensorboard").iterdir())) == 2
    ledger("disk-full", 1)


def test_a_limit_on_file_sizes_leaves_the_last_checkpoint_intact(
    pictures: Path, trained: Path, tmp_path: Path, ledger: Ledger
) -> None:
    """What a quota does, and what needs no right to mount."""
    run = shutil.copytree(trained, tmp_path / "run")
    before = tree(run / "checkpoints")
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (20_000, 20_000))
    with forked(["resume", run, "train.steps=16"], tmp_path / "said", limit) as process:
        assert process.end() == 1, process.seen

    assert "could not save the final checkpoint" in error_line(process.seen)
    assert tree(run / "checkpoints") == before
    ledger("disk-full", 1)


def without_the_right_to_ignore_permissions() -> None:
    """Let root be bound by permissions, too, after the next exec."""
    drop_from_bounding_set, override_permissions = 24, 1
    ctypes.CDLL(None).prctl(drop_from_bounding_set, override_permissions, 0, 0, 0)


def test_a_folder_that_may_not_be_written_is_refused(pictures: Path, tmp_path: Path, ledger: Ledger) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o555)
    command = python("-m", "quintet", "train", "vqgan", pictures, "--out", closed / "run", *TINY)
    with executed(command, tmp_path / "said", preexec_fn=without_the_right_to_ignore_permissions) as process:
        assert process.end() == 2, process.seen

    assert f"cannot write to the run folder {closed / 'run'}: Permission denied" in error_line(process.seen)
    assert not list(closed.iterdir())
    ledger("read-only", 1)


def test_a_file_system_that_takes_no_folders_is_refused(pictures: Path) -> None:
    outcome = quintet("train", "vqgan", pictures, "--out", "/proc/quintet", *TINY)

    assert outcome.code == 2
    assert "/proc/quintet" in error_line(outcome.errors)
