"""Muse on real images: `benchmarks/emoji_muse.py FOLDER --tokenizer RUN --out RUN [--minutes 28] [KEY=VALUE...]`.

Trains for a limited time, generates every held-out subject in both styles, and measures two things: whether a sample
has the style that its caption names, by a classifier trained on real images, and whether samples are copies of training
images. No drawing is in both splits: files are grouped by the name before `--`. With `--measure-only` a finished run is
measured again; KEY=VALUE are then keys of `sample.*`.
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
from nearest import Nearest, code_metrics, distance_metrics, nearest_codes, nearest_images
from quintet import cli, config
from quintet.common.inference import inference_mode
from quintet.data.image import folder_splits
from quintet.errors import UsageError
from quintet.families.muse.config import MuseConfig
from quintet.families.muse.pipeline import MusePipeline
from quintet.media.image import image_grid, write_image
from style_classifier import accuracy, train_classifier
from worker import count_parameters

STYLES = ("Noto", "Twemoji")
"""The last word of every caption: "broken heart, Noto"."""
CAPTION = re.compile(rf"^(?P<subject>.*), (?P<style>{'|'.join(STYLES)})$")
STYLE_TARGET = 0.85
BATCH_SIZE = 32
"""Number of samples per batch; the logits of all codes at all positions need memory."""
SHOWN = 64
"""Number of samples in a grid."""
COLUMNS = 8
KEYS = (
    "data.validation_group=^(.*)--",
    "data.validation_fraction=0.1",
    # The learning rate decreases to 0 at the last step, which must be reached before the time limit.
    "train.steps=1100",
    "eval.every=200",
    "eval.batches=null",
    "sample.every=1000",
    "checkpoint.every=200",
)
RESULTS = Path(__file__).parent / "results" / "emoji-muse.json"


@dataclass(frozen=True)
class Images:
    """Images in [0, 1], their codes and their reconstructions; a sample is its own reconstruction."""

    images: Tensor
    codes: Tensor
    reconstructions: Tensor
    texts: list[str]
    files: list[str]

    @property
    def styles(self) -> Tensor:
        return torch.tensor([STYLES.index(parts(text)[1]) for text in self.texts])

    def with_mirrored(self, tokenizer: Any) -> Images:
        """All images, followed by all images flipped horizontally."""
        mirrored = self.images.flip(-1)
        codes, reconstructions = encode_and_decode(tokenizer, mirrored)
        return Images(
            torch.cat([self.images, mirrored]),
            torch.cat([self.codes, codes]),
            torch.cat([self.reconstructions, reconstructions]),
            2 * self.texts,
            2 * self.files,
        )


def main() -> None:
    arguments = _arguments()
    start_time = time.monotonic()
    if not arguments.measure_only:
        train(arguments.folder, arguments.tokenizer, arguments.out, arguments.preset, arguments.minutes, arguments.keys)
    trained_minutes = None if arguments.measure_only else (time.monotonic() - start_time) / 60
    reference = f"{arguments.out}@{arguments.checkpoint}"
    cli.call(["eval", reference])
    results = measure(
        reference,
        arguments.folder,
        arguments.images or arguments.out / "measured",
        arguments.samples,
        arguments.keys if arguments.measure_only else [],
    )
    results["eval"] = json.loads((arguments.out / "eval.json").read_text(encoding="utf-8"))
    results["minutes"] = {"training": trained_minutes, "everything": (time.monotonic() - start_time) / 60}
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    arguments.results.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(table(results))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--tokenizer", help="run or exported folder of the tokenizer; not needed with --measure-only")
    parser.add_argument("--out", type=Path, default=Path("runs/emoji-muse"))
    parser.add_argument("--preset", default="small")
    parser.add_argument("--minutes", type=float, default=28.0, help="time limit of the training")
    parser.add_argument("--measure-only", action="store_true", help="measure the finished run --out again")
    parser.add_argument("--checkpoint", default="latest", help="latest, best or a step")
    parser.add_argument("--samples", type=int, default=200, help="minimum number of samples")
    parser.add_argument("--images", type=Path, help="folder of the image grids; default: RUN/measured")
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


def measure(reference: str, folder: str, out: Path, min_samples: int, keys: Sequence[str] = ()) -> dict[str, Any]:
    """All metrics of a trained run; writes image grids to `out`."""
    pipeline = MusePipeline.from_pretrained(reference).with_keys(_sample_keys(keys))
    settings, tokenizer = pipeline.config, pipeline.frozen["tokenizer"].model
    training, held_out = real_images(settings, folder, tokenizer)
    start_time = time.monotonic()
    samples = generate(pipeline, held_out.texts, min_samples)
    seconds = (time.monotonic() - start_time) / len(samples.texts)
    style = measure_style(training, held_out, samples)
    seen = training.with_mirrored(tokenizer) if settings.data.flip else training
    copies, neighbours = measure_copies(seen, held_out, samples)
    write_nearest(samples, seen, neighbours, out)
    write_samples(samples, out)
    return {
        **_environment(),
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


def real_images(settings: MuseConfig, folder: str, tokenizer: Any) -> tuple[Images, Images]:
    """Training and held-out images of the run, without augmentation."""
    data = settings.changed({"data.path": folder, "data.flip": False, "data.random_crop": False}).data
    assert isinstance(data, config.ImageDataConfig)
    splits = folder_splits(data, tokenizer.config.size, tokenizer.config.channels)
    sides = []
    for split in (splits.train, splits.validation):
        images = load(split, range(len(split)))
        entries = split.entries  # type: ignore[attr-defined]
        texts, files = [entry.text or "" for entry in entries], [entry.file for entry in entries]
        sides.append(Images(images, *encode_and_decode(tokenizer, images), texts, files))
    return sides[0], sides[1]


def encode_and_decode(tokenizer: Any, images: Tensor) -> tuple[Tensor, Tensor]:
    """Codes and reconstructions."""
    device = next(tokenizer.parameters()).device
    with inference_mode({"tokenizer": tokenizer}):
        codes = torch.cat([tokenizer.encode(batch) for batch in torch.split(images.to(device), BATCH_SIZE)])
        decoded = torch.cat([tokenizer.decode(batch) for batch in torch.split(codes, BATCH_SIZE)])
    return codes.cpu(), decoded.cpu()


def generate(pipeline: MusePipeline, captions: Sequence[str], min_samples: int) -> Images:
    """At least `min_samples` samples of every subject in every style; adjacent samples differ in style."""
    subjects = sorted({parts(caption)[0] for caption in captions})
    prompts = [f"{subject}, {style}" for subject in subjects for style in STYLES]
    rounds = -(-min_samples // len(prompts))
    texts = rounds * prompts
    with recorded(pipeline.frozen["tokenizer"].model) as decoded:
        for number, start in enumerate(range(0, len(texts), BATCH_SIZE)):
            # Each batch has its own seed: otherwise items with the same number would have the same noise.
            pipeline(texts[start : start + BATCH_SIZE], seed=number)
            print(f"generated: {min(start + BATCH_SIZE, len(texts))} of {len(texts)}", flush=True)
    codes, images = (torch.cat(tensors) for tensors in zip(*decoded, strict=True))
    return Images(images, codes, images, texts, [f"sample {number}" for number in range(len(texts))])


@contextmanager
def recorded(tokenizer: Any) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Records codes and images that the tokenizer decodes in this context.

    The codes of a sample are not stored anywhere, and encoding its image again would give different codes.
    """
    decoded: list[tuple[Tensor, Tensor]] = []
    decode = tokenizer.decode

    def decode_and_record(codes: Tensor) -> Tensor:
        images: Tensor = decode(codes)
        decoded.append((codes.cpu(), images.float().cpu()))
        return images

    tokenizer.decode = decode_and_record
    try:
        yield decoded
    finally:
        del tokenizer.decode  # restores the method of the class


