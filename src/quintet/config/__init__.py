"""The schema of a run: its sections, YAML, `key=value` overrides and the messages for wrong keys."""

from quintet.config.data import (
    AudioDataConfig,
    DataConfig,
    MeshDataConfig,
    PictureDataConfig,
    SoundDataConfig,
    VideoDataConfig,
)
from quintet.config.options import GenerateOptions, NegativePromptOptions
from quintet.config.run import (
    RESUMABLE,
    EMAConfig,
    EngineConfig,
    EvalConfig,
    OptimConfig,
    OptimizerConfig,
    PhaseOptimConfig,
    RunConfig,
    SampleConfig,
    TrainConfig,
    build,
    describe,
    differences,
    refuse_changes,
)
from quintet.config.section import Section, keys, validate
from quintet.config.tree import data_path, expand, flatten, parse_overrides, read_yaml

__all__ = [
    "RESUMABLE",
    "AudioDataConfig",
    "DataConfig",
    "EMAConfig",
    "EngineConfig",
    "EvalConfig",
    "GenerateOptions",
    "MeshDataConfig",
    "NegativePromptOptions",
    "OptimConfig",
    "OptimizerConfig",
    "PhaseOptimConfig",
    "PictureDataConfig",
    "RunConfig",
    "SampleConfig",
    "Section",
    "SoundDataConfig",
    "TrainConfig",
    "VideoDataConfig",
    "build",
    "data_path",
    "describe",
    "differences",
    "expand",
    "flatten",
    "keys",
    "parse_overrides",
    "read_yaml",
    "refuse_changes",
    "validate",
]
