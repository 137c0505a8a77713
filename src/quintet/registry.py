"""The registry of recipes: name -> where its parts are. Nothing is imported until it is asked for.

A family in a person's own package joins by an entry point of the group `quintet.families`: its name is the recipe's,
its value a `RecipeEntry`. One that cannot be used is an error for its own recipe alone.
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
    """A model of a recipe that has nothing to learn. It is named where a run or an exported folder could stand."""

    keys: Mapping[str, Any]
    """What its configuration is, beside the defaults."""
    choice: str
    """The key that `NAME:VALUE` sets."""


@dataclass(frozen=True)
class RecipeEntry:
    """Where a family's parts are: `package` holds config.py, model.py, pipeline.py, task.py and perhaps trainer.py."""

    package: str
    config: str
    task: str
    pipeline: str
    models: tuple[str, ...] = ()
    """The classes of model.py that `from quintet import …` offers."""
    trainer: str | None = None
    summary: str = ""
    needs: str = "a folder of files"
    builtin: Mapping[str, Builtin] = field(default_factory=dict)

    def config_class(self) -> type[RunConfig]:
        """Without torch."""
        return self._load("config", self.config, "RunConfig")  # type: ignore[no-any-return]

    def task_class(self) -> type[Task[Any]]:
        return self._load("task", self.task, "Task")  # type: ignore[no-any-return]

    def pipeline_class(self) -> type[Pipeline[Any]]:
        return self._load("pipeline", self.pipeline, "Pipeline")  # type: ignore[no-any-return]

    def public_names(self) -> Mapping[str, str]:
        """What `from quintet import …` offers of this family, each with its module."""
        names = {**dict.fromkeys(self.models, "model"), self.pipeline: "pipeline"}
        names |= {self.trainer: "trainer"} if self.trainer else {}
        return {name: f"{self.package}.{module}" for name, module in names.items()}

    def _load(self, module: str, name: str, kind: str) -> Any:
        path = f"{self.package}.{module}"
        try:
            found = import_module(path)
        except Exception as error:  # whatever a person's own module does when it is imported
            if self.package.startswith("quintet."):
                raise
            raise UsageError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
        if not hasattr(found, name):
            raise UsageError(f"{path} has no {name}, which its entry in the registry names")
        member = getattr(found, name)
        if kind not in [base.__name__ for base in getattr(member, "__mro__", ())]:  # by name: nothing above is imported
            raise UsageError(f"{path}: {name} is no {kind}; it lacks the members of that class")
        if missing := sorted(getattr(member, "__abstractmethods__", ())):
            raise UsageError(f"{path}: {name} lacks {', '.join(missing)}")
        return member


RECIPES: Mapping[str, RecipeEntry] = {
    "vqgan": RecipeEntry(
        package="quintet.families.vqgan",
        config="VQGanConfig",
        task="VQGanTask",
        pipeline="VQGanPipeline",
        models=("VQGanVAE",),
        trainer="VQGanVAETrainer",
        summary="image tokenizer: pictures to a grid of codes and back",
        needs="a folder of pictures",
    ),
    "muse": RecipeEntry(
        package="quintet.families.muse",
        config="MuseConfig",
        task="MuseTask",
        pipeline="MusePipeline",
        models=("MaskGit", "TokenCritic", "Muse", "Stage"),
        trainer="MuseTrainer",
        summary="text to image: a masked transformer over a tokenizer's codes",
        needs="a folder of captioned pictures, and --tokenizer",
    ),
    "mulan": RecipeEntry(
        package="quintet.families.mulan",
        config="MuLaNConfig",
        task="MuLaNTask",
        pipeline="MuLaNPipeline",
        models=("MuLaN", "AudioSpectrogramTransformer", "TextTransformer", "MuLaNEmbedQuantizer"),
        trainer="MuLaNTrainer",
        summary="sound and text in one space: find clips by words",
        needs="a folder of captioned sounds",
    ),
    "cvivit": RecipeEntry(
        package="quintet.families.cvivit",
        config="CViViTConfig",
        task="CViViTTask",
        pipeline="CViViTPipeline",
        models=("CViViT",),
        trainer="CViViTTrainer",
        summary="video tokenizer: clips and pictures to codes, moment by moment, and back",
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
    ),
    "audio-codec": RecipeEntry(
        package="quintet.families.audio_codec",
        config="AudioCodecConfig",
        task="AudioCodecTask",
        pipeline="AudioCodecPipeline",
        models=("AudioCodec", "PretrainedCodec"),
        trainer="AudioCodecTrainer",
        summary="audio tokenizer: sounds to residual codes and back",
        needs="a folder of sounds",
    ),
    "soundstorm": RecipeEntry(
        package="quintet.families.soundstorm",
        config="SoundStormConfig",
        task="SoundStormTask",
        pipeline="SoundStormPipeline",
        models=("SoundStorm", "ConformerWrapper"),
        trainer="SoundStormTrainer",
        summary="text to sound: a masked conformer over a codec's codes",
        needs="a folder of sounds, --tokenizer, and --condition for texts",
    ),
    "mesh-autoencoder": RecipeEntry(
        package="quintet.families.mesh_autoencoder",
        config="MeshAutoencoderConfig",
        task="MeshAutoencoderTask",
        pipeline="MeshAutoencoderPipeline",
        models=("MeshAutoencoder", "CoordinateTokenizer"),
        trainer="MeshAutoencoderTrainer",
        summary="mesh tokenizer: the faces of meshes to codes and back",
        needs="a folder of meshes",
        builtin={"coordinates": Builtin({"model.kind": "coordinates"}, choice="model.bins")},
    ),
    "mesh-transformer": RecipeEntry(
        package="quintet.families.mesh_transformer",
        config="MeshTransformerConfig",
        task="MeshTransformerTask",
        pipeline="MeshTransformerPipeline",
        models=("MeshTransformer",),
        trainer="MeshTransformerTrainer",
        summary="text to mesh: a transformer over the codes of faces",
        needs="a folder of captioned meshes, and --tokenizer",
    ),
}


