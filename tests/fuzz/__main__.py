"""`python -m fuzz`: mutate the files of the corpus, read each in a process with limits, and record what breaks one.

Findings are written as files with their reason, and named with the seed that makes them again. Exit code 1 if any.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from fuzz.limits import SECONDS, Outcome, Read, attempt
from fuzz.mutations import mutated
from quintet.common.logging import say

CORPUS = Path(__file__).parent / "corpus"
Corpus = Mapping[str, Sequence[Path]]


def corpus_of(names: Sequence[str], root: Path = CORPUS) -> Corpus:
    return {name: sorted(path for path in (root / name).iterdir() if path.is_file()) for name in names}


def case_of(files: Sequence[Path], seed: int) -> tuple[str, bytes]:
    """The name and content of a mutated file; the same for the same seed and corpus."""
    rng = random.Random(seed)
    path = rng.choice(files)
    return path.name, mutated(path.read_bytes(), [other.read_bytes() for other in files], rng)


def try_case(read: Read, name: str, content: bytes, *, seconds: float = SECONDS) -> Outcome:
    """Read a file in a folder of its own, beside an image that metadata may name."""
    with _folder_with(name, content) as path:
        return attempt(read, path, seconds=seconds)


@contextmanager
def _folder_with(name: str, content: bytes) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        shutil.copy(CORPUS / "image" / "a.png", Path(folder) / "a.png")
        path = Path(folder) / name
        path.write_bytes(content)
        yield path


def record(out: Path, reader: str, seed: int, name: str, content: bytes, outcome: Outcome) -> None:
    folder = out / f"{reader}-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)
    (folder / "reason.txt").write_text(f"reader {reader}, seed {seed}\n{outcome.finding}\n")


def fuzz(
    readers: Mapping[str, Read],
    corpus: Corpus,
    out: Path,
    *,
    minutes: float,
    seed: int,
    seconds: float = SECONDS,
    most: int | None = None,
) -> tuple[Counter[str], Counter[str]]:
    """Try files until the time, or the number of files, is over. Returns the files and the findings of each reader."""
    tried: Counter[str] = Counter()
    findings: Counter[str] = Counter()
    deadline = time.monotonic() + 60 * minutes
    while time.monotonic() < deadline and (most is None or tried.total() < most):
        for reader, read in readers.items():
            name, content = case_of(corpus[reader], seed)
            outcome = try_case(read, name, content, seconds=seconds)
            tried[reader] += 1
            if outcome.finding is not None:
                findings[reader] += 1
                record(out, reader, seed, name, content, outcome)
                say(f"{reader}, seed {seed}: {outcome.finding.splitlines()[0]}")
            seed += 1
    return tried, findings


def main() -> int:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import av  # noqa: F401 - imported once, for all processes
    import soundfile  # noqa: F401

    from fuzz.readers import READERS

    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long to try files")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--out", type=Path, default=Path("fuzz-findings"), help="folder for findings")
    parser.add_argument("--readers", nargs="+", choices=sorted(READERS), default=sorted(READERS))
    options = parser.parse_args()
    readers = {name: READERS[name] for name in options.readers}
    corpus = corpus_of(options.readers)
    for reader, files in corpus.items():  # also imports what a reader imports late
        for path in files:
            outcome = try_case(readers[reader], path.name, path.read_bytes())
            if outcome.finding or outcome.reason:
                say(f"error: {path} is no sound file: {outcome.finding or outcome.reason}")
                return 1
            with _folder_with(path.name, path.read_bytes()) as copy:
                readers[reader](copy)
    tried, findings = fuzz(readers, corpus, options.out, minutes=options.minutes, seed=options.seed)
    for reader, count in tried.items():
        say(f"{reader:10} {count:8} files, {findings[reader]} findings")
    say(f"{tried.total()} files, {findings.total()} findings" + (f" in {options.out}" if findings else ""))
    return 1 if findings else 0


if __name__ == "__main__":
    raise SystemExit(main())
