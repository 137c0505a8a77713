"""A codec and SoundStorm on real notes: `benchmarks/notes_codec.py FOLDER --out HOME [codec] [mulan] [storm] [...]`.

`codec` trains an audio codec on single notes of real instruments and measures the log-mel error on held-out notes in
dB, compared with the mean spectrum of each clip over time. `mulan` trains a MuLaN on the same notes and measures how
often the caption of a note is the nearest of twelve captions, one for each pitch class. `storm` trains SoundStorm with
that codec and that MuLaN (or with `--condition`), generates notes from the captions of held-out notes, and measures
their pitch class by autocorrelation. It is compared with chance, with the held-out notes and their reconstructions,
which show the accuracy of the measurement.

Notes are split by file name or, with `--by instrument`, so that no instrument is in both splits, as in
`notes_mulan.py`. 105 notes are soon memorized; there are two ways to add data: `--transpose` adds each training note at
every pitch class, and `--beside FOLDER` adds other clips to the training data of the codec. A part that exists already
is measured again, but not trained again.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from notes_data import SHIFTS, add_transposed, instrument_of, read_rows, split_notes, transposed, with_other_clips
from pitch import accuracy, captioned_class, pitch_class
from quintet import cli
from quintet.common.inference import inference_mode
from quintet.evaluation import EvalSession
from quintet.families.audio_codec.pipeline import AudioCodecPipeline
from quintet.families.audio_codec.task import AudioCodecTask, round_trip
from quintet.families.mulan.pipeline import MuLaNPipeline
from quintet.media.audio import read_audio
from quintet.media.mel import LogMel
from side_by_side import HERE, write_facts

DECIBEL = 10 / float(np.log(10))
"""Decibels per unit of natural logarithm of power."""
TARGET = 5.0
"""Maximum log-mel error in dB."""
BY = {"file": lambda row: str(row["file_name"]), "instrument": instrument_of}
PARTS = ("codec", "mulan", "storm")
FEW = 4
"""Number of quantizers that SoundStorm generates with the preset `small`."""
RATE = 16_000
"""Sampling rate at which generated notes are measured."""


def train(home: Path, recipe: str, name: str, keys: list[str], data: str = "data") -> float:
    """Train a run that does not exist yet; returns the CPU seconds of its training."""
    seconds_file = home / f"{name}-cpu-seconds.json"
    if not (home / name).exists():
        start_time = time.process_time()
        cli.call(["train", recipe, str(home / data), "--out", str(home / name), *keys])
        seconds_file.write_text(json.dumps(time.process_time() - start_time), encoding="utf-8")
    return float(json.loads(seconds_file.read_text(encoding="utf-8")))


# --- codec ----------------------------------------------------------------------------------------------------------


def log_mel_errors(decoded: Tensor, wave: Tensor, spectrogram: LogMel) -> tuple[float, float]:
    """Mean absolute error of log-mel spectra in dB: of the decoded clip, and of the mean spectrum over time."""
    output, target = spectrogram(decoded), spectrogram(wave)
    mean = target.mean(-1, keepdim=True)
    return (output - target).abs().mean().item() * DECIBEL, (mean - target).abs().mean().item() * DECIBEL


def measure_codec(run: Path, few: int = FEW) -> dict[str, Any]:
    """Metrics of complete held-out notes; also the pitch class with the first `few` quantizers alone."""
    pipeline = AudioCodecPipeline.from_pretrained(run)
    session, codec = EvalSession.open(pipeline), pipeline.codec
    task = session.task
    assert isinstance(task, AudioCodecTask)
    (spectrogram,) = task.eval_mel_distance.spectrograms
    assert isinstance(spectrogram, LogMel)
    errors, originals, reconstructions, coarse_reconstructions = [], [], [], []
    with inference_mode(pipeline.modules):
        for item in range(len(session.loader.dataset)):
            batch = session.loader.single(item)
            waves, lengths = task.first_seconds(batch)
            codes, decoded = round_trip(codec, waves, lengths)
            reconstruction = decoded[0]
            errors.append((batch.names[0], *log_mel_errors(reconstruction, waves[0], spectrogram)))
            expected = captioned_class(batch["texts"][0])
            if expected is not None:
                originals.append((expected, pitch_class(waves[0].numpy(), codec.sample_rate)))
                reconstructions.append((expected, pitch_class(reconstruction.numpy(), codec.sample_rate)))
                coarse = codec.decode(codes[..., :few])[0, : waves.shape[1]]
                coarse_reconstructions.append((expected, pitch_class(coarse.numpy(), codec.sample_rate)))
    ours, baseline = (float(np.mean([row[column] for row in errors])) for column in (1, 2))
    return {
        "notes": len(errors),
        "bitrate_kbps": codec.bitrate / 1000,
        "log_mel_error_db": ours,
        "item_mean_spectrum_db": baseline,
        "pitch_class_of_originals": accuracy(originals),
        "pitch_class_of_reconstructions": accuracy(reconstructions),
        "few_levels": few,
        "pitch_class_of_few_levels": accuracy(coarse_reconstructions),
        "each": errors,
    }


def show_codec(found: dict[str, Any]) -> None:
    worst = sorted(found["each"], key=lambda row: -row[1])[:5]
    print(f"{found['notes']} held-out notes, {found['bitrate_kbps']:.1f} kbit/s")
    print("| log-mel error on held-out notes | dB |\n|---|---|")
    print(f"| codec (target {TARGET:g}) | {found['log_mel_error_db']:.2f} |")
    print(f"| mean spectrum of each clip | {found['item_mean_spectrum_db']:.2f} |")
    print("largest errors: " + ", ".join(f"{name} {error:.2f}" for name, error, _ in worst))


# --- MuLaN ----------------------------------------------------------------------------------------------------------


def measure_mulan(run: Path) -> dict[str, Any]:
    """How often the nearest of twelve captions, one for each pitch class, is that of the held-out note."""
    pipeline = MuLaNPipeline.from_pretrained(run)
    session = EvalSession.open(pipeline)
    right = []
    with inference_mode(pipeline.modules):
        for item in range(len(session.loader.dataset)):
            batch = session.loader.single(item)
            caption = batch["texts"][0]
            if captioned_class(caption) is not None:
                texts = [transposed(caption, shift) for shift in (0, *SHIFTS)]
                scores = pipeline.embed_batch(batch) @ pipeline.embed_texts(texts).T
                right.append(int(scores.argmax()) == 0)
    return {"notes": len(right), "nearest_caption_of_twelve": float(np.mean(right))}


# --- SoundStorm -----------------------------------------------------------------------------------------------------


def measure_storm(home: Path, run: Path, num: int, seconds: float, keys: list[str]) -> dict[str, Any]:
    """Generate notes from the captions of held-out notes into HOME, and measure their pitch class."""
    rows = read_rows(home / "data")
    train_captions = {row["text"] for row in rows if row["split"] == "train"}
    held_out = {row["text"] for row in rows if row["split"] == "validation"}
    texts = sorted(text for text in held_out if captioned_class(text) is not None)
    out = home / f"made-{time.strftime('%H%M%S')}"
    options = [part for text in texts for part in ("--text", text)]
    cli.call(
        ["sample", str(run), *options, "--num", str(num), "--seconds", str(seconds), "--out", str(out), *keys]
    )  # fmt: skip
    lines = [json.loads(line) for line in (out / "samples.jsonl").read_text(encoding="utf-8").splitlines()]
    measured, of_new_captions = [], []
    for line in lines:
        if line["file"].endswith(".wav"):
            expected = captioned_class(line["text"])
            assert expected is not None
            wave = read_audio(out / line["file"], rate=RATE)[0]
            measured.append((expected, pitch_class(wave, RATE)))
            # A transposed note of the same instrument may have the caption of a held-out note.
            if line["text"] not in train_captions:
                of_new_captions.append(measured[-1])
    return {
        "captions": len(texts),
        "of_each": num,
        "made": str(out.name),
        "pitch_class": accuracy(measured),
        "pitch_class_of_captions_never_read": accuracy(of_new_captions),
    }


def show_pitch(found: dict[str, Any]) -> None:
    print("| pitch class matches the caption | clips | correct | without a pitch |\n|---|---|---|---|")
    rows = {
        "originals": found["codec"]["pitch_class_of_originals"],
        "reconstructions": found["codec"]["pitch_class_of_reconstructions"],
        f"reconstructions with {found['codec']['few_levels']} quantizers": found["codec"]["pitch_class_of_few_levels"],
    }
    if "storm" in found:
        rows["generated from captions"] = found["storm"]["pitch_class"]
        rows["generated from captions not in the training data"] = found["storm"]["pitch_class_of_captions_never_read"]
    for name, values in rows.items():
        print(f"| {name} | {values['clips']} | {values['right']:.1%} | {values['no_pitch']:.1%} |")
    print("| by chance | | 8.3% | |")


# --- command line ---------------------------------------------------------------------------------------------------


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("parts", nargs="*", default=["codec"], help=f"parts to run: {', '.join(PARTS)}")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--by", choices=list(BY), default="file", help="split by file or by instrument")
    parser.add_argument("--transpose", action="store_true", help="add each training note at every pitch class")
    parser.add_argument("--beside", type=Path, help="codec: folder of other clips to add to the training data")
    parser.add_argument("--steps", type=int, default=3000, help="number of steps of the codec")
    parser.add_argument("--init", help="codec: run to start from")
    parser.add_argument("--codec", nargs="*", default=[], metavar="KEY=VALUE", help="additional keys of the codec")
    parser.add_argument("--mulan-init", help="mulan: run to start from")
    parser.add_argument("--mulan-steps", type=int, default=150)
    parser.add_argument("--mulan", nargs="*", default=[], metavar="KEY=VALUE", help="additional keys of the MuLaN")
    parser.add_argument("--condition", type=Path, help="storm: trained MuLaN to use instead of the part mulan")
    parser.add_argument("--storm-steps", type=int, default=2000)
    parser.add_argument("--storm", nargs="*", default=[], metavar="KEY=VALUE", help="additional keys of SoundStorm")
    parser.add_argument("--sample", nargs="*", default=[], metavar="KEY=VALUE", help="storm: keys of sample.*")
    parser.add_argument("--num", type=int, default=4, help="storm: number of notes per caption")
    parser.add_argument("--seconds", type=float, default=2.0, help="storm: length of a note in training and sampling")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"{sorted(unknown)} are not in {', '.join(PARTS)}")
    return arguments


def prepare(arguments: argparse.Namespace) -> str:
    """Create the data of all parts; returns the name of the data folder of the codec."""
    home = arguments.out
    if not (home / "data").exists():
        split_notes(arguments.folder, home / "data", BY[arguments.by])
        if arguments.transpose:
            add_transposed(home / "data")
    if not arguments.beside:
        return "data"
    if not (home / "data-beside").exists():
        with_other_clips(home / "data", arguments.beside, home / "data-beside")
    return "data-beside"


def train_codec(arguments: argparse.Namespace, data: str) -> float:
    start = ["--init", arguments.init] if arguments.init else []
    steps = arguments.steps
    return train(arguments.out, "audio-codec", "codec", [
        "--preset", "small", *start, f"train.steps={steps}", f"loss.discriminator_start={steps * 4 // 5}",
        f"eval.every={max(1, steps // 6)}", f"sample.every={max(1, steps // 6)}",
        f"checkpoint.every={max(1, steps // 6)}", "eval.batch_size=4", *arguments.codec,
    ], data)  # fmt: skip


def train_mulan(arguments: argparse.Namespace) -> float:
    start = ["--init", arguments.mulan_init] if arguments.mulan_init else []
    steps = arguments.mulan_steps
    return train(arguments.out, "mulan", "mulan", [
        "--preset", "small", *start, f"train.steps={steps}", "train.batch_size=32", "optim.warmup_steps=50",
        f"eval.every={max(1, steps // 3)}", f"sample.every={steps}", f"checkpoint.every={max(1, steps // 3)}",
        "eval.batch_size=8", *arguments.mulan,
    ])  # fmt: skip


def train_storm(arguments: argparse.Namespace) -> float:
    home, steps = arguments.out, arguments.storm_steps
    return train(home, "soundstorm", "storm", [
        "--preset", "small", "--tokenizer", str(home / "codec"), "--condition",
        str(arguments.condition or home / "mulan"), f"data.seconds={arguments.seconds}", f"train.steps={steps}",
        f"eval.every={max(1, steps // 4)}", f"sample.every={max(1, steps // 4)}",
        f"checkpoint.every={max(1, steps // 4)}", "eval.num_generated=8", *arguments.storm,
    ])  # fmt: skip


def main() -> None:
    arguments = parse_arguments()
    home: Path = arguments.out
    spent = train_codec(arguments, prepare(arguments))
    results: dict[str, Any] = {"by": arguments.by, "codec_cpu_seconds": spent, "codec": measure_codec(home / "codec")}
    show_codec(results["codec"])
    if "mulan" in arguments.parts:
        results["mulan_cpu_seconds"] = train_mulan(arguments)
        results["mulan"] = measure_mulan(home / "mulan")
        print(
            f"nearest of twelve captions is correct: {results['mulan']['nearest_caption_of_twelve']:.1%} (chance 8.3%)"
        )
    if "storm" in arguments.parts:
        results["storm_cpu_seconds"] = train_storm(arguments)
        results["storm"] = measure_storm(home, home / "storm", arguments.num, arguments.seconds, arguments.sample)
    show_pitch(results)
    write_facts(HERE / "results" / f"notes-codec-{arguments.by}.json", results)


if __name__ == "__main__":
    main()
