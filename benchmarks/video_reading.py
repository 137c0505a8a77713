"""Speed of reading random clips: clips of 17 frames at 64 px per CPU second from 480p H.264 files, in one process.

`video_reading.py`. A video is a pan over colored noise with grain, 854 x 480 pixels, 30 frames per second, with the
default settings of x264. The number of frames to decode before a clip depends on the key-frame interval: phones write
one key frame per second, x264 one per 250 frames by default. Clips are read as in training, through `VideoFolder.load`
without cache: open, seek, decode, scale, crop. Clips of the dataset `motions` (WebP at 64 px) are read for comparison.
One thread.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import torch
from PIL import Image, ImageFilter

from quintet.common.rng import ItemRNG
from quintet.config import VideoDataConfig
from quintet.data.video import video_folder_splits
from quintet.synthetic.motions import make_motions
from side_by_side import HERE, write_facts

HEIGHT, WIDTH, RATE = 480, 854, 30
SIDE, FRAMES = 64, 17
KINDS = {"one key frame per second": 30, "one key frame per 250 frames": 250}


def write_pan(path: Path, frames: int, key_frames: int) -> None:
    rng = np.random.default_rng(0)
    blocks = np.kron(rng.integers(0, 256, (HEIGHT // 8 + 20, WIDTH // 8 + 20, 3)), np.ones((8, 8, 1))).astype(np.uint8)
    scene = np.asarray(Image.fromarray(blocks).filter(ImageFilter.GaussianBlur(3)), np.int16)
    grain = rng.integers(-4, 5, (HEIGHT + 16, WIDTH + 16, 1), np.int16)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=RATE)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        stream.options = {"crf": "23", "preset": "veryfast", "g": str(key_frames), "threads": "1"}
        for number in range(frames):
            top, left = (int(40 + 36 * part(number / pace)) for part, pace in ((np.sin, 20), (np.cos, 27)))
            shift = rng.integers(0, 16, 2)
            noise = grain[shift[0] : shift[0] + HEIGHT, shift[1] : shift[1] + WIDTH]
            image = np.clip(scene[top : top + HEIGHT, left : left + WIDTH] + noise, 0, 255).astype(np.uint8)
            frame = av.VideoFrame.from_ndarray(image)
            frame.pts, frame.time_base = number, Fraction(1, RATE)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def measure(folder: Path, clips: int, rounds: int) -> list[float]:
    """Clips per CPU second in each round."""
    config = VideoDataConfig(path=str(folder), frames=FRAMES, validation_fraction=0.0, memory_megabytes=0)
    dataset = video_folder_splits(config, (SIDE, SIDE)).train
    dataset.load(0, ItemRNG(1, [0], [0]))
    speeds = []
    for each in range(rounds):
        start_time = time.process_time()
        for number in range(clips):
            item = number % len(dataset)
            loaded = dataset.load(item, ItemRNG(0, [each * clips + number], [item]))
            assert loaded["videos"].shape == (3, FRAMES, SIDE, SIDE)
        speeds.append(clips / (time.process_time() - start_time))
    return speeds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=300, help="number of frames of each video")
    parser.add_argument("--clips", type=int, default=40, help="number of clips per round")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "video-reading.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    print("| file | clips per CPU second (min-max) |\n|---|---|")
    for kind in (*KINDS, "motions, 64 px"):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "data")
            if kind in KINDS:
                path.mkdir()
                write_pan(path / "video.mp4", arguments.frames, KINDS[kind])
            else:
                make_motions(path, num=20)
            size = sum(file.stat().st_size for file in path.rglob("*") if file.suffix in (".mp4", ".webp"))
            speeds = measure(path, arguments.clips, arguments.rounds)
        rows.append({"kind": kind, "bytes": size, "clips_per_cpu_second": speeds})
        print(f"| {kind} | {statistics.fmean(speeds):.0f} ({min(speeds):.0f}-{max(speeds):.0f}) |", flush=True)
    sizes = {"frames": arguments.frames, "clip_frames": FRAMES, "side": SIDE}
    write_facts(arguments.out, {**sizes, "files": rows})
    print(f"raw results: {arguments.out}")


if __name__ == "__main__":
    main()
