"""Export a run as a starter model: `card.py RUN TARGET --summary TEXT --figures METRIC,... [--more FILE]`.

Rounds the weights to bf16, evaluates the rounded model on the held-out items of its data, and writes the exported
folder with `starter.json` (for `quintet models`) and a card: data, licences, command, metrics, hash. Paths of this
machine are removed from its configuration. `--more` names a JSON file with further metrics.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from quintet import registry
from quintet.common.files import refuse_existing
from quintet.common.weights import checkpoint, starters
from quintet.common.weights.pretrained import WEIGHTS
from quintet.common.weights.starters import ABOUT
from quintet.config.text import STARTER
from quintet.evaluation import EvalSession
from quintet.pipelines.base import Pipeline
from quintet.pipelines.loading import open_pipeline
from rows import Row, checked_license, read_rows

PRIVATE: dict[str, Any] = {"data.path": None, "data.validation_path": None, "data.cache_dir": None}
"""Keys that name places of this machine."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("target", type=Path, help="models/NAME, which must not exist")
    parser.add_argument("--summary", required=True)
    parser.add_argument("--figures", required=True, help="metrics of the evaluation that are published")
    parser.add_argument("--more", type=Path)
    arguments = parser.parse_args()
    refuse_existing(arguments.target, "delete it first")
    refuse_held_out(Path(arguments.run))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "model"
        open_pipeline(arguments.run).save_pretrained(folder, dtype=torch.bfloat16)
        pipeline = open_pipeline(folder)
        metrics = EvalSession.open(pipeline).metrics()
        figures = {name: metrics[name] for name in arguments.figures.split(",")}
        if arguments.more is not None:
            figures |= json.loads(arguments.more.read_text(encoding="utf-8"))
        data = pipeline.config.data.path
        assert data is not None
        rows = read_rows(Path(data))
        write(pipeline, arguments.target, arguments.summary, figures, rows, checkpoint.hash_file(folder / FILE))
    print(f"{arguments.target}: {figures}")


FILE = f"{WEIGHTS}.safetensors"


def refuse_held_out(run: Path) -> None:
    """Stop if the run was trained on an item that its data folder holds out now, as half of a folder would allow."""
    data = json.loads((run / "data.json").read_text(encoding="utf-8"))
    held_out = {row.file_name for row in read_rows(Path(data["path"])) if row.split == "validation"}
    if leaked := held_out & set(data["train"]):
        raise SystemExit(f"{run} was trained on {len(leaked)} held-out items, such as {min(leaked)}; train it again")


def published(pipeline: Pipeline[Any]) -> dict[str, Any]:
    """The keys of its frozen models, as references to the starter models that have their weights."""
    known = [f"{STARTER}{name}" for name in starters.names()]
    digests = {open_pipeline(reference).digest: starters.fetch(reference).reference for reference in known}
    changes = {}
    for key, frozen in pipeline.frozen.items():
        if registry.find_builtin(str(getattr(pipeline.config, key))) is not None:
            continue
        if frozen.digest not in digests:
            raise SystemExit(f"the {key} of {pipeline.reference} is no starter model: train on {STARTER}NAME")
        changes[key] = digests[frozen.digest]
    return changes


def write(
    pipeline: Pipeline[Any], target: Path, summary: str, figures: dict[str, float], rows: list[Row], digest: str
) -> None:
    for row in rows:
        checked_license(row.license, row.source)
    about = {
        "recipe": pipeline.recipe,
        "summary": summary,
        "licenses": sorted({row.license for row in rows if row.split == "train"}),
        "figures": figures,
    }
    changes = PRIVATE | ({"init": None} if pipeline.config.init else {})
    contents = pipeline.with_keys(changes | published(pipeline)).contents(figures, torch.bfloat16)
    contents.json[ABOUT] = about
    contents.text["README.md"] = card(pipeline, target.name, about, rows, digest)
    checkpoint.write_folder(target, contents)


def card(pipeline: Pipeline[Any], name: str, about: dict[str, Any], rows: list[Row], digest: str) -> str:
    parameters = sum(each.numel() for each in pipeline.model.parameters())
    measured = "".join(f"| {metric} | {value:.4g} |\n" for metric, value in about["figures"].items())
    sources = Counter((row.source, row.license) for row in rows if row.split == "train")
    data = "".join(f"| {source} | {licence} | {count:,} |\n" for (source, licence), count in sorted(sources.items()))
    held_out = sum(row.split == "validation" for row in rows)
    step = pipeline.origin.step if pipeline.origin is not None else None
    return (
        f"# {STARTER}{name}\n\n{about['summary'][0].upper()}{about['summary'][1:]}. Recipe `{pipeline.recipe}`, "
        f"{parameters / 1e6:.2f} million parameters,\nstored in bf16 and used in float32; {step:,} steps.\n\n"
        f"The weights have the licence of quintet (MIT). The data have their own, which are named below;\n"
        "what a model reproduces of them stays under their terms.\n\n"
        f"## Data\n| package | licence | items |\n|---|---|---|\n{data}\n"
        f"{held_out:,} items are held out; no starter model is trained on them\n"
        "(`models/build/held_out.json`).\n\n"
        f"## Metrics on the held-out items\n| metric | value |\n|---|---|\n{measured}\n"
        f"## Command\n`models/build/{name}.sh` downloads and prepares the data, trains, and writes this folder.\n\n"
        f"## Hash\nSHA-256 of `{FILE}`: `{digest}`.\n`sha256sum -c SHA256SUMS` checks every file.\n"
    )


if __name__ == "__main__":
    main()
