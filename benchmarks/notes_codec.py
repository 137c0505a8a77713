"""A codec and SoundStorm on real notes: `benchmarks/notes_codec.py FOLDER --out HOME [codec] [storm] [options]`.

`codec` trains an audio codec on single notes of real instruments and asks of notes it never heard how far their log-mel
spectrum is from the original's, in dB, beside a baseline that knows each clip's own spectrum, but only its mean over
time. `storm` trains SoundStorm on that codec, told by the mulan that `--condition` names, makes notes from the captions
of the unheard ones, and measures their pitch class by autocorrelation: beside chance, and beside the unheard notes
themselves and what the codec makes of them, which say how far the measurement can be trusted.

Notes are split by the name of their file or, with `--by instrument`, so that no instrument is on both sides, as
`notes_mulan.py` does: a mulan from there goes with the latter. A part that is there already is measured again, not
trained again.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from notes_mulan import instrument_of, split_notes
from pitch import captioned_class, pitch_class, share_right
from quintet import cli, runs
from quintet.core.evaluate import looking
from quintet.families.audio_codec.recipe import AudioCodecRecipe, round_trip, tokenizer
from quintet.media.audio import read_audio
from quintet.media.mel import LogMel
from side_by_side import HERE, write_facts

DECIBEL = 10 / float(np.log(10))
"""Of a power whose natural logarithm is 1."""
BAR = 5.0
"""dB."""
BY = {"file": lambda row: str(row["file_name"]), "instrument": instrument_of}
PARTS = ("codec", "storm")
RATE = 16_000
"""At which made notes are measured."""


def train(home: Path, recipe: str, name: str, keys: list[str]) -> float:
    """Train what is not there yet; CPU seconds that it took."""
    began = time.process_time()
    if not (home / name).exists():
        cli.call(["train", recipe, str(home / "data"), "--out", str(home / name), *keys])
    return time.process_time() - began


# --- codec ----------------------------------------------------------------------------------------------------------


def log_mel_errors(made: Tensor, wave: Tensor, spectrogram: LogMel) -> tuple[float, float]:
    """Mean absolute difference of log-mel spectra in dB: of what was made, and of the clip's own mean over time."""
    found, wanted = spectrogram(made), spectrogram(wave)
    mean = wanted.mean(-1, keepdim=True)
    return (found - wanted).abs().mean().item() * DECIBEL, (mean - wanted).abs().mean().item() * DECIBEL


def measure_codec(run: Path) -> dict[str, Any]:
    """Over the unheard notes, each whole."""
    trained = runs.open_trained(str(run))
    looker, recipe = runs.Looker.open(trained), trained.recipe
    assert isinstance(recipe, AudioCodecRecipe)
    codec = tokenizer(trained.nets)
    (spectrogram,) = recipe.measured_mel.spectrograms
    assert isinstance(spectrogram, LogMel)
    errors, kept, remade = [], [], []
    with looking(trained.nets):
        for item in range(len(looker.loader.source)):
            batch = looker.loader.single(item)
            waves, lengths = recipe.opening(batch)
            made = round_trip(codec, waves, lengths)[1][0]
            errors.append((batch.names[0], *log_mel_errors(made, waves[0], spectrogram)))
            wanted = captioned_class(batch["texts"][0])
            if wanted is not None:
                kept.append((wanted, pitch_class(waves[0].numpy(), codec.rate)))
                remade.append((wanted, pitch_class(made.numpy(), codec.rate)))
    ours, baseline = (float(np.mean([row[column] for row in errors])) for column in (1, 2))
    return {
        "notes": len(errors),
        "bitrate_kbps": codec.bitrate / 1000,
        "log_mel_error_db": ours,
        "item_mean_spectrum_db": baseline,
        "pitch_class_of_originals": share_right(kept),
        "pitch_class_of_reconstructions": share_right(remade),
        "each": errors,
    }


def show_codec(found: dict[str, Any]) -> None:
    worst = sorted(found["each"], key=lambda row: -row[1])[:5]
    print(f"{found['notes']} unheard notes, {found['bitrate_kbps']:.1f} kbit/s")
    print("| log-mel error on unheard notes | dB |\n|---|---|")
    print(f"| the codec (bar {BAR:g}) | {found['log_mel_error_db']:.2f} |")
    print(f"| each clip's own mean spectrum | {found['item_mean_spectrum_db']:.2f} |")
    print("farthest: " + ", ".join(f"{name} {error:.2f}" for name, error, _ in worst))


# --- SoundStorm -----------------------------------------------------------------------------------------------------


