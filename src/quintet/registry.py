"""The registry of recipes: maps a name to the modules of a family, which are imported on first use.

Other packages add a family with an entry point of the group `quintet.families`: its name is the name of the recipe, its
value a `RecipeEntry`. An invalid entry point is an error for its own recipe only.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quintet import config as configs
from quintet.config import RunConfig
from quintet.errors import UsageError

if TYPE_CHECKING:
    from quintet.pipelines.base import Pipeline
    from quintet.synthetic.judges import Judge
    from quintet.training.task import Task

GROUP = "quintet.families"


@dataclass(frozen=True)
class Builtin:
    """A built-in model of a recipe, without trained weights. It can be used in place of a run or an exported folder."""

    keys: Mapping[str, Any]
    """Keys of its configuration that differ from the defaults."""
    choice: str
    """The key that `NAME:VALUE` sets."""


@dataclass(frozen=True)
class RecipeEntry:
    """The modules of a family: `package` has config.py, model.py, pipeline.py, task.py and optionally trainer.py."""

    package: str
    config: str
    task: str
    pipeline: str
    models: tuple[str, ...] = ()
    """The classes of model.py that `quintet` exports."""
    trainer: str | None = None
    summary: str = ""
    needs: str = "a folder of files"
    builtin: Mapping[str, Builtin] = field(default_factory=dict)
    frozen: Mapping[str, str] = field(default_factory=dict)
    """The recipes of the frozen models that it needs, by the key that names them, for plans before they are trained."""

    def config_class(self) -> type[RunConfig]:
        """The configuration class; importing it does not import torch."""
        return self._load("config", self.config, "RunConfig")  # type: ignore[no-any-return]

    def task_class(self) -> type[Task[Any]]:
        return self._load("task", self.task, "Task")  # type: ignore[no-any-return]

    def pipeline_class(self) -> type[Pipeline[Any]]:
        return self._load("pipeline", self.pipeline, "Pipeline")  # type: ignore[no-any-return]

    def public_names(self) -> Mapping[str, str]:
        """The names of this family that `quintet` exports, each with its module."""
        names = {**dict.fromkeys(self.models, "model"), self.pipeline: "pipeline"}
        names |= {self.trainer: "trainer"} if self.trainer else {}
        return {name: f"{self.package}.{module}" for name, module in names.items()}

    def _load(self, module: str, name: str, kind: str) -> Any:
        path = f"{self.package}.{module}"
        try:
            found = import_module(path)
        except Exception as error:  # a module of another package may raise anything
            if self.package.startswith("quintet."):
                raise
            raise UsageError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
        if not hasattr(found, name):
            raise UsageError(f"{path} has no {name}, which its RecipeEntry refers to")
        member = getattr(found, name)
        if kind not in [
            base.__name__ for base in getattr(member, "__mro__", ())
        ]:  # by name, without importing the class
            raise UsageError(f"{path}: {name} is not a subclass of {kind}")
        if missing := sorted(getattr(member, "__abstractmethods__", ())):
            raise UsageError(f"{path}: {name} does not implement {', '.join(missing)}")
        return member


RECIPES: Mapping[str, RecipeEntry] = {
    "vqgan": RecipeEntry(
        package="quintet.families.vqgan",
        config="VQGanConfig",
        task="VQGanTask",
        pipeline="VQGanPipeline",
        models=("VQGanVAE",),
        trainer="VQGanVAETrainer",
        summary="image tokenizer: images to a grid of codes and back",
        needs="a folder of images",
    ),
    "muse": RecipeEntry(
        package="quintet.families.muse",
        config="MuseConfig",
        task="MuseTask",
        pipeline="MusePipeline",
        models=("MaskGit", "TokenCritic", "Muse", "Stage"),
        trainer="MuseTrainer",
        summary="text to image: a masked transformer over a tokenizer's codes",
        needs="a folder of captioned images, and --tokenizer",
        frozen={"tokenizer": "vqgan"},
    ),
    "mulan": RecipeEntry(
        package="quintet.families.mulan",
        config="MuLaNConfig",
        task="MuLaNTask",
        pipeline="MuLaNPipeline",
        models=("MuLaN", "AudioSpectrogramTransformer", "TextTransformer", "MuLaNEmbedQuantizer"),
        trainer="MuLaNTrainer",
        summary="joint embedding of audio and text: text-to-audio search",
        needs="a folder of captioned audio",
    ),
    "cvivit": RecipeEntry(
        package="quintet.families.cvivit",
        config="CViViTConfig",
        task="CViViTTask",
        pipeline="CViViTPipeline",
        models=("CViViT",),
        trainer="CViViTTrainer",
        summary="video tokenizer: videos and images to codes per latent frame, and back",
        needs="a folder of videos",
    ),
    "phenaki": RecipeEntry(
        package="quintet.families.phenaki",
        config="PhenakiConfig",
        task="PhenakiTask",
        pipeline="PhenakiPipeline",
        models=("MaskGit", "TokenCritic", "Phenaki"),
        trainer="PhenakiTrainer",
        summary="text to video: a masked transformer over a tokenizer's codes",
        needs="a folder of captioned videos, and --tokenizer",
        frozen={"tokenizer": "cvivit"},
    ),
    "audio-codec": RecipeEntry(
        package="quintet.families.audio_codec",
        config="AudioCodecConfig",
        task="AudioCodecTask",
        pipeline="AudioCodecPipeline",
        models=("AudioCodec", "PretrainedCodec"),
        trainer="AudioCodecTrainer",
        summary="audio tokenizer: audio to residual codes and back",
        needs="a folder of audio",
    ),
    "soundstorm": RecipeEntry(
        package="quintet.families.soundstorm",
        config="SoundStormConfig",
        task="SoundStormTask",
        pipeline="SoundStormPipeline",
        models=("SoundStorm", "ConformerWrapper"),
        trainer="SoundStormTrainer",
        summary="text to audio: a masked conformer over a codec's codes",
        needs="a folder of audio, --tokenizer, and --condition for text prompts",
        frozen={"tokenizer": "audio-codec"},
    ),
    "mesh-autoencoder": RecipeEntry(
        package="quintet.families.mesh_autoencoder",
        config="MeshAutoencoderConfig",
        task="MeshAutoencoderTask",
        pipeline="MeshAutoencoderPipeline",
        models=("MeshAutoencoder", "CoordinateTokenizer", "WovenTokenizer"),
        trainer="MeshAutoencoderTrainer",
        summary="mesh tokenizer: the faces of meshes to codes and back",
        needs="a folder of meshes",
        builtin={kind: Builtin({"model.kind": kind}, choice="model.bins") for kind in ("coordinates", "woven")},
    ),
    "mesh-transformer": RecipeEntry(
        package="quintet.families.mesh_transformer",
        config="MeshTransformerConfig",
        task="MeshTransformerTask",
        pipeline="MeshTransformerPipeline",
        models=("MeshTransformer",),
        trainer="MeshTransformerTrainer",
        summary="text to mesh: an autoregressive transformer over the codes of faces",
        needs="a folder of captioned meshes, and --tokenizer",
        frozen={"tokenizer": "mesh-autoencoder"},
    ),
}


def names() -> list[str]:
    """The names of all recipes, those of quintet first."""
    return [*RECIPES, *sorted({point.name for point in _plugins()} - RECIPES.keys())]


def entries() -> Iterator[tuple[str, RecipeEntry]]:
    """All valid recipes with their entries."""
    for name in names():
        try:
            yield name, find(name)
        except UsageError:
            continue


def config_classes() -> Iterator[tuple[str, type[RunConfig]]]:
    """The configuration classes of all recipes, without those that cannot be imported."""
    for name, entry in entries():
        try:
            yield name, entry.config_class()
        except UsageError:
            continue


def problems() -> list[str]:
    """A message for each invalid entry point."""
    found = [
        f"recipe '{point.name}' of {_package_of(point)} is ignored: quintet has a recipe of that name"
        for point in _plugins()
        if point.name in RECIPES
    ]
    for name in names():
        try:
            recipe = find(name).config_class().model_fields["recipe"].default
        except UsageError as error:
            found.append(str(error))
        else:
            if recipe != name:
                found.append(
                    f"the entry point of recipe '{name}' has a configuration class for recipe '{recipe}'; use one name"
                )
    return found


JUDGES: Mapping[str, str] = {
    "shapes": "quintet.synthetic.shapes_judge:ShapesJudge",
    "solids": "quintet.synthetic.solids_judge:SolidsJudge",
    "sounds": "quintet.synthetic.sounds_judge:SoundsJudge",
    "motions": "quintet.synthetic.motions_judge:MotionsJudge",
}
"""The judge of each synthetic data set, by the name in its marker file."""


def find_judge(dataset: str | None) -> Judge[Any] | None:
    """The judge of a synthetic data set; None for any other data set."""
    if dataset is None or dataset not in JUDGES:
        return None
    module, name = JUDGES[dataset].split(":")
    return getattr(import_module(module), name)()  # type: ignore[no-any-return]


def find(name: str) -> RecipeEntry:
    """The entry of a recipe; UsageError if there is none."""
    if name in RECIPES:
        return RECIPES[name]
    points = [point for point in _plugins() if point.name == name]
    if points:
        return _load_plugin(name, points)
    near = difflib.get_close_matches(name, names(), n=1)
    hint = f"did you mean '{near[0]}'? " if near else ""
    raise UsageError(f"unknown recipe {name[:40]!r}; {hint}`quintet recipes` lists all recipes: {', '.join(names())}")


def _plugins() -> list[EntryPoint]:
    return list(entry_points(group=GROUP))


def _load_plugin(name: str, points: list[EntryPoint]) -> RecipeEntry:
    if len({point.value for point in points}) > 1:
        packages = " and ".join(sorted(_package_of(point) for point in points))
        raise UsageError(f"recipe '{name}' is provided by {packages}; uninstall one of them")
    try:
        entry = points[0].load()
    except Exception as error:  # another package may raise anything
        reason = f"{type(error).__name__}: {error}"
        raise UsageError(f"recipe '{name}' of {_package_of(points[0])} cannot be imported ({reason})") from error
    if not isinstance(entry, RecipeEntry):
        raise UsageError(f"recipe '{name}': {points[0].value} is a {type(entry).__name__}, not a RecipeEntry")
    return entry


def _package_of(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.value


def find_by_type(model_type: str) -> RecipeEntry | None:
    """The recipe that can load `transformers` models of this type, or None."""
    return next((find(name) for name, schema in config_classes() if model_type in schema.TRANSFORMERS), None)


def transformers_types() -> list[str]:
    """The `transformers` model types that recipes can load."""
    return [kind for _, schema in config_classes() for kind in schema.TRANSFORMERS]


def find_builtin(reference: str) -> RunConfig | None:
    """The configuration of a built-in model, `NAME` or `NAME:VALUE`; None if there is no such model."""
    name, colon, value = reference.partition(":")
    for _, entry in entries():
        if name in entry.builtin:
            builtin = entry.builtin[name]
            chosen = configs.parse_overrides([f"{builtin.choice}={value}"]) if colon else {}
            return configs.build(entry.config_class(), overrides={**builtin.keys, **chosen})
    return None


def read_config(path: Path) -> RunConfig:
    """Read the configuration file of a run."""
    tree = configs.read_yaml(path)
    recipe = tree.get("recipe")
    if not isinstance(recipe, str):
        raise UsageError(f"{path} has no key `recipe`")
    schema = find(recipe).config_class()
    return configs.validate(schema, configs.migrated(schema, tree))
