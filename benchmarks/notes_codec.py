"""A codec and SoundStorm on real notes: `benchmarks/notes_codec.py FOLDER --out HOME [codec] [mulan] [storm] [...]`.

`codec` trains an audio codec on single notes of real instruments and asks of notes it never heard how far their log-mel
spectrum is from the original's, in dB, beside a baseline that knows each clip's own spectrum, but only its mean over
time. `mulan` trains a MuLaN on the same notes and asks which of twelve captions, one for each pitch class, is nearest
to a note. `storm` trains SoundStorm on that codec, told by that mulan or the one that `--condition` names, makes notes
from the captions of the unheard ones, and measures their pitch class by autocorrelation: beside chance, and beside the
unheard notes themselves and what the codec makes of them, which say how far the measurement can be trusted.

Notes are split by the name of their file or, with `--by instrument`, so that no instrument is on both sides, as
`notes_mulan.py` does. 105 notes are soon learned by heart, so there are two ways to more: `--transpose` adds each
training note at every pitch class, and `--beside FOLDER` lets the codec hear other sounds as well. A part that is there
already is measured again, not trained again.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from notes_data import SHIFTS, add_transposed, instrument_of, read_rows, split_notes, transposed, with_sounds_beside
from pitch import captioned_class, pitch_class, share_right
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
"""Of a power whose natural logarithm is 1."""
BAR = 5.0
"""dB."""
BY = {"file": lambda row: str(row["file_name"]), "instrument": instrument_of}
PARTS = ("codec", "mulan", "storm")
FEW = 4
"""Levels of the codes, the first, that SoundStorm makes at the preset `small`."""
RATE = 16_000
"""At which made notes are measured."""


def train(home: Path, recipe: str, name: str, keys: list[str], data: str = "data") -> float:
    """Train what is not there yet; CPU seconds that it took, now or then."""
    kept = home / f"{name}-cpu-seconds.json"
    if not (home / name).exists():
        began = time.process_time()
        cli.call(["train", recipe, str(home / data), "--out", str(home / name), *keys])
        kept.write_text(json.dumps(time.process_time() - began), encoding="utf-8")
    return float(json.loads(kept.read_text(encoding="utf-8")))


# --- codec ----------------------------------------------------------------------------------------------------------


def log_mel_errors(made: Tensor, wave: Tensor, spectrogram: LogMel) -> tuple[float, float]:
    """Mean absolute difference of log-mel spectra in dB: of what was made, and of the clip's own mean over time."""
    found, wanted = spectrogram(made), spectrogram(wave)
    mean = wanted.mean(-1, keepdim=True)
    return (found - wanted).abs().mean().item() * DECIBEL, (mean - wanted).abs().mean().item() * DECIBEL


def measure_codec(run: Path, few: int = FEW) -> dict[str, Any]:
    """Over the unheard notes, each whole; their pitch class also by the first few levels of their codes alone."""
    pipeline = AudioCodecPipeline.from_pretrained(run)
    session, codec = EvalSession.open(pipeline), pipeline.codec
    task = session.task
    assert isinstance(task, AudioCodecTask)
    (spectrogram,) = task.eval_mel_distance.spectrograms
    assert isinstance(spectrogram, LogMel)
    errors, kept, remade, remade_of_few = [], [], [], []
    with inference_mode(pipeline.modules):
        for item in range(len(session.loader.dataset)):
            batch = session.loader.single(item)
            waves, lengths = task.first_seconds(batch)
            codes, made = round_trip(codec, waves, lengths)
            made = made[0]
            errors.append((batch.names[0], *log_mel_errors(made, waves[0], spectrogram)))
            wanted = captioned_class(batch["texts"][0])
            if wanted is not None:
                kept.append((wanted, pitch_class(waves[0].numpy(), codec.sample_rate)))
                remade.append((wanted, pitch_class(made.numpy(), codec.sample_rate)))
                coarse = codec.decode(codes[..., :few])[0, : waves.shape[1]]
                remade_of_few.append((wanted, pitch_class(coarse.numpy(), codec.sample_rate)))
    ours, baseline = (float(np.mean([row[column] for row in errors])) for column in (1, 2))
    return {
        "notes": len(errors),
        "bitrate_kbps": codec.bitrate / 1000,
        "log_mel_error_db": ours,
        "item_mean_spectrum_db": baseline,
        "pitch_class_of_originals": share_right(kept),
        "pitch_class_of_reconstructions": share_right(remade),
        "few_levels": few,
        "pitch_class_of_few_levels": share_right(remade_of_few),
        "each": errors,
    }


def show_codec(found: dict[str, Any]) -> None:
    worst = sorted(found["each"], key=lambda row: -row[1])[:5]
    print(f"{found['notes']} unheard notes, {found['bitrate_kbps']:.1f} kbit/s")
    print("| log-mel error on unheard notes | dB |\n|---|---|")
    print(f"| the codec (bar {BAR:g}) | {found['log_mel_error_db']:.2f} |")
    print(f"| each clip's own mean spectrum | {found['item_mean_spectrum_db']:.2f} |")
    print("farthest: " + ", ".join(f"{name} {error:.2f}" for name, error, _ in worst))


# --- MuLaN ----------------------------------------------------------------------------------------------------------


