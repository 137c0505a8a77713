"""A trained codec beside Opus on the same unseen clips: `benchmarks/codec_opus.py RUN [--kbps 6] [--num 200]`.

Both are judged by the same figures as in `eval.json`. Of Opus the best of all shifts within 20 ms counts, and its
bitrate is that of its packets, without the container.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from quintet.common.inference import inference_mode
from quintet.evaluation import EvalSession
from quintet.families.audio_codec.measures import audible, eval_mel_distance, si_sdr, stft_distance
from quintet.families.audio_codec.pipeline import AudioCodecPipeline
from quintet.families.audio_codec.task import AudioCodecTask, round_trip
from quintet.media.audio import read_audio, resample

OPUS_RATES = (8000, 12_000, 16_000, 24_000, 48_000)
SHIFT_SECONDS = 0.02
RESULTS = Path(__file__).parent / "results" / "codec-opus.json"


def through_opus(wave: Tensor, rate: int, kbps: float, folder: Path) -> tuple[Tensor, float]:
    """A wave (samples) after Opus, and the bits it took."""
    import av

    own = min((each for each in OPUS_RATES if each >= rate), default=OPUS_RATES[-1])
    samples = resample(wave.numpy()[None], rate, own)
    whole = np.clip(np.rint(samples * 32767), -32768, 32767).astype(np.int16)
    path = folder / "clip.ogg"
    bits = 0.0
    with av.open(str(path), "w", format="ogg") as container:
        stream = container.add_stream("libopus", rate=own, layout="mono")
        stream.bit_rate = round(kbps * 1000)
        frame = av.AudioFrame.from_ndarray(whole, format="s16", layout="mono")
        frame.sample_rate = own
        for each in (frame, None):
            for packet in stream.encode(each):
                bits += 8 * packet.size
                container.mux(packet)
    return aligned(torch.from_numpy(read_audio(path, rate)[0]), wave, round(SHIFT_SECONDS * rate)), bits


def aligned(made: Tensor, wave: Tensor, most: int) -> Tensor:
    """What was made, shifted to where it resembles the wave most, and cut or padded to its length."""
    fitted = F.pad(made, (most, most + max(0, len(wave) - len(made))))
    scores = F.conv1d(fitted[None, None, : len(wave) + 2 * most], wave[None, None])[0, 0]
    shift = int(scores.argmax())
    return fitted[shift : shift + len(wave)]


def figures(made: Tensor, wave: Tensor, rate: int) -> dict[str, float]:
    rows, others, length = made[None], wave[None], torch.tensor([len(wave)])
    found = {
        "mel_distance": float(eval_mel_distance(rate)(rows, others, length)),
        "stft_distance": float(stft_distance(rows, others, length)),
    }
    return {**found, "si_sdr": float(si_sdr(rows, others))} if audible(others, length) else found


def means(rows: list[dict[str, float]]) -> dict[str, float]:
    names = sorted({name for row in rows for name in row})
    return {name: float(np.mean([row[name] for row in rows if name in row])) for name in names}


def compare(run: str, data: str | None, kbps: float, num: int) -> dict[str, Any]:
    pipeline = AudioCodecPipeline.from_pretrained(run)
    session, codec = EvalSession.open(pipeline, data), pipeline.codec
    task = session.task
    assert isinstance(task, AudioCodecTask)
    count = min(num, len(session.loader.dataset))
    rows: dict[str, list[dict[str, float]]] = {"ours": [], "opus": []}
    pitched: dict[str, list[dict[str, float]]] = {"ours": [], "opus": []}
    bits = seconds = 0.0
    with inference_mode(pipeline.modules), tempfile.TemporaryDirectory() as folder:
        for item in range(count):
            batch = session.loader.single(item)
            waves, lengths = task.first_seconds(batch)
            made = {"ours": round_trip(codec, waves, lengths)[1][0]}
            made["opus"], spent = through_opus(waves[0], codec.sample_rate, kbps, Path(folder))
            bits, seconds = bits + spent, seconds + waves.shape[1] / codec.sample_rate
            for name, wave in made.items():
                rows[name].append(figures(wave, waves[0], codec.sample_rate))
                # Of the synthetic sounds it is known which have a pitch.
                if "metadata" in batch and batch["metadata"][0]["sound"]["register"] is not None:
                    pitched[name].append(rows[name][-1])
    rates = {"ours": codec.bitrate / 1000, "opus": bits / seconds / 1000}
    return {
        "clips": count,
        **{
            name: {
                "bitrate_kbps": rates[name],
                **means(rows[name]),
                **({"si_sdr_pitched": means(pitched[name])["si_sdr"]} if pitched[name] else {}),
            }
            for name in rows
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("--data")
    parser.add_argument("--kbps", type=float, default=6.0)
    parser.add_argument("--num", type=int, default=200)
    options = parser.parse_args()
    found = compare(options.run, options.data, options.kbps, options.num)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