def measure_style(training: Images, held_out: Images, samples: Images) -> dict[str, Any]:
    start_time = time.monotonic()
    classifier = train_classifier(training.images, training.styles, len(STYLES))
    seconds = time.monotonic() - start_time
    inputs = {
        "held_out": (held_out.images, held_out.styles),
        "held_out_reconstructions": (held_out.reconstructions, held_out.styles),
        "samples": (samples.images, samples.styles),
    }
    accuracies = {name: accuracy(classifier, *pair, STYLES) for name, pair in inputs.items()}
    return {"bar": STYLE_TARGET, "classifier_seconds": seconds, **accuracies}


def measure_copies(training: Images, held_out: Images, samples: Images) -> tuple[dict[str, Any], dict[str, Nearest]]:
    """Metrics, and the nearest training images of the samples by each measure."""
    pixels = nearest_images(samples.images, training.images)
    reconstructed = nearest_images(samples.images, training.reconstructions)
    codes = nearest_codes(samples.codes, training.codes)
    metrics = {
        "to_pictures": distance_metrics(pixels, nearest_images(held_out.images, training.images)),
        # Samples are as soft as reconstructions, which this baseline takes into account.
        "to_pictures_from_reconstructions": distance_metrics(
            pixels, nearest_images(held_out.reconstructions, training.images)
        ),
        "to_reconstructions": distance_metrics(
            reconstructed, nearest_images(held_out.reconstructions, training.reconstructions)
        ),
        "codes": code_metrics(codes, nearest_codes(held_out.codes, training.codes)),
    }
    if training.codes.ndim == 4:
        # The later quantizers of a copy may differ invisibly.
        metrics["codes_of_first_level"] = code_metrics(
            nearest_codes(samples.codes[..., 0], training.codes[..., 0]),
            nearest_codes(held_out.codes[..., 0], training.codes[..., 0]),
        )
    return metrics, {"pictures": pixels, "reconstructions": reconstructed, "codes": codes}


