"""Makes the golden run of a recipe: `PYTHONPATH=tests python -m faults.make_golden RECIPE DATA`.

DATA is a folder of a few small items, which is kept beside the run. Made once for each format of checkpoints, when the
recipe is new; never made again, because the point of a golden run is that later versions read what earlier ones wrote.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from contract.cases import GOLDEN, case_of
from helpers import renew_sums, succeed
from quintet.common.weights import checkpoint

KEYS = ("train.steps=8", "train.batch_size=2", "checkpoint.every=8", "eval.every=8", "ema.decay=0.9")


def make(recipe: str, data: Path) -> Path:
    """A golden folder in its place."""
    target = GOLDEN / f"{recipe}-format-{checkpoint.FORMAT}"
    if target.exists():
        raise SystemExit(f"{target} stands, and is to stand for ever")
    if not data.is_dir():
        raise SystemExit(f"{data} is no folder; give one of a few small items")
    # Beside its place, and there only once it is whole: a training may fail.
    with tempfile.TemporaryDirectory(dir=GOLDEN.parent) as place:
        build(recipe, data, Path(place) / target.name)
        (Path(place) / target.name).rename(target)
    return target


def build(recipe: str, data: Path, target: Path) -> None:
    case = case_of(recipe)
    shutil.copytree(data, target / "data")
    succeed("train", recipe, target / "data", "--out", target / "run", *case.tiny, *case.faults, *case.golden, *KEYS)
    succeed("eval", target / "run", "--data", target / "data", "--out", target / "run" / "eval.json")
    succeed("export", target / "run", target / "hub")
    if case.tokenizer:
        succeed("encode", target / "run", target / "data", "--out", target / "codes")
    for spare in ("samples", "log.txt", "lock", "state.json", "curves.png", "tensorboard"):
        path = target / "run" / spare
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    forget_places(target)


def forget_places(folder: Path) -> None:
    """The data will lie elsewhere: no path of this machine is kept."""
    for suffix in ("yaml", "json"):
        for path in folder.rglob(f"*.{suffix}"):
            text = path.read_text()
            for place in (folder.parent, GOLDEN):
                text = text.replace(str(place.resolve()), "golden")
            path.write_text(text)
    for manifest in folder.rglob("SHA256SUMS"):
        renew_sums(manifest.parent)


if __name__ == "__main__":
    sys.stdout.write(f"{make(sys.argv[1], Path(sys.argv[2]))}\n")