def measure_storm(home: Path, run: Path, num: int, seconds: float, keys: list[str]) -> dict[str, Any]:
    """Notes made from the captions of the unheard ones; they stay in HOME with a picture of their spectrograms."""
    rows = [json.loads(line) for line in (home / "data" / "metadata.jsonl").read_text(encoding="utf-8").splitlines()]
    unheard = [row["text"] for row in rows if row["split"] == "validation"]
    texts = sorted({text for text in unheard if captioned_class(text) is not None})
    out = home / f"made-{time.strftime('%H%M%S')}"
    asked = [part for text in texts for part in ("--text", text)]
    cli.call(
        ["sample", str(run), *asked, "--num", str(num), "--seconds", str(seconds), "--out", str(out), *keys]
    )  # fmt: skip
    lines = [json.loads(line) for line in (out / "samples.jsonl").read_text(encoding="utf-8").splitlines()]
    heard = []
    for line in lines:
        if line["file"].endswith(".wav"):
            wanted = captioned_class(line["text"])
            assert wanted is not None
            wave = read_audio(out / line["file"], rate=RATE)[0]
            heard.append((wanted, pitch_class(wave, RATE)))
    return {"captions": len(texts), "of_each": num, "made": str(out.name), "pitch_class": share_right(heard)}


def show_pitch(found: dict[str, Any]) -> None:
    print("| pitch class as the caption says | clips | right | without a pitch |\n|---|---|---|---|")
    rows = {
        "originals": found["codec"]["pitch_class_of_originals"],
        "what the codec makes of them": found["codec"]["pitch_class_of_reconstructions"],
    }
    if "storm" in found:
        rows["made from captions"] = found["storm"]["pitch_class"]
    for name, shares in rows.items():
        print(f"| {name} | {shares['clips']} | {shares['right']:.1%} | {shares['no_pitch']:.1%} |")
    print("| by chance | | 8.3% | |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("parts", nargs="*", default=["codec"], help=f"of {', '.join(PARTS)}")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--by", choices=list(BY), default="file", help="what the split goes by")
    parser.add_argument("--steps", type=int, default=3000, help="of the codec")
    parser.add_argument("--init", help="codec: a run to start from")
    parser.add_argument("--codec", nargs="*", default=[], metavar="KEY=VALUE", help="more keys of the codec")
    parser.add_argument("--condition", help="storm: the trained mulan")
    parser.add_argument("--storm-steps", type=int, default=2000)
    parser.add_argument("--storm-init", help="storm: a run to start from")
    parser.add_argument("--storm", nargs="*", default=[], metavar="KEY=VALUE", help="more keys of SoundStorm")
    parser.add_argument("--sample", nargs="*", default=[], metavar="KEY=VALUE", help="storm: keys of sample.*")
    parser.add_argument("--num", type=int, default=4, help="storm: notes made of each caption")
    parser.add_argument("--seconds", type=float, default=2.0, help="storm: length of a note, trained on and made")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"{sorted(unknown)} are none of {', '.join(PARTS)}")
    home = arguments.out
    if not (home / "data").exists():
        split_notes(arguments.folder, home / "data", BY[arguments.by])

    start = ["--init", arguments.init] if arguments.init else []
    steps = arguments.steps
    spent = train(home, "audio-codec", "codec", [
        "--preset", "small", *start, f"train.steps={steps}", f"loss.discriminator_start={steps * 4 // 5}",
        f"eval.every={max(1, steps // 6)}", f"sample.every={max(1, steps // 6)}",
        f"checkpoint.every={max(1, steps // 6)}", "eval.batch_size=4", *arguments.codec,
    ])  # fmt: skip
    found: dict[str, Any] = {"by": arguments.by, "codec_cpu_seconds": spent, "codec": measure_codec(home / "codec")}
    show_codec(found["codec"])

    if "storm" in arguments.parts:
        if not (home / "storm").exists() and arguments.condition is None:
            parser.error("storm needs --condition RUN, a mulan")
        start = ["--init", arguments.storm_init] if arguments.storm_init else []
        steps = arguments.storm_steps
        found["storm_cpu_seconds"] = train(home, "soundstorm", "storm", [
            "--preset", "small", *start, "--tokenizer", str(home / "codec"), "--condition", str(arguments.condition),
            f"data.seconds={arguments.seconds}", f"train.steps={steps}", f"eval.every={max(1, steps // 4)}",
            f"sample.every={max(1, steps // 4)}", f"checkpoint.every={max(1, steps // 4)}", "eval.generated=8",
            *arguments.storm,
        ])  # fmt: skip
        found["storm"] = measure_storm(home, home / "storm", arguments.num, arguments.seconds, arguments.sample)
    show_pitch(found)
    write_facts(HERE / "results" / f"notes-codec-{arguments.by}.json", found)


if __name__ == "__main__":
    main()