def trained_on(tokenizer: str | None, files: Sequence[str]) -> int | None:
    """How many of the files the tokenizer was trained on, which should be 0; None if unknown."""
    folder = Path(str(tokenizer).rpartition("@")[0] or str(tokenizer))
    if not (folder / "data.json").is_file():
        return None
    seen = set(json.loads((folder / "data.json").read_text(encoding="utf-8"))["train"])
    return len(seen & set(files))


# --- output -----------------------------------------------------------------------------------------------------


def write_nearest(samples: Images, training: Images, neighbours: Mapping[str, Nearest], folder: Path) -> None:
    """`nearest.png`: pairs of a sample and its nearest training image, nearest first; `nearest.jsonl`: all pairs."""
    pixels, reconstructed, codes = (neighbours[name] for name in ("pictures", "reconstructions", "codes"))
    order = pixels.values.argsort().tolist()
    pairs = [
        image
        for index in order[: SHOWN // 2]
        for image in (samples.images[index], training.images[pixels.indices[index]])
    ]
    write_image(image_grid(pairs, columns=COLUMNS), folder / "nearest.png")
    rows = [
        {
            "row": 1 + rank * 2 // COLUMNS if rank < SHOWN // 2 else None,
            "columns": [1 + rank * 2 % COLUMNS, 2 + rank * 2 % COLUMNS] if rank < SHOWN // 2 else None,
            "text": samples.texts[index],
            "nearest": training.texts[pixels.indices[index]],
            "nearest_file": training.files[pixels.indices[index]],
            "distance": float(pixels.values[index]),
            "nearest_reconstruction": training.files[reconstructed.indices[index]],
            "distance_to_reconstruction": float(reconstructed.values[index]),
            "most_equal_codes": training.files[codes.indices[index]],
            "equal_codes": float(codes.values[index]),
        }
        for rank, index in enumerate(order)
    ]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (folder / "nearest.jsonl").write_text(lines, encoding="utf-8")


def write_samples(samples: Images, folder: Path) -> None:
    """`samples.png`: subjects from the full alphabet in each style, not selected; `samples.md`: their names."""
    per_row = COLUMNS // len(STYLES)
    subjects = len(set(samples.texts)) // len(STYLES)
    count = min(subjects, SHOWN // len(STYLES))
    shown = [number * subjects // count * len(STYLES) for number in range(count)]
    images = [samples.images[index + style] for index in shown for style in range(len(STYLES))]
    write_image(image_grid(images, columns=COLUMNS), folder / "samples.png")
    names = [parts(samples.texts[index])[0].replace("|", "\\|") for index in shown]
    pair = " and ".join(STYLES)
    lines = [f"Each subject as {pair}.", "", "| row |" + "".join(f" pair {n + 1} |" for n in range(per_row))]
    lines += ["|---" * (per_row + 1) + "|"]
    for row in range(-(-count // per_row)):
        cells = names[row * per_row : (row + 1) * per_row]
        lines += [f"| {row + 1} |" + "".join(f" {name} |" for name in [*cells, *[""] * (per_row - len(cells))])]
    (folder / "samples.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def table(results: Mapping[str, Any]) -> str:
    """The main metrics as a Markdown table."""
    style, copies = results["style"], results["copies"]
    pixels, reconstructed, codes = (copies[name] for name in ("to_pictures", "to_reconstructions", "codes"))
    rows = [
        ("style accuracy: samples", style["samples"], f">= {STYLE_TARGET:.0%}"),
        ("style accuracy: held-out images", style["held_out"], ""),
        ("style accuracy: reconstructions of held-out images", style["held_out_reconstructions"], ""),
    ]
    lines = ["| metric | measured | target or baseline |", "|---|---|---|"]
    for name, accuracies, target in rows:
        each = ", ".join(f"{style_name} {accuracies[style_name]:.1%}" for style_name in STYLES)
        lines.append(f"| {name} | {accuracies['all']:.1%} ({each}) | {target} |")
    for name, found in (("training image", pixels), ("training reconstruction", reconstructed)):
        lines.append(
            f"| RMSE to the nearest {name}, median (5 % quantile) | "
            f"{found['samples_median']:.3f} ({found['samples_5_percent']:.3f}) | "
            f"held-out {found['held_out_median']:.3f} ({found['held_out_5_percent']:.3f}) |"
        )
        lines.append(
            f"| samples nearer to a {name} than the closest 1 % held-out | "
            f"{found['samples_nearer_than_held_out_1_percent']} of {results['data']['samples']['all']} | "
            f"RMSE {found['held_out_1_percent']:.3f} |"
        )
    lines.append(
        f"| samples with more than 90 % of the codes of a training image | {codes['samples_copies_share']:.1%} "
        f"(most equal codes: {codes['samples_largest']:.0%}) | held-out {codes['held_out_copies_share']:.1%} "
        f"({codes['held_out_largest']:.0%}) |"
    )
    lines.append(f"| validation loss, accuracy | {results['eval']['loss']:.3f}, {results['eval']['accuracy']:.1%} | |")
    return "\n".join(lines)


# --- helpers ----------------------------------------------------------------------------------------------------


def parts(caption: str) -> tuple[str, str]:
    """Subject and style of a caption."""
    found = CAPTION.match(caption)
    if found is None:
        raise UsageError(f"the caption '{caption}' does not end in a style ({', '.join(STYLES)})")
    return found["subject"], found["style"]


def _sample_keys(words: Sequence[str]) -> dict[str, Any]:
    changes = config.parse_overrides(words)
    if wrong := [key for key in changes if not key.startswith("sample.")]:
        raise UsageError(f"'{wrong[0]}' cannot be changed: a finished run takes only keys of sample.*")
    return changes


def _counts(images: Images) -> dict[str, int]:
    of_each = {name: int((images.styles == number).sum()) for number, name in enumerate(STYLES)}
    subjects = len({parts(text)[0] for text in images.texts})
    return {"all": len(images.texts), **of_each, "subjects": subjects}


def _environment() -> dict[str, Any]:
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
