"""Muse on real images: `benchmarks/emoji_muse.py FOLDER --tokenizer RUN --out RUN [--minutes 28] [KEY=VALUE...]`.

Trains for a limited time on all cores, so that the learning rate has decreased to 0 at the end. Then it generates 100
captions of the training split and measures whether their subjects are recognized: the nearest real picture, in features
and in pixels, must be of the same subject. It generates every held-out subject in both styles and measures whether
samples are copies of training images. For both it measures whether a sample has the style that its caption names, by a
classifier trained on real images. No drawing is in both splits: files are grouped by the name before `--`. With
`--measure-only` a finished run is measured again; KEY=VALUE are then keys of `sample.*`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from emoji_images import BATCH_SIZE, Images, encode_and_decode, real_images
from emoji_sheets import write_nearest, write_samples, write_trained
from nearest import Nearest, code_metrics, distance_metrics, nearest_codes, nearest_images
from quintet import cli, config
from quintet.errors import UsageError
from quintet.families.muse.pipeline import MusePipeline
from style_classifier import accuracy, train_classifier
from subject_features import nearest_features, train_features
from subjects import STYLES, choose_captions, parts, recognized
from worker import count_parameters

STYLE_TARGET = 0.85
"""For subjects that are held out."""
TRAINED_TARGETS = {"own_subject": 0.6, "style": 0.9}
"""For captions of the training split."""
TRAINED = 100
"""Number of captions of the training split that are generated, once each."""
UNSEEN_SHIFT = 2
"""Pixels by which pictures are moved for reconstructions that the features were not trained on."""
KEYS = (
    "data.validation_group=^(.*)--",
    "data.validation_fraction=0.1",
    "eval.batches=null",
    "engine.launch=auto",
)
RESULTS = Path(__file__).parent / "results" / "emoji-muse.json"


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
    parser.add_argument("--minutes", type=float, default=28.0, help="length of the training")
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
    """In processes of its own, one for each core."""
    words = ["train", "muse", folder, "--tokenizer", tokenizer, "--out", str(out), "--preset", preset]
    words += ["--budget", f"{minutes:g}m", *KEYS, *keys]
    print("$ quintet", *words, flush=True)
    if code := subprocess.run([sys.executable, "-m", "quintet", *words], check=False).returncode:
        sys.exit(code)


def measure(reference: str, folder: str, out: Path, min_samples: int, keys: Sequence[str] = ()) -> dict[str, Any]:
    """All metrics of a trained run; writes image grids to `out`."""
    pipeline = MusePipeline.from_pretrained(reference).with_keys(_sample_keys(keys))
    settings, tokenizer = pipeline.config, pipeline.frozen["tokenizer"].model
    training, held_out = real_images(settings, folder, tokenizer)
    start_time = time.monotonic()
    samples = generate(pipeline, both_styles(held_out.texts, min_samples))
    seconds = (time.monotonic() - start_time) / len(samples.texts)
    trained = generate(pipeline, choose_captions(training.texts, TRAINED))
    style = measure_style(training, held_out, {"samples": samples, "trained": trained})
    subjects, nearest_subjects = measure_subjects(tokenizer, training, {"samples": samples, "trained": trained})
    seen = training.with_mirrored(tokenizer) if settings.data.flip else training
    copies, neighbours = measure_copies(seen, held_out, samples)
    write_nearest(samples, seen, neighbours, out)
    write_samples(samples, [training.texts[index] for index in nearest_subjects["samples"]["features"]], out)
    write_trained(trained, training, nearest_subjects["trained"], out)
    return {
        **_environment(),
        "run": {
            "step": pipeline.origin.step if pipeline.origin else None,
            "parameters": count_parameters(pipeline.model),
            "seconds_per_sample": seconds,
            **{
                name: getattr(settings, name).model_dump(mode="json")
                for name in ("model", "train", "loss", "optim", "engine", "sample")
            },
            "flip": settings.data.flip,
        },
        "data": {
            "training": _counts(training),
            "held_out": _counts(held_out),
            "samples": _counts(samples),
            "trained": _counts(trained),
            "held_out_that_the_tokenizer_was_trained_on": trained_on(settings.tokenizer, held_out.files),
        },
        "style": style,
        "subjects": subjects,
        "copies": copies,
    }


def both_styles(captions: Sequence[str], minimum: int) -> list[str]:
    """At least `minimum` captions: every subject in every style; adjacent captions differ in style."""
    subjects = sorted({parts(caption)[0] for caption in captions})
    prompts = [f"{subject}, {style}" for subject in subjects for style in STYLES]
    return -(-minimum // len(prompts)) * prompts


def generate(pipeline: MusePipeline, texts: list[str]) -> Images:
    """One sample of each caption."""
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


def measure_style(training: Images, held_out: Images, samples: Mapping[str, Images]) -> dict[str, Any]:
    """Accuracies of the style classifier: on real images, on reconstructions, and on each group of samples."""
    start_time = time.monotonic()
    classifier = train_classifier(training.images, training.styles, len(STYLES))
    seconds = time.monotonic() - start_time
    inputs = {
        "held_out": (held_out.images, held_out.styles),
        "held_out_reconstructions": (held_out.reconstructions, held_out.styles),
        "trained_reconstructions": (training.reconstructions, training.styles),
        **{name: (group.images, group.styles) for name, group in samples.items()},
    }
    accuracies = {name: accuracy(classifier, *pair, STYLES) for name, pair in inputs.items()}
    return {
        "bar": STYLE_TARGET,
        "bar_trained": TRAINED_TARGETS["style"],
        "classifier_seconds": seconds,
        **accuracies,
    }


def measure_subjects(
    tokenizer: Any, training: Images, samples: Mapping[str, Images]
) -> tuple[dict[str, Any], dict[str, dict[str, list[int]]]]:
    """How often the nearest training image has the captioned subject; the nearest images of each group of samples."""
    start_time = time.monotonic()
    features = train_features(training.images, training.reconstructions)
    seconds = time.monotonic() - start_time
    trained = samples["trained"]
    moved = training.of(trained.texts).images.roll((UNSEEN_SHIFT, UNSEEN_SHIFT), (-2, -1))
    groups = {
        "reconstructions": training.reconstructions,
        "reconstructions_of_moved": encode_and_decode(tokenizer, moved)[1],
        **{name: group.images for name, group in samples.items()},
    }
    found = {
        name: {
            "features": nearest_features(features, images, training.images),
            "pixels": nearest_images(images, training.images),
        }
        for name, images in groups.items()
    }
    texts = {
        "trained": trained.texts,
        # What a sample of any caption would reach: 0, unless one picture is the nearest of everything.
        "trained_with_other_captions": [*trained.texts[1:], *trained.texts[:1]],
        "reconstructions": training.texts,
        "reconstructions_of_moved": trained.texts,
    }
    metrics = {
        name: {
            measure: recognized(nearest, captions, training.texts)
            for measure, nearest in found[name.removesuffix("_with_other_captions")].items()
        }
        for name, captions in texts.items()
    }
    indices = {
        name: {measure: nearest.indices.tolist() for measure, nearest in found[name].items()} for name in samples
    }
    return {"bar": TRAINED_TARGETS["own_subject"], "features_seconds": seconds, **metrics}, indices


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


def table(results: Mapping[str, Any]) -> str:
    """The main metrics as a Markdown table."""
    style, copies, subjects = results["style"], results["copies"], results["subjects"]
    pixels, reconstructed, codes = (copies[name] for name in ("to_pictures", "to_reconstructions", "codes"))
    rows = [
        ("style accuracy: trained captions", style["trained"], f">= {TRAINED_TARGETS['style']:.0%}"),
        ("style accuracy: reconstructions of training images", style["trained_reconstructions"], ""),
        ("style accuracy: held-out captions", style["samples"], f">= {STYLE_TARGET:.0%}"),
        ("style accuracy: held-out images", style["held_out"], ""),
        ("style accuracy: reconstructions of held-out images", style["held_out_reconstructions"], ""),
    ]
    lines = ["| metric | measured | target or baseline |", "|---|---|---|"]
    for measure in ("features", "pixels"):
        own, limit, moved = (
            subjects[name][measure] for name in ("trained", "reconstructions", "reconstructions_of_moved")
        )
        lines.append(
            f"| trained captions: nearest by {measure} is the subject (the very picture) | "
            f"{own['own_subject']:.1%} ({own['own_picture']:.1%}) | >= {TRAINED_TARGETS['own_subject']:.0%}; "
            f"reconstructions {limit['own_subject']:.1%}, of moved pictures {moved['own_subject']:.1%} |"
        )
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