def measure_mulan(run: Path) -> dict[str, Any]:
    """Unheard notes: is the nearest of their own caption and those of the eleven other pitch classes their own?"""
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
    """Notes made from the captions of the unheard ones; they stay in HOME with a picture of their spectrograms."""
    rows = read_rows(home / "data")
    read = {row["text"] for row in rows if row["split"] == "train"}
    unheard = {row["text"] for row in rows if row["split"] == "validation"}
    texts = sorted(text for text in unheard if captioned_class(text) is not None)
    out = home / f"made-{time.strftime('%H%M%S')}"
    asked = [part for text in texts for part in ("--text", text)]
    cli.call(
        ["sample", str(run), *asked, "--num", str(num), "--seconds", str(seconds), "--out", str(out), *keys]
    )  # fmt: skip
    lines = [json.loads(line) for line in (out / "samples.jsonl").read_text(encoding="utf-8").splitlines()]
    heard, of_new_captions = [], []
    for line in lines:
        if line["file"].endswith(".wav"):
            wanted = captioned_class(line["text"])
            assert wanted is not None
            wave = read_audio(out / line["file"], rate=RATE)[0]
            heard.append((wanted, pitch_class(wave, RATE)))
            # A transposed note of the same instrument may have the caption of an unheard one.
            if line["text"] not in read:
                of_new_captions.append(heard[-1])
    return {
        "captions": len(texts),
        "of_each": num,
        "made": str(out.name),
        "pitch_class": share_right(heard),
        "pitch_class_of_captions_never_read": share_right(of_new_captions),
    }


def show_pitch(found: dict[str, Any]) -> None:
    print("| pitch class as the caption says | clips | right | without a pitch |\n|---|---|---|---|")
    rows = {
        "originals": found["codec"]["pitch_class_of_originals"],
        "what the codec makes of them": found["codec"]["pitch_class_of_reconstructions"],
        f"the same of {found['codec']['few_levels']} levels": found["codec"]["pitch_class_of_few_levels"],
    }
    if "storm" in found:
        rows["made from captions"] = found["storm"]["pitch_class"]
        rows["the same, of captions never read"] = found["storm"]["pitch_class_of_captions_never_read"]
    for name, shares in rows.items():
        print(f"| {name} | {shares['clips']} | {shares['right']:.1%} | {shares['no_pitch']:.1%} |")
    print("| by chance | | 8.3% | |")


# --- all of it ------------------------------------------------------------------------------------------------------


def asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("parts", nargs="*", default=["codec"], help=f"of {', '.join(PARTS)}")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--by", choices=list(BY), default="file", help="what the split goes by")
    parser.add_argument("--transpose", action="store_true", help="add each training note at every pitch class")
    parser.add_argument("--beside", type=Path, help="codec: a folder of other sounds, as many of which it hears too")
    parser.add_argument("--steps", type=int, default=3000, help="of the codec")
    parser.add_argument("--init", help="codec: a run to start from")
    parser.add_argument("--codec", nargs="*", default=[], metavar="KEY=VALUE", help="more keys of the codec")
    parser.add_argument("--mulan-init", help="mulan: a run to start from")
    parser.add_argument("--mulan-steps", type=int, default=150)
    parser.add_argument("--mulan", nargs="*", default=[], metavar="KEY=VALUE", help="more keys of the mulan")
    parser.add_argument("--condition", type=Path, help="storm: a trained mulan instead of the part mulan")
    parser.add_argument("--storm-steps", type=int, default=2000)
    parser.add_argument("--storm", nargs="*", default=[], metavar="KEY=VALUE", help="more keys of SoundStorm")
    parser.add_argument("--sample", nargs="*", default=[], metavar="KEY=VALUE", help="storm: keys of sample.*")
    parser.add_argument("--num", type=int, default=4, help="storm: notes made of each caption")
    parser.add_argument("--seconds", type=float, default=2.0, help="storm: length of a note, trained on and made")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"{sorted(unknown)} are none of {', '.join(PARTS)}")
    return arguments


def prepare(arguments: argparse.Namespace) -> str:
    """The data of all parts, and the name of the codec's own."""
    home = arguments.out
    if not (home / "data").exists():
        split_notes(arguments.folder, home / "data", BY[arguments.by])
        if arguments.transpose:
            add_transposed(home / "data")
    if not arguments.beside:
        return "data"
    if not (home / "data-beside").exists():
        with_sounds_beside(home / "data", arguments.beside, home / "data-beside")
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
    arguments = asked()
    home: Path = arguments.out
    spent = train_codec(arguments, prepare(arguments))
    found: dict[str, Any] = {"by": arguments.by, "codec_cpu_seconds": spent, "codec": measure_codec(home / "codec")}
    show_codec(found["codec"])
    if "mulan" in arguments.parts:
        found["mulan_cpu_seconds"] = train_mulan(arguments)
        found["mulan"] = measure_mulan(home / "mulan")
        print(f"nearest of twelve captions: right of {found['mulan']['nearest_caption_of_twelve']:.1%} (chance 8.3%)")
    if "storm" in arguments.parts:
        found["storm_cpu_seconds"] = train_storm(arguments)
        found["storm"] = measure_storm(home, home / "storm", arguments.num, arguments.seconds, arguments.sample)
    show_pitch(found)
    write_facts(HERE / "results" / f"notes-codec-{arguments.by}.json", found)


if __name__ == "__main__":
    main()
