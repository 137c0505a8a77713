"""The pages `docs/migration.md` and `docs/migration-tables.md` about moving from the original packages.

Both are generated: the first from `migration_text.py` and from what is refused, the second from all tables.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from quintet.compat.migration_text import CHANGES, DIFFERENT, INTRODUCTION, OLD_WEIGHTS_HEAD, RECIPES
from quintet.compat.rules import REQUIRED, OriginalTrainer, Rule
from quintet.compat.tables import TRAINERS
from quintet.compat.tables.members import Member, by_use
from quintet.compat.tables.shared import NEVER, OWN, PARTS
from quintet.compat.usages import Record, records_of_package

OLD_WEIGHTS_TAIL = """\
An existing **tokenizer remains usable through its codes**: encode your media with the original
package, and train `PhenakiTrainer` on items with `video_codebook_ids`, or `SoundStormTrainer` on
(semantic, acoustic) token ids. Their samples are then codes as well, which the original package
decodes. `MuseTrainer` and `MeshTransformerTrainer` need a tokenizer of quintet, whose hash is
recorded in the run: train one on the same files. A run on a Python dataset resumes from Python,
with the same dataset.
"""

TABLES_HEAD = """\
# Tables of the original packages

Every usage, method, attribute and keyword of the original packages, and what becomes of it. Read
[migration.md](migration.md) first: it lists what is different and what is refused.

