"""Muse on real pictures: `benchmarks/emoji_muse.py FOLDER --tokenizer RUN --out RUN [--minutes 28] [KEY=VALUE...]`.

Trains for a limited time, draws every held-out subject in both styles, and measures two things: whether a sample has
the style that its caption names, by a classifier trained on real pictures, and whether samples are copies of
training pictures. No drawing is on both sides of the split: files are grouped by the name before `--`. With
`--measure-only` a finished run is measured again; KEY=VALUE are then keys of `sample.*`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from baselines import load
from nearest import Nearest, code_figures, distance_figures, nearest_codes, nearest_pictures
from quintet import cli, config
from quintet.common.inference import inference_mode
from quintet.data.image import folder_splits
from quintet.errors import UsageError
from quintet.families.muse.config import MuseConfig
from quintet.families.muse.pipeline import MusePipeline
from quintet.media.image import image_grid, write_image
from style_classifier import shares_right, train_classifier
from worker import count_parameters

STYLES = ("Noto", "Twemoji")
"""The last word of every caption: "broken heart, Noto"."""
CAPTION = re.compile(rf"^(?P<subject>.*), (?P<style>{'|'.join(STYLES)})$")
STYLE_BAR = 0.85
BATCH_SIZE = 32
"""Samples drawn at once: logits of all codes at all places take memory."""
SHOWN = 64
"""Samples on a sheet."""
COLUMNS = 8
KEYS = (
    "data.validation_group=^(.*)--",
    "data.validation_fraction=0.1",
    # The learning rate falls to nothing at the last step, which therefore has to come before the time limit.
    "train.steps=1100",
    "eval.every=200",
    "eval.batches=null",
    "sample.every=1000",
    "checkpoint.every=200",
)
RESULTS = Path(__file__).parent / "results" / "emoji-muse.json"


@dataclass(frozen=True)
class Pictures:
    """Pictures in [0, 1] as they are, as codes, and as the tokenizer gives them back; a sample comes back as it is."""

    images: Tensor
    codes: Tensor
    reconstructions: Tensor
    texts: list[str]
    files: list[str]

    @property
    def styles(self) -> Tensor:
        return torch.tensor([STYLES.index(parts(text)[1]) for text in self.texts])

    def with_mirrored(self, tokenizer: Any) -> Pictures:
        """Each picture, then each picture mirrored."""
        mirrored = self.images.flip(-1)
        codes, reconstructions = through(tokenizer, mirrored)
        return Pictures(
            torch.cat([self.images, mirrored]),
            torch.cat([self.codes, codes]),
            torch.cat([self.reconstructions, reconstructions]),
            2 * self.texts,
            2 * self.files,
        )


def main() -> None:
    arguments = _arguments()
    began = time.monotonic()
    if not arguments.measure_only:
        train(arguments.folder, arguments.tokenizer, arguments.out, arguments.preset, arguments.minutes, arguments.keys)
    trained_minutes = None if arguments.measure_only else (time.monotonic() - began) / 60
    reference = f"{arguments.out}@{arguments.checkpoint}"
    cli.call(["eval", reference])
    figures = measure(
        reference,
        arguments.folder,
        arguments.pictures or arguments.out / "measured",
        arguments.samples,
        arguments.keys if arguments.measure_only else [],
    )
    figures["eval"] = json.loads((arguments.out / "eval.json").read_text(encoding="utf-8"))
    figures["minutes"] = {"training": trained_minutes, "everything": (time.monotonic() - began) / 60}
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    arguments.results.write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(table(figures))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--tokenizer", help="run or exported folder of the tokenizer; not needed with --measure-only")
    parser.add_argument("--out", type=Path, default=Path("runs/emoji-muse"))
    parser.add_argument("--preset", default="small")
    parser.add_argument("--minutes", type=float, default=28.0, help="time limit of the training")
    parser.add_argument("--measure-only", action="store_true", help="measure the finished run --out again")
    parser.add_argument("--checkpoint", default="latest", help="latest, best or a step")
    parser.add_argument("--samples", type=int, default=200, help="at least so many samples")
    parser.add_argument("--pictures", type=Path, help="folder of the sheets; default RUN/measured")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("keys", nargs="*", default=[])
    arguments = parser.parse_intermixed_args()
    if arguments.tokenizer is None and not arguments.measure_only:
        parser.error("name the tokenizer with --tokenizer RUN")
    return arguments


# --- the steps --------------------------------------------------------------------------------------------------


def train(folder: str, tokenizer: str, out: Path, preset: str, minutes: float, keys: Sequence[str]) -> None:
    words = ["train", "muse", folder, "--tokenizer", tokenizer, "--out", str(out), "--preset", preset]
    words += [*KEYS, f"train.minutes={minutes}", *keys]
    print("$ quintet", *words)
    cli.call(words)


def measure(reference: str, folder: str, sheets: Path, least: int, keys: Sequence[str] = ()) -> dict[str, Any]:
    """All figures of a trained run, whose sheets go into a folder of their own."""
    pipeline = MusePipeline.from_pretrained(reference).with_keys(_sample_keys(keys))
    settings, tokenizer = pipeline.config, pipeline.frozen["tokenizer"].model
    training, held_out = real_pictures(settings, folder, tokenizer)
    began = time.monotonic()
    samples = generate(pipeline, held_out.texts, least)
    seconds = (time.monotonic() - began) / len(samples.texts)
    style = measure_style(training, held_out, samples)
    seen = training.with_mirrored(tokenizer) if settings.data.flip else training
    copies, neighbours = measure_copies(seen, held_out, samples)
    write_nearest(samples, seen, neighbours, sheets)
    write_samples(samples, sheets)
    return {
        **_circumstances(),
        "run": {
            "step": pipeline.origin.step if pipeline.origin else None,
            "parameters": count_parameters(pipeline.model),
            "seconds_per_sample": seconds,
            **{
                name: getattr(settings, name).model_dump(mode="json")
                for name in ("model", "train", "loss", "optim", "sample")
            },
            "flip": settings.data.flip,
        },
        "data": {
            "training": _counts(training),
            "held_out": _counts(held_out),
            "samples": _counts(samples),
            "held_out_that_the_tokenizer_was_trained_on": trained_on(settings.tokenizer, held_out.files),
        },
        "style": style,
        "copies": copies,
    }


def real_pictures(settings: MuseConfig, folder: str, tokenizer: Any) -> tuple[Pictures, Pictures]:
    """Both sides of the run's split, unaugmented."""
    data = settings.changed({"data.path": folder, "data.flip": False, "data.random_crop": False}).data
    assert isinstance(data, config.ImageDataConfig)
    splits = folder_splits(data, tokenizer.config.size, tokenizer.config.channels)
    sides = []
    for source in (splits.train, splits.validation):
        images = load(source, range(len(source)))
        entries = source.entries  # type: ignore[attr-defined]
        texts, files = [entry.text or "" for entry in entries], [entry.file for entry in entries]
        sides.append(Pictures(images, *through(tokenizer, images), texts, files))
    return sides[0], sides[1]


