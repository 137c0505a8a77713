"""Compares a trained codec with Opus on the same unseen clips: `benchmarks/codec_opus.py RUN [--kbps 6] [--num 200]`.

Both are measured with the metrics of `eval.json`. Opus is measured at the best of all shifts within 20 ms; its bitrate
is that of its packets, without the container.
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
    """A wave (samples,) encoded and decoded by Opus, and the number of bits."""
    import av

    opus_rate = min((each for each in OPUS_RATES if each >= rate), default=OPUS_RATES[-1])
    samples = resample(wave.numpy()[None], rate, opus_rate)
    integers = np.clip(np.rint(samples * 32767), -32768, 32767).astype(np.int16)
    path = folder / "clip.ogg"
    bits = 0.0
    with av.open(str(path), "w", format="ogg") as container:
        stream = container.add_stream("libopus", rate=opus_rate, layout="mono")
        stream.bit_rate = round(kbps * 1000)
        frame = av.AudioFrame.from_ndarray(integers, format="s16", layout="mono")
        frame.sample_rate = opus_rate
        for each in (frame, None):
            for packet in stream.encode(each):
                bits += 8 * packet.size
                container.mux(packet)
    return aligned(torch.from_numpy(read_audio(path, rate)[0]), wave, round(SHIFT_SECONDS * rate)), bits


def aligned(decoded: Tensor, wave: Tensor, max_shift: int) -> Tensor:
    """The decoded wave, shifted to the best correlation with the original, and truncated or padded to its length."""
    padded = F.pad(decoded, (max_shift, max_shift + max(0, len(wave) - len(decoded))))
    scores = F.conv1d(padded[None, None, : len(wave) + 2 * max_shift], wave[None, None])[0, 0]
    shift = int(scores.argmax())
    return padded[shift : shift + len(wave)]


def metrics_of(decoded: Tensor, wave: Tensor, rate: int) -> dict[str, float]:
    rows, others, length = decoded[None], wave[None], torch.tensor([len(wave)])
    metrics = {
        "mel_distance": float(eval_mel_distance(rate)(rows, others, length)),
        "stft_distance": float(stft_distance(rows, others, length)),
    }
    return {**metrics, "si_sdr": float(si_sdr(rows, others))} if audible(others, length) else metrics


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
            decoded = {"ours": round_trip(codec, waves, lengths)[1][0]}
            decoded["opus"], clip_bits = through_opus(waves[0], codec.sample_rate, kbps, Path(folder))
            bits, seconds = bits + clip_bits, seconds + waves.shape[1] / codec.sample_rate
            for name, wave in decoded.items():
                rows[name].append(metrics_of(wave, waves[0], codec.sample_rate))
                # The metadata of synthetic clips tells which have a pitch.
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
    results = compare(options.run, options.data, options.kbps, options.num)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