- [Usages](#usages) of each package
- [Methods and attributes](#methods-and-attributes) of the trainers
- [Keywords](#keywords) of the trainers, and their defaults
"""

USAGES = """\
Each row was executed with only the import changed (`make migration`), and a test executes all of them.
"""

MEMBERS_HEAD = """\
A test executes each row. Everything else that quintet's own trainer has, such as `evaluate()`, is also an
attribute; the own trainer itself is `trainer.own`. An attribute that is a keyword cannot be changed after
the trainer was built.
"""

FILES: tuple[tuple[str, str], ...] = (
    ("`mulan.N.pt`, `soundstorm.N.pt`, `vae.N.pt`", "`checkpoints/step-N/<module>.safetensors`"),
    ("`vae.N.ema.pt`", "the same name in the results folder, a folder that `load` of the model takes"),
    ("`model-K.pt` (Phenaki)", "`checkpoints/step-N/`"),
    ("`mesh-autoencoder.ckpt.K.pt`, `mesh-transformer.ckpt.K.pt`", "`checkpoints/step-N/`"),
    ("`N.ema.png`", "`samples/step-N/reconstructions.png`"),
    ("`N.png` (VQ-GAN)", "`samples/step-N/live-reconstructions.png`"),
    ("`videos.K/<caption>.gif`, `K.png` (Phenaki)", "`samples/step-N/`, captions in `samples.jsonl`"),
    ("optimizer, scheduler and step inside the pickle", "`checkpoints/step-N/optim/`, `meta.json`"),
    ("model configuration inside the pickle, or nowhere", "`config.yaml`, in the run and in each checkpoint"),
)

OLD_WEIGHTS = {
    "`VQGanVAE`": "The first and last layer use 2 x 2 blocks of pixels, residual blocks and quantizers differ, and the "
    "discriminator is a separate module.",
    "`MuLaN`": "The audio encoder takes log-mel spectrograms; the original took power spectrograms.",
    "`SoundStorm`": "Masking, embeddings of quantizers and output heads differ, and the codes belong to the codec it "
    "was trained with.",
    "`Phenaki`, `CViViT`": "The original tokenizer is not causal in time, because of a defect of its position module; "
    "a causal one cannot use its weights, and a generator works only with its own tokenizer.",
    "`MeshAutoencoder`": "Angles and areas of faces are measured and discretized differently, so that the embeddings "
    "have another meaning.",
    "`MeshTransformer`": "Its vocabulary is the codes of one `MeshAutoencoder`; with another tokenizer it has another "
    "meaning.",
}


PACKAGES = tuple(dict.fromkeys(each.package for each in TRAINERS.values()))


def page() -> str:
    """The content of `docs/migration.md`."""
    return "\n".join(
        [
            INTRODUCTION,
            CHANGES,
            "## Each package\n",
            *(_package_section(package) for package in PACKAGES),
            "### Methods and attributes of trainers\n",
            _bullets(f"`{member.use}` is refused: … {member.refused} …" for member in by_use() if member.refused),
            "### Entries of `accelerate_kwargs`, `ema_kwargs` and `optimizer_kwargs`\n",
            _bullets(_without_counterpart(rule for rules in PARTS.values() for rule in rules)),
            RECIPES,
            "## File names\n",
            "N is the step; K is the step divided by the interval. The files of quintet are in the run folder;\n"
            "its step numbers have eight digits. Checkpoints at the interval also have their original name, as a link\n"
            "in the results folder, which `load` of trainers and models takes.\n",
            _table(("original", "quintet"), FILES),
            OLD_WEIGHTS_HEAD,
            _table(("class", "why its weights are incompatible"), OLD_WEIGHTS.items()),
            OLD_WEIGHTS_TAIL,
        ]
    )


def tables_page() -> str:
    """The content of `docs/migration-tables.md`."""
    return "\n".join(
        [
            TABLES_HEAD,
            "## Usages\n",
            USAGES,
            *(_usages_section(package) for package in PACKAGES),
            "## Methods and attributes\n",
            MEMBERS_HEAD,
            _table(("use", "trainers", "outcome"), (_member_row(*row) for row in by_use().items())),
            "## Keywords\n",
            "A keyword that is left out has its original default. Every trainer also has quintet's own keywords:\n",
            _table(
                ("keyword", "sets", "meaning"),
                ((f"`{rule.keyword}`", _target(rule), rule.explanation) for rule in OWN),
            ),
            *(_trainer_section(trainer) for trainer in TRAINERS.values()),
            "### Entries of dictionaries\n",
            *(f"`{name}`:\n\n{_rules_table(rules)}" for name, rules in PARTS.items()),
        ]
    )


def _package_section(package: str) -> str:
    """What is different in a package, and what it refuses."""
    trainers = [trainer for trainer in TRAINERS.values() if trainer.package == package]
    keywords = [f"{trainer.name}: {line}" for trainer in trainers for line in _without_counterpart(trainer.rules)]
    different = [*DIFFERENT[package], *(f"`{line[: line.index(':')]}`{line[line.index(':') :]}" for line in keywords)]
    refused = [
        f"`{row.name}`, {row.title}: {row.refusal.removeprefix(f'{row.name}: ')}"
        for row in records_of_package(package.replace("-", "_"))
        if row.refusal
    ]
    return f"### {package}\n\nDifferent:\n\n{_bullets(different)}\nRefused:\n\n{_bullets(refused)}"


def _without_counterpart(rules: Iterable[Rule]) -> Iterator[str]:
    """Keywords that have no effect or are refused, each with the reason."""
    for rule in rules:
        if rule.always:
            yield f"`{rule.keyword}` has no effect: {rule.always}."
        elif rule.refused:
            yield f"`{rule.keyword}` is {_target(rule)}: {rule.refused}."


def _bullets(lines: Iterable[str]) -> str:
    options: dict[str, Any] = {"width": 110, "break_long_words": False, "break_on_hyphens": False}
    return "".join(
        textwrap.fill(line, initial_indent="- ", subsequent_indent="  ", **options) + "\n"
        for line in dict.fromkeys(lines)
    )


def _usages_section(package: str) -> str:
    rows = ((f"`{row.name}`", row.title, _outcome(row)) for row in records_of_package(package.replace("-", "_")))
    return f"### {package}\n\n{_table(('name', 'usage', 'outcome'), rows)}"


def _outcome(record: Record) -> str:
    return f"refused: {record.refusal}" if record.refusal else "works unchanged"


def _member_row(member: Member, trainers: Sequence[str]) -> tuple[str, str, str]:
    outcome = f"refused: … {member.refused} …" if member.refused else "works"
    if member.needs:
        outcome += f"; needs {member.needs}"
    shown = "all" if len(trainers) == len(TRAINERS) else ", ".join(trainers)
    return f"`{member.use}`", shown, outcome + (f"; {member.note}" if member.note else "")


def _trainer_section(trainer: OriginalTrainer) -> str:
    module = f"quintet.compat.{trainer.package.replace('-', '_')}"
    facts = f"From {trainer.package} {trainer.version}, in `{module}`; trains the recipe `{trainer.recipe}`."
    always = ((f"`{each.key}`", _value(each.value), each.explanation) for each in trainer.implied)
    implied = f"Without a keyword:\n\n{_table(('key', 'value', 'note'), always)}"
    return f"### {trainer.name}\n\n{facts}\n\n{_rules_table(trainer.rules)}\n{implied}"


def _rules_table(rules: Sequence[Rule]) -> str:
    rows = ((f"`{rule.keyword}`", _default(rule), _target(rule), rule.explanation) for rule in rules)
    return _table(("keyword", "original default", "in quintet", "note"), rows)


def _default(rule: Rule) -> str:
    if rule.default is REQUIRED:
        return "required"
    return _value(rule.default)


def _value(value: Any) -> str:
    if value == NEVER:
        return "no limit"
    return f"`{value:.4g}`" if isinstance(value, float) else f"`{value!r}`"


def _target(rule: Rule) -> str:
    if rule.keys:
        return ", ".join(f"`{key}`" for key in rule.keys)
    if rule.argument:
        return f"argument `{rule.argument}`"
    if rule.refused:
        return f"refused, except `{rule.fits[0]!r}`" if rule.fits else "refused"
    if rule.spread:
        return "any key"
    return "each entry" if rule.parts else "no effect"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    line, *lines = (f"| {' | '.join(row)} |\n" for row in (head, *rows))
    return "".join([line, "|" + "---|" * len(head) + "\n", *lines])
