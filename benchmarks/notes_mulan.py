"""MuLaN on real notes: `benchmarks/notes_mulan.py FOLDER --out RUN [--init RUN] [--steps 400] [KEY=VALUE...]`.

Trains on single notes of real instruments, with captions like "alto sax, note E4". On instruments that are not in the
training data it measures retrieval by captions, and zero-shot classification of the family of the instrument. No
instrument is in both splits. Writes an image of the confusion matrix.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from notes_data import split_notes
from quintet import cli
from quintet.common.inference import inference_mode
from quintet.evaluation import EvalSession
from quintet.families.mulan.pipeline import MuLaNPipeline
from quintet.media.chart import draw_matrix
from quintet.media.image import write_image

FAMILIES = {
    "keyboard": ("piano", "ep", "celesta", "harpsichord", "organ", "accordian"),
    "strings": ("violin", "viola", "cello", "contrabass", "tremolo", "pizzicato", "harp"),
    "guitar": ("guitar", "banjo", "koto"),
    "bass": ("bass",),
    "brass": ("horns", "trombone", "trumpet", "brass"),
    "wind": ("sax", "flute", "clarinet", "bassoon", "piccolo", "recorder", "ocarina", "bagpipe", "harmonica"),
    "voice": ("choir", "vox"),
    "percussion": ("kit", "timpani", "tom", "marimba", "xylophone", "vibraphone", "kalimba"),
}
"""Words of captions by family, tried from the last family to the first: "bass drum, percussion kit" is no bass."""
RESULTS = Path(__file__).parent / "results" / "notes-mulan.json"


def family_of(caption: str) -> str | None:
    words = set(re.findall(r"[a-z]+", caption.lower()))
    return next((family for family, members in reversed(FAMILIES.items()) if words & set(members)), None)


@torch.no_grad()
def confusion(run: Path) -> tuple[np.ndarray[Any, np.dtype[np.float64]], list[str]]:
    """Confusion matrix; rows: family of a held-out clip, columns: family with the nearest words."""
    pipeline = MuLaNPipeline.from_pretrained(run)
    session = EvalSession.open(pipeline)
    names = list(FAMILIES)
    counts = np.zeros((len(names), len(names)))
    with inference_mode(pipeline.modules):
        texts = {name: [f"{word}, note C4" for word in words] for name, words in FAMILIES.items()}
        families = torch.stack([F.normalize(pipeline.embed_texts(each).mean(0), dim=-1) for each in texts.values()])
        for item in range(len(session.loader.dataset)):
            batch = session.loader.single(item)
            family = family_of(batch["texts"][0])
            if family is not None:
                guess = int((pipeline.embed_batch(batch) @ families.T).argmax())
                counts[names.index(family), guess] += 1
    return counts, names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--init")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--image", type=Path)
    arguments, keys = parser.parse_known_args()
    data = arguments.out.with_name(f"{arguments.out.name}-data")
    if not data.exists():
        split_notes(arguments.folder, data)
    start_time, cpu = time.perf_counter(), time.process_time()
    if not arguments.out.exists():
        start = ("--init", arguments.init) if arguments.init else ()
        cli.call(
            ["train", "mulan", str(data), "--out", str(arguments.out), "--preset", "small", *start,
             f"train.steps={arguments.steps}", "train.batch_size=32", "optim.warmup_steps=50", "eval.every=50",
             "sample.every=200", "checkpoint.every=100", "eval.batch_size=8", *keys]
        )  # fmt: skip
    cli.call(["eval", str(arguments.out)])
    metrics = json.loads((arguments.out / "eval.json").read_text(encoding="utf-8"))
    counts, names = confusion(arguments.out)
    totals = counts.sum(1)
    largest = totals.max() / totals.sum()
    compared = metrics["compared"]
    retrieval = (
        "text_to_audio_r1",
        "text_to_audio_r5",
        "text_to_audio_r10",
        "text_to_audio_median_rank",
        "audio_to_text_r10",
    )
    chance = (1 / compared, 5 / compared, 10 / compared, (compared + 1) / 2, 10 / compared)
    rows = [(name, metrics[name], by_chance) for name, by_chance in zip(retrieval, chance, strict=True)]
    rows.append(("family_zero_shot", float(counts.trace() / counts.sum()), 1 / len(names)))
    print(
        f"{compared:.0f} held-out clips; {time.perf_counter() - start_time:.0f} s, "
        f"{time.process_time() - cpu:.0f} CPU s"
    )
    print("| metric | measured | chance |\n|---|---|---|")
    for name, value, by_chance in rows:
        print(f"| {name} | {value:.3f} | {by_chance:.3f} |")
    print(f"always predicting the largest family: {largest:.3f}")
    fractions = counts / np.maximum(totals, 1)[:, None]
    labels = [f"{name} ({count:.0f})" for name, count in zip(names, totals, strict=True)]
    write_image(draw_matrix(fractions, labels, names, square=36), arguments.image or arguments.out / "confusion.png")
    results = {
        "clips": compared,
        "rows": rows,
        "largest_family": largest,
        "families": names,
        "confusion": counts.tolist(),
    }
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
