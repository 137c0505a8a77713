"""Whether the seams between the windows of long clips can be heard: the spectral change at them.

`sound_seams.py RUN FOLDER`, where FOLDER is what `quintet sample RUN --seconds N --out FOLDER` wrote, with N above the
maximum of the model. The change of a clip from one codec frame to the next is the mean absolute difference of their
log-mel spectra (dB); printed are the changes at the first frames of new windows, relative to the median of the clip.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from quintet import SoundStormPipeline
from quintet.families.soundstorm.windows import window_starts
from quintet.media.audio import read_audio
from quintet.media.mel import LogMel


def changes(wave: npt.NDArray[np.float32], rate: int, hop: int) -> npt.NDArray[np.float64]:
    """Change of the spectrum at each frame, in dB."""
    powers = LogMel(rate, n_fft=hop, hop_length=hop, n_mels=40).power(torch.from_numpy(wave)).numpy()
    decibel = 10 * np.log10(np.maximum(powers, 1e-6 * powers.max()))
    return np.asarray(np.abs(np.diff(decibel, axis=1)).mean(0), np.float64)


def main(run: str, folder: Path) -> None:
    pipeline = SoundStormPipeline.from_pretrained(run)
    codec, window = pipeline.codec, pipeline.soundstorm.net.max_frames
    rows = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    found = []
    for row in rows:
        if not row["file"].endswith(".wav"):
            continue
        found_here = changes(read_audio(folder / row["file"])[0], codec.sample_rate, codec.hop)
        starts = window_starts(round(row["seconds"] * codec.frame_rate), window, row["settings"]["overlap"])
        seams = [start + window for start in starts[:-1]]
        relative = found_here[[seam - 1 for seam in seams]] / np.median(found_here)
        found += relative.tolist()
        print(f"{row['file']} {row['text']!r}: {', '.join(f'{each:.2f}' for each in relative)}")
    print(f"{len(found)} seams: mean {np.mean(found):.2f}, median {np.median(found):.2f}, largest {np.max(found):.2f}")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
