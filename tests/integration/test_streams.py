"""Commands whose output nobody reads, or that were started without standard streams, as by cron."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from helpers import TINY, environment, python, state, steps_saved


def without_streams(words: list[str]) -> int:
    """Run a program that has neither stdin nor stdout nor stderr; its exit code."""
    command = ["bash", "-c", '"$@" <&- >&- 2>&-', "bash", *words]
    return subprocess.run(command, env=environment(), check=False, timeout=120).returncode


def unread(words: list[str], errors: int | None = subprocess.PIPE) -> tuple[int, str]:
    """Run a program that writes into a pipe without a reader; its exit code, and its stderr if that is read."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            words, stdout=writer, stderr=writer if errors is None else errors, text=True, env=environment(),
            check=False, timeout=120,
        )  # fmt: skip
    finally:
        os.close(writer)
    return done.returncode, done.stderr or ""


def command(*words: object) -> list[str]:
    return python("-m", "quintet", *words)


@pytest.mark.parametrize("kind", ["closed", "unread"])
def test_training_needs_no_console(kind: str, pictures: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = command("train", "vqgan", pictures, "--out", run, *TINY)
    assert (without_streams(words) if kind == "closed" else unread(words, errors=None)[0]) == 0
    assert (state(run)["status"], steps_saved(run)) == ("finished", [4, 8, 12])
    assert "Traceback" not in (run / "log.txt").read_text()


@pytest.mark.parametrize("name", ["eval", "sample"])
def test_results_are_written_although_nobody_reads_the_messages(name: str, trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = command(name, trained, "--out", out, *(["--num", 2] if name == "sample" else []))
    code, errors = unread(words)
    assert (code, "error" in errors.lower()) == (0, False), errors
    result = out if name == "eval" else out / "samples.jsonl"
    expected = result.read_bytes()
    result.unlink()
    assert without_streams(words) == 0
    assert result.stat().st_size >= len(expected)


@pytest.mark.parametrize("name", ["recipes", "data check", "train --help"])
def test_commands_that_only_print_end_quietly(name: str, pictures: Path) -> None:
    words = command(*name.split(), *([pictures] if name == "data check" else []))
    assert unread(words) == (141, "")
    assert without_streams(words) == 0


def test_output_that_does_not_fit_on_a_disk_is_an_error() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command("recipes"), stdout=full, stderr=subprocess.PIPE, text=True, env=environment(), check=False
        )
    assert (done.returncode, done.stderr) == (1, "error: cannot write the output: No space left on device\n")


def test_a_closed_stream_is_not_taken_by_a_file(tmp_path: Path) -> None:
    """Text for a closed stderr would otherwise go into the next file that is opened."""
    script = (
        "import os; from quintet.common import streams; streams.open_missing()\n"
        f"file = open({str(tmp_path / 'file')!r}, 'w'); os.write(2, b'text'); assert file.fileno() > 2"
    )
    assert without_streams(python("-c", script)) == 0
    assert (tmp_path / "file").read_text() == ""


@pytest.mark.parametrize("stream", ["None", "open(os.devnull, 'w')"], ids=["missing", "closed"])
def test_messages_from_python_need_no_stderr(stream: str) -> None:
    script = (
        f"import os, sys; sys.stderr = {stream}; sys.stderr and sys.stderr.close()\n"
        "from quintet.common.logging import say, track; from quintet.training.display import Display\n"
        "say('a'); list(track([1], 'done')); shown = Display('run'); shown.start(0, 1); shown.note('b'); shown.stop()"
    )
    assert subprocess.run(python("-c", script), env=environment(), check=False).returncode == 0
