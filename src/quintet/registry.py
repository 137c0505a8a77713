"""Owns the registry: recipe name -> where it lives. One line a recipe; nothing is imported until it is asked for."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from quintet import config as configs
from quintet.config import RunConfig
from quintet.errors import UsageError

if TYPE_CHECKING:
    from quintet.synthetic.judges import Judge
    from quintet.training.task import Task


@dataclass(frozen=True)
class Ready:
    """A model of a recipe that has nothing to learn. It is named where a run or an exported folder could stand."""

    keys: Mapping[str, Any]
    """What its configuration is, beside the defaults."""
    choice: str
    """The key that `NAME:VALUE` sets."""


@dataclass(frozen=True)
class RecipeEntry:
    """Where a family's parts live; names are looked up in its `config.py`, `task.py`, `model.py`, `trainer.py`."""

    family: str
    config: str
    task: str
    models: tuple[str, ...]
    trainer: str
    summary: str
    needs: str
    ready: Mapping[str, Ready] = field(default_factory=dict)

    def config_class(self) -> type[RunConfig]:
        """Without torch."""
        return self._load("config", self.config)  # type: ignore[no-any-return]

    def task_class(self) -> type[Task[Any]]:
        return self._load("task", self.task)  # type: ignore[no-any-return]

    def public_names(self) -> Mapping[str, str]:
        """What `from quintet import …` offers of this family, each with its module."""
        module = f"quintet.families.{self.family}"
        return {**dict.fromkeys(self.models, f"{module}.model"), self.trainer: f"{module}.trainer"}

    def _load(self, module: str, name: str) -> Any:
        return getattr(import_module(f"quintet.families.{self.family}.{module}"), name)


RECIPES: Mapping[str, RecipeEntry] = {
    "vqgan": RecipeEntry(
        family="vqgan",
        config="VQGanConfig",
        task="VQGanTask",
        models=("VQGanVAE",),
        trainer="VQGanVAETrainer",
        summary="image tokenizer: pictures to a grid of codes and back",
        needs="a folder of pictures",
    ),
    "muse": RecipeEntry(
        family="muse",
        config="MuseConfig",
        task="MuseTask",
        models=("MaskGit", "TokenCritic", "Muse", "Stage"),
        trainer="MuseTrainer",
        summary="text to image: a masked transformer over a tokenizer's codes",
        needs="a folder of captioned pictures, and --tokenizer",
    ),
    "mulan": RecipeEntry(
        family="mulan",
        config="MuLaNConfig",
        task="MuLaNTask",
        models=("MuLaN", "AudioSpectrogramTransformer", "TextTransformer", "MuLaNEmbedQuantizer"),
        trainer="MuLaNTrainer",
        summary="sound and text in one space: find clips by words",
        needs="a folder of captioned sounds",
    ),
    "cvivit": RecipeEntry(
        family="cvivit",
        config="CViViTConfig",
        task="CViViTTask",
        models=("CViViT",),
        trainer="CViViTTrainer",
        summary="video tokenizer: clips and pictures to codes, moment by moment, and back",
        needs="a folder of videos",
    ),
    "phenaki": RecipeEntry(
        family="phenaki",
        config="PhenakiConfig",
        task="PhenakiTask",
        models=("MaskGit", "TokenCritic", "Phenaki"),
        trainer="PhenakiTrainer",
        summary="text to video: a masked transformer over a tokenizer's codes",
        needs="a folder of captioned videos, and --tokenizer",
    ),
    "audio-codec": RecipeEntry(
        family="audio_codec",
        config="AudioCodecConfig",
        task="AudioCodecTask",
        models=("AudioCodec", "PretrainedCodec"),
        trainer="AudioCodecTrainer",
        summary="audio tokenizer: sounds to residual codes and back",
        needs="a folder of sounds",
    ),
    "soundstorm": RecipeEntry(
        family="soundstorm",
        config="SoundStormConfig",
        task="SoundStormTask",
        models=("SoundStorm", "ConformerWrapper"),
        trainer="SoundStormTrainer",
        summary="text to sound: a masked conformer over a codec's codes",
        needs="a folder of sounds, --tokenizer, and --condition for texts",
    ),
    "mesh-autoencoder": RecipeEntry(
        family="mesh_autoencoder",
        config="MeshAutoencoderConfig",
        task="MeshAutoencoderTask",
        models=("MeshAutoencoder", "CoordinateTokenizer"),
        trainer="MeshAutoencoderTrainer",
        summary="mesh tokenizer: the faces of meshes to codes and back",
        needs="a folder of meshes",
        ready={"coordinates": Ready({"model.kind": "coordinates"}, choice="model.bins")},
    ),
    "mesh-transformer": RecipeEntry(
        family="mesh_transformer",
        config="MeshTransformerConfig",
        task="MeshTransformerTask",
        models=("MeshTransformer",),
        trainer="MeshTransformerTrainer",
        summary="text to mesh: a transformer over the codes of faces",
        needs="a folder of captioned meshes, and --tokenizer",
    ),
}


JUDGES: Mapping[str, str] = {
    "shapes": "quintet.synthetic.shapes_judge:ShapesJudge",
    "solids": "quintet.synthetic.solids_judge:SolidsJudge",
    "sounds": "quintet.synthetic.sounds_judge:SoundsJudge",
    "motions": "quintet.synthetic.motions_judge:MotionsJudge",
}
"""Of each synthetic data set, by the name in its marker, the judge."""


def find_judge(dataset: str | None) -> Judge[Any] | None:
    """The judge of a synthetic data set; none of a person's own data."""
    if dataset is None or dataset not in JUDGES:
        return None
    module, name = JUDGES[dataset].split(":")
    return getattr(import_module(module), name)()  # type: ignore[no-any-return]


def find(name: str) -> RecipeEntry:
    if name not in RECIPES:
        near = difflib.get_close_matches(name, RECIPES, n=1)
        hint = f"did you mean '{near[0]}'? " if near else ""
        raise UsageError(
            f"unknown recipe {name[:40]!r}; {hint}`quintet recipes` lists what can be trained: {', '.join(RECIPES)}"
        )
    return RECIPES[name]


def find_by_type(model_type: str) -> RecipeEntry | None:
    """The recipe that opens models of `transformers` of a type as its own."""
    return next((entry for entry in RECIPES.values() if model_type in entry.config_class().TRANSFORMERS), None)


def find_ready(reference: str) -> RunConfig | None:
    """The configuration of a ready model, `NAME` or `NAME:VALUE`; none if it is called nothing of the kind."""
    name, colon, value = reference.partition(":")
    for entry in RECIPES.values():
        if name in entry.ready:
            ready = entry.ready[name]
            chosen = configs.parse_overrides([f"{ready.choice}={value}"]) if colon else {}
            return configs.build(entry.config_class(), overrides={**ready.keys, **chosen})
    return None
