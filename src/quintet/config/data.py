"""Sections of keys about data: what is common to all recipes, and what each medium adds."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from quintet.config.section import Section


class DataConfig(Section):
    path: str | None = Field(
        None,
        description="Folder of media or of shards, or an address of shards; none when Python handed over a data set.",
    )
    validation_path: str | None = Field(None, description="A folder of its own for validation, instead of a split.")
    validation_fraction: float = Field(
        0.05, ge=0, lt=1, description="Share split off for validation; 0 validates on the training items."
    )
    validation_group: str | None = Field(
        None, description="Regular expression; files with the same first group stay on one side of the split."
    )
    split_seed: int = Field(42, ge=0, description="Seed of the validation split.")
    shuffle_shards: int | None = Field(
        None, ge=1, description="Shuffle so many shards at a time, for data that is copied on the way; none: all items."
    )
    cache_dir: str | None = Field(
        None, description="Folder of caches (codes, indexes and copies of shards); none: the user's own cache folder."
    )
    num_workers: int = Field(
        2, ge=0, description="Processes that read data beside the training; 0 reads in the training process."
    )


class ImageDataConfig(DataConfig):
    """The data of recipes that read pictures."""

    flip: bool = Field(True, description="Mirror half of the training pictures.")
    random_crop: bool = Field(False, description="Crop training pictures at random places instead of the centre.")
    truncated: Literal["skip", "use"] = Field("skip", description="What to do with files that end too early.")
    memory_megabytes: int = Field(512, ge=0, description="Decoded pictures each process keeps; 0: none.")


class MeshDataConfig(DataConfig):
    """The data of recipes that read meshes."""

    max_faces: int = Field(800, gt=0, description="Faces of the largest mesh that is used.")
    decimate: bool = Field(False, description="Reduce meshes of more faces instead of leaving them out.")
    augment: bool = Field(True, description="Stretch (0.75 to 1.25) and shift training meshes along each axis.")
    memory_megabytes: int = Field(512, ge=0, description="Meshes each process keeps once read; 0: none.")


class AudioDataConfig(DataConfig):
    """The data of recipes that read sound; outside training clips come whole."""

    seconds: float = Field(2.0, gt=0, description="Length of a window; what is shorter is taken whole.")
    loudness: float | None = Field(
        None, ge=-60, le=0, description="Bring every window to this loudness in LUFS (-23, say); none: as it is."
    )
    memory_megabytes: int = Field(512, ge=0, description="Decoded clips each process keeps; 0: none.")


class VideoDataConfig(DataConfig):
    """The data of recipes that read video."""

    frames: int = Field(17, gt=0, description="Frames of a clip; of a file that has fewer all are taken.")
    stride: int = Field(1, gt=0, description="Every which frame of a file is taken.")
    fps: float | None = Field(
        None, gt=0, description="Frames a second by the time stamps of a file, instead of every `data.stride`-th."
    )
    flip: bool = Field(False, description="Mirror half of the training clips; not for captions that say left or right.")
    random_crop: bool = Field(False, description="Crop training clips at random places instead of the centre.")
    memory_megabytes: int = Field(512, ge=0, description="Decoded clips each process keeps; 0: none.")

    @model_validator(mode="after")
    def _one_pace(self) -> VideoDataConfig:
        if self.fps is not None and self.stride != 1:
            raise ValueError(f"data.fps={self.fps:g} and data.stride={self.stride} contradict each other; set one")
        return self


class WindowedAudioDataConfig(AudioDataConfig):
    """The data of recipes to which a long clip is several windows."""

    stride: float = Field(
        1.0, gt=0, description="Seconds from one window of a long clip to the next, where clips are validated whole."
    )
    max_windows: int = Field(16, gt=0, description="Windows of one validation clip; of longer ones evenly fewer.")
