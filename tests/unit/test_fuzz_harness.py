"""The fuzzer finds what it looks for: readers that hang, take too much memory, raise, or end the process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.__main__ import CORPUS, case_of, corpus_of
from fuzz.mutations import LARGEST

# Bad readers, by name, in a process of their own: the harness forks, which a process with threads should not.
RUN = """
import os, sys
from pathlib import Path
from fuzz.__main__ import corpus_of, fuzz
from quintet.errors import UnreadableItem

def hang(path):
    while True:
        pass

def take(path):
    return bytearray(os.urandom(1)) * (600 * 2**20)

def fail(path):
    return [][0]

def end(path):
    os.abort()

def refuse(path):
    raise UnreadableItem("damaged: as it should be said")

def say_too_much(path):
    raise UnreadableItem("two\\nlines")

def keep_quiet(path):
    return path.read_bytes()

reader = {each.__name__: each for each in (hang, take, fail, end, refuse, say_too_much, keep_quiet)}[sys.argv[1]]
_, findings = fuzz(
    {"image": reader}, corpus_of(["image"]), Path(sys.argv[2]), minutes=1, seed=7, seconds=int(sys.argv[3]), most=1
)
raise SystemExit(findings.total())
"""


@pytest.mark.parametrize(
    ("reader", "finding"),
    [
        ("hang", "took more than 1 s"),
        ("take", "took 600 MB"),
        ("fail", "raised IndexError: list index out of range"),
        ("end", "ended the process (signal 6)"),
        ("say_too_much", "gave no one-line reason"),
        ("refuse", None),
        ("keep_quiet", None),
    ],
)
def test_a_bad_reader_is_found_and_recorded(reader: str, finding: str | None, tmp_path: Path) -> None:
    # Only the reader that hangs has to be slower than its limit; the others may be slow on a busy machine.
    seconds = "1" if reader == "hang" else "60"
    done = subprocess.run(
        [sys.executable, "-c", RUN, reader, str(tmp_path / "found"), seconds],
        capture_output=True,
        check=False,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == (finding is not None), done.stderr
    recorded = list((tmp_path / "found").glob("*/reason.txt"))
    assert len(recorded) == done.returncode
    if finding is not None:
        assert recorded[0].read_text().startswith(f"reader image, seed 7\n{finding}")
        name, content = case_of(corpus_of(["image"])["image"], 7)
        assert (recorded[0].parent / name).read_bytes() == content


def test_mutations_are_those_of_their_seed_and_stay_small() -> None:
    for files in corpus_of([path.name for path in CORPUS.iterdir()]).values():
        made = [case_of(files, seed) for seed in range(60)]
        assert made == [case_of(files, seed) for seed in range(60)]
        assert len({content for _, content in made}) > 30
        assert max(len(content) for _, content in made) <= LARGEST


def test_the_corpus_is_small() -> None:
    assert max(path.stat().st_size for path in CORPUS.rglob("*.*")) <= 12_000
