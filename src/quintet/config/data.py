"""Data sections of a configuration: keys of all recipes, and the additional keys of each medium."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from quintet.config.section import Section


class DataConfig(Section):
    path: str | None = Field(
        None,
        description="Folder of media files or shards, or the URL of shards; null if a Python dataset is passed.",
    )
    validation_path: str | None = Field(
        None, description="Separate folder of validation data; null splits the validation set off `data.path`."
    )
    validation_fraction: float = Field(
        0.05, ge=0, lt=1, description="Fraction of the data used for validation; 0 validates on the training items."
    )
    validation_group: str | None = Field(
        None,
        description="Regular expression: files with the same first group are in the same split; null ignores names.",
    )
    split_seed: int = Field(42, ge=0, description="Seed of the validation split.")
    shuffle_shards: int | None = Field(
        None,
        ge=1,
        description="Shuffle within windows of N shards, for shards that are downloaded; null shuffles all items.",
    )
    cache_dir: str | None = Field(
        None, description="Folder of caches (tokens, indexes, copies of shards); null uses the user's cache folder."
    )
    num_workers: int = Field(
        2, ge=0, le=1024, description="Number of data loading processes; 0 loads data in the training process."
    )


class EncodingConfig(Section):
    """Keys of generators: how frozen models encode the data for the token cache."""

    encode_batch_size: int = Field(
        32,
        ge=1,
        le=128,  # with more, a shard of the cache has too few batches for several workers
        description="Number of items that are encoded at a time for the token cache; a few codes may depend on it.",
    )
    encode_precision: Literal["fp32", "bf16"] = Field(
        "fp32",
        description="Precision in which items are encoded for the token cache; bf16 is faster on GPUs and changes some "
        "codes.",
    )


class ImageDataConfig(DataConfig):
    """Keys of image data."""

    flip: bool = Field(True, description="Flip half of the training images horizontally.")
    random_crop: bool = Field(False, description="Crop training images at a random position; false crops the centre.")
    truncated: Literal["skip", "use"] = Field(
        "skip", description="Handling of truncated image files: skip them, or use the part that can be decoded."
    )
    memory_megabytes: int = Field(
        512, ge=0, description="Memory for decoded images in each process, in MiB; 0 disables this cache."
    )


class MeshDataConfig(DataConfig):
    """Keys of mesh data."""

    max_faces: int = Field(
        800, gt=0, description="Maximum number of faces of a mesh; larger meshes are decimated or skipped."
    )
    decimate: bool = Field(
        True, description="Decimate triangle meshes with more than `data.max_faces` faces; false skips them."
    )
    augment: bool = Field(
        True,
        description="Randomly scale (0.75 to 1.25) and translate training meshes along each axis, those of folders and "
        "of Python data sets; quads of Python data sets and precomputed codes are used as they are.",
    )
    memory_megabytes: int = Field(
        512, ge=0, description="Memory for decoded meshes in each process, in MiB; 0 disables this cache."
    )


class AudioDataConfig(DataConfig):
    """Keys of audio data. Training uses windows of a clip; everything else uses full clips."""

    seconds: float = Field(
        2.0, gt=0, description="Length of a training window, in seconds; shorter clips are used in full."
    )
    loudness: float | None = Field(
        None,
        ge=-60,
        le=0,
        description="Normalise every window to this loudness, in LUFS (for example -23); null leaves it unchanged.",
    )
    memory_megabytes: int = Field(
        512, ge=0, description="Memory for decoded clips in each process, in MiB; 0 disables this cache."
    )


class VideoDataConfig(DataConfig):
    """Keys of video data."""

    frames: int = Field(17, gt=0, description="Number of frames of a clip; shorter files are used in full.")
    stride: int = Field(1, gt=0, description="Use every N-th frame.")
    fps: float | None = Field(
        None,
        gt=0,
        description="Resample clips to this frame rate by their timestamps; null uses every `data.stride`-th frame.",
    )
    flip: bool = Field(
        False,
        description="Flip half of the training clips horizontally; unsuitable for captions that say left or right.",
    )
    random_crop: bool = Field(False, description="Crop training clips at a random position; false crops the centre.")
    memory_megabytes: int = Field(
        512, ge=0, description="Memory for decoded clips in each process, in MiB; 0 disables this cache."
    )

    @model_validator(mode="after")
    def _check_frame_rate(self) -> VideoDataConfig:
        if self.fps is not None and self.stride != 1:
            raise ValueError(f"data.fps={self.fps:g} and data.stride={self.stride} contradict each other; set one")
        return self


class WindowedAudioDataConfig(AudioDataConfig):
    """Keys of audio data of recipes that split a long clip into several windows."""

    stride: float = Field(1.0, gt=0, description="Hop between two windows of a validation clip, in seconds.")
    max_windows: int = Field(
        16,
        gt=0,
        description="Maximum number of windows of a validation clip; longer clips use this many, evenly spaced.",
    )