def through(tokenizer: Any, images: Tensor) -> tuple[Tensor, Tensor]:
    """Codes and reconstructions."""
    device = next(tokenizer.parameters()).device
    with inference_mode({"tokenizer": tokenizer}):
        codes = torch.cat([tokenizer.encode(batch) for batch in torch.split(images.to(device), BATCH_SIZE)])
        decoded = torch.cat([tokenizer.decode(batch) for batch in torch.split(codes, BATCH_SIZE)])
    return codes.cpu(), decoded.cpu()


def generate(pipeline: MusePipeline, captions: Sequence[str], least: int) -> Pictures:
    """Every subject of the captions in every style, as often as makes `least` samples; neighbours differ in style."""
    subjects = sorted({parts(caption)[0] for caption in captions})
    prompts = [f"{subject}, {style}" for subject in subjects for style in STYLES]
    rounds = -(-least // len(prompts))
    texts = rounds * prompts
    with recorded(pipeline.frozen["tokenizer"].model) as decoded:
        for number, start in enumerate(range(0, len(texts), BATCH_SIZE)):
            # A seed of its own for each batch: items of the same number would share their noise.
            pipeline(texts[start : start + BATCH_SIZE], seed=number)
            print(f"drawn: {min(start + BATCH_SIZE, len(texts))} of {len(texts)}", flush=True)
    codes, images = (torch.cat(tensors) for tensors in zip(*decoded, strict=True))
    return Pictures(images, codes, images, texts, [f"sample {number}" for number in range(len(texts))])


@contextmanager
def recorded(tokenizer: Any) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """What the tokenizer decodes meanwhile: codes and pictures.

    A sample's codes are written nowhere, and encoding its picture again would give others.
    """
    decoded: list[tuple[Tensor, Tensor]] = []
    decode = tokenizer.decode

    def decode_and_keep(codes: Tensor) -> Tensor:
        pictures: Tensor = decode(codes)
        decoded.append((codes.cpu(), pictures.float().cpu()))
        return pictures

    tokenizer.decode = decode_and_keep
    try:
        yield decoded
    finally:
        del tokenizer.decode  # the class's own is behind it


def measure_style(training: Pictures, held_out: Pictures, samples: Pictures) -> dict[str, Any]:
    began = time.monotonic()
    classifier = train_classifier(training.images, training.styles, len(STYLES))
    seconds = time.monotonic() - began
    looked_at = {
        "held_out": (held_out.images, held_out.styles),
        "held_out_reconstructions": (held_out.reconstructions, held_out.styles),
        "samples": (samples.images, samples.styles),
    }
    shares = {name: shares_right(classifier, *pair, STYLES) for name, pair in looked_at.items()}
    return {"bar": STYLE_BAR, "classifier_seconds": seconds, **shares}


def measure_copies(
    training: Pictures, held_out: Pictures, samples: Pictures
) -> tuple[dict[str, Any], dict[str, Nearest]]:
    """The figures, and the samples' neighbours by each measure."""
    pixels = nearest_pictures(samples.images, training.images)
    reconstructed = nearest_pictures(samples.images, training.reconstructions)
    codes = nearest_codes(samples.codes, training.codes)
    figures = {
        "to_pictures": distance_figures(pixels, nearest_pictures(held_out.images, training.images)),
        # Samples have the tokenizer's softness; so has this yardstick.
        "to_pictures_from_reconstructions": distance_figures(
            pixels, nearest_pictures(held_out.reconstructions, training.images)
        ),
        "to_reconstructions": distance_figures(
            reconstructed, nearest_pictures(held_out.reconstructions, training.reconstructions)
        ),
        "codes": code_figures(codes, nearest_codes(held_out.codes, training.codes)),
    }
    if training.codes.ndim == 4:
        # The finer levels of a copy may differ where nobody sees it.
        figures["codes_of_first_level"] = code_figures(
            nearest_codes(samples.codes[..., 0], training.codes[..., 0]),
            nearest_codes(held_out.codes[..., 0], training.codes[..., 0]),
        )
    return figures, {"pictures": pixels, "reconstructions": reconstructed, "codes": codes}


def trained_on(tokenizer: str | None, files: Sequence[str]) -> int | None:
    """How many of the files the tokenizer was trained on, which should be none; None where that is not known."""
    folder = Path(str(tokenizer).rpartition("@")[0] or str(tokenizer))
    if not (folder / "data.json").is_file():
        return None
    seen = set(json.loads((folder / "data.json").read_text(encoding="utf-8"))["train"])
    return len(seen & set(files))


# --- what is written --------------------------------------------------------------------------------------------


def write_nearest(samples: Pictures, training: Pictures, neighbours: Mapping[str, Nearest], folder: Path) -> None:
    """`nearest.png`: pairs of a sample and its nearest training picture, the nearest first; `nearest.jsonl`: all."""
    pixels, reconstructed, codes = (neighbours[name] for name in ("pictures", "reconstructions", "codes"))
    order = pixels.values.argsort().tolist()
    pairs = [
        picture
        for place in order[: SHOWN // 2]
        for picture in (samples.images[place], training.images[pixels.places[place]])
    ]
    write_image(image_grid(pairs, columns=COLUMNS), folder / "nearest.png")
    rows = [
        {
            "row": 1 + rank * 2 // COLUMNS if rank < SHOWN // 2 else None,
            "columns": [1 + rank * 2 % COLUMNS, 2 + rank * 2 % COLUMNS] if rank < SHOWN // 2 else None,
            "text": samples.texts[place],
            "nearest": training.texts[pixels.places[place]],
            "nearest_file": training.files[pixels.places[place]],
            "distance": float(pixels.values[place]),
            "nearest_reconstruction": training.files[reconstructed.places[place]],
            "distance_to_reconstruction": float(reconstructed.values[place]),
            "most_equal_codes": training.files[codes.places[place]],
            "equal_codes": float(codes.values[place]),
        }
        for rank, place in enumerate(order)
    ]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (folder / "nearest.jsonl").write_text(lines, encoding="utf-8")


def write_samples(samples: Pictures, folder: Path) -> None:
    """`samples.png`: subjects from the whole alphabet in each style, unselected; `samples.md`: what they should be."""
    per_row = COLUMNS // len(STYLES)
    subjects = len(set(samples.texts)) // len(STYLES)
    count = min(subjects, SHOWN // len(STYLES))
    shown = [number * subjects // count * len(STYLES) for number in range(count)]
    pictures = [samples.images[place + style] for place in shown for style in range(len(STYLES))]
    write_image(image_grid(pictures, columns=COLUMNS), folder / "samples.png")
    names = [parts(samples.texts[place])[0].replace("|", "\\|") for place in shown]
    pair = " and ".join(STYLES)
    lines = [f"Each subject as {pair}.", "", "| row |" + "".join(f" pair {n + 1} |" for n in range(per_row))]
    lines += ["|---" * (per_row + 1) + "|"]
    for row in range(-(-count // per_row)):
        cells = names[row * per_row : (row + 1) * per_row]
        lines += [f"| {row + 1} |" + "".join(f" {name} |" for name in [*cells, *[""] * (per_row - len(cells))])]
    (folder / "samples.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def table(figures: Mapping[str, Any]) -> str:
    """The figures that matter, in Markdown."""
    style, copies = figures["style"], figures["copies"]
    pixels, reconstructed, codes = (copies[name] for name in ("to_pictures", "to_reconstructions", "codes"))
    rows = [
        ("style recognised: samples, as their caption says", style["samples"], f">= {STYLE_BAR:.0%}"),
        ("style recognised: real held-out pictures", style["held_out"], ""),
        ("style recognised: their reconstructions", style["held_out_reconstructions"], ""),
    ]
    lines = ["| what | measured | bar or yardstick |", "|---|---|---|"]
    for name, shares, bar in rows:
        each = ", ".join(f"{style_name} {shares[style_name]:.1%}" for style_name in STYLES)
        lines.append(f"| {name} | {shares['all']:.1%} ({each}) | {bar} |")
    for name, found in (("training picture", pixels), ("training reconstruction", reconstructed)):
        lines.append(
            f"| RMSE to the nearest {name}, median (5 % quantile) | "
            f"{found['samples_median']:.3f} ({found['samples_5_percent']:.3f}) | "
            f"held-out {found['held_out_median']:.3f} ({found['held_out_5_percent']:.3f}) |"
        )
        lines.append(
            f"| samples nearer to a {name} than the closest 1 % held-out | "
            f"{found['samples_nearer_than_held_out_1_percent']} of {figures['data']['samples']['all']} | "
            f"RMSE {found['held_out_1_percent']:.3f} |"
        )
    lines.append(
        f"| samples with more than 90 % of a training picture's codes | {codes['samples_copies_share']:.1%} "
        f"(most equal codes: {codes['samples_largest']:.0%}) | held-out {codes['held_out_copies_share']:.1%} "
        f"({codes['held_out_largest']:.0%}) |"
    )
    lines.append(f"| validation loss, accuracy | {figures['eval']['loss']:.3f}, {figures['eval']['accuracy']:.1%} | |")
    return "\n".join(lines)


# --- small things -----------------------------------------------------------------------------------------------


def parts(caption: str) -> tuple[str, str]:
    """Subject and style of a caption."""
    found = CAPTION.match(caption)
    if found is None:
        raise UsageError(f"the caption '{caption}' does not end in a style ({', '.join(STYLES)})")
    return found["subject"], found["style"]


def _sample_keys(words: Sequence[str]) -> dict[str, Any]:
    changes = config.parse_overrides(words)
    if wrong := [key for key in changes if not key.startswith("sample.")]:
        raise UsageError(f"a finished run can be measured with other keys of sample.*, not with '{wrong[0]}'")
    return changes


def _counts(pictures: Pictures) -> dict[str, int]:
    of_each = {name: int((pictures.styles == number).sum()) for number, name in enumerate(STYLES)}
    subjects = len({parts(text)[0] for text in pictures.texts})
    return {"all": len(pictures.texts), **of_each, "subjects": subjects}


def _circumstances() -> dict[str, Any]:
    here = Path(__file__).parent
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=False)
    return {
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit.stdout.strip(),
        "torch": torch.__version__,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load_average": os.getloadavg(),
    }


if __name__ == "__main__":
    main()