def names() -> list[str]:
    """All recipes, quintet's own first."""
    return [*RECIPES, *sorted({point.name for point in _foreign()} - RECIPES.keys())]


def entries() -> Iterator[tuple[str, RecipeEntry]]:
    """All recipes that can be used, with their entries."""
    for name in names():
        try:
            yield name, find(name)
        except UsageError:
            continue


def config_classes() -> Iterator[tuple[str, type[RunConfig]]]:
    """The configuration classes of all recipes that have one that can be imported."""
    for name, entry in entries():
        try:
            yield name, entry.config_class()
        except UsageError:
            continue


def problems() -> list[str]:
    """One sentence for each entry point that cannot be used."""
    found = [
        f"recipe '{point.name}' of {_package_of(point)} is not used: quintet has one of that name"
        for point in _foreign()
        if point.name in RECIPES
    ]
    for name in names():
        try:
            recipe = find(name).config_class().model_fields["recipe"].default
        except UsageError as error:
            found.append(str(error))
        else:
            if recipe != name:
                found.append(f"recipe '{name}' is called '{recipe}' by its configuration; one name is wrong")
    return found


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
    if name in RECIPES:
        return RECIPES[name]
    points = [point for point in _foreign() if point.name == name]
    if points:
        return _opened(name, points)
    near = difflib.get_close_matches(name, names(), n=1)
    hint = f"did you mean '{near[0]}'? " if near else ""
    raise UsageError(
        f"unknown recipe {name[:40]!r}; {hint}`quintet recipes` lists what can be trained: {', '.join(names())}"
    )


def _foreign() -> list[EntryPoint]:
    return list(entry_points(group=GROUP))


def _opened(name: str, points: list[EntryPoint]) -> RecipeEntry:
    if len({point.value for point in points}) > 1:
        packages = " and ".join(sorted(_package_of(point) for point in points))
        raise UsageError(f"recipe '{name}' is offered by {packages}; uninstall one of them")
    try:
        entry = points[0].load()
    except Exception as error:  # whatever a person's own package does when it is imported
        why = f"{type(error).__name__}: {error}"
        raise UsageError(f"recipe '{name}' of {_package_of(points[0])} cannot be imported ({why})") from error
    if not isinstance(entry, RecipeEntry):
        raise UsageError(f"recipe '{name}': {points[0].value} is a {type(entry).__name__}, not a RecipeEntry")
    return entry


def _package_of(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.value


def find_by_type(model_type: str) -> RecipeEntry | None:
    """The recipe that opens models of `transformers` of a type as its own."""
    return next((find(name) for name, schema in config_classes() if model_type in schema.TRANSFORMERS), None)


def transformers_types() -> list[str]:
    return [kind for _, schema in config_classes() for kind in schema.TRANSFORMERS]


def find_builtin(reference: str) -> RunConfig | None:
    """The configuration of a built-in model, `NAME` or `NAME:VALUE`; none if there is none of that name."""
    name, colon, value = reference.partition(":")
    for _, entry in entries():
        if name in entry.builtin:
            builtin = entry.builtin[name]
            chosen = configs.parse_overrides([f"{builtin.choice}={value}"]) if colon else {}
            return configs.build(entry.config_class(), overrides={**builtin.keys, **chosen})
    return None


def read_config(path: Path) -> RunConfig:
    """The configuration of a run, of the recipe that it names."""
    tree = configs.read_yaml(path)
    recipe = tree.get("recipe")
    if not isinstance(recipe, str):
        raise UsageError(f"{path} does not say which recipe it is for")
    schema = find(recipe).config_class()
    return configs.validate(schema, configs.migrated(schema, tree))
