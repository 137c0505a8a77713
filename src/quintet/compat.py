"""Owns the way from the original trainers' keywords to quintet's, and the page that tells people about it.

`translate` applies the table of `compat_table.py`: a keyword becomes a key or an argument, or is refused with the
reason. `announce` says it once. `python -m quintet.compat` prints `docs/migration.md`.
"""

from __future__ import annotations

import difflib
import reprlib
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from quintet.compat_table import (
    FILES,
    METHODS,
    OLD_WEIGHTS,
    OWN,
    PARTS,
    REQUIRED,
    SKIP,
    TRAINERS,
    Noted,
    OriginalTrainer,
    Rule,
)
from quintet.config import RunConfig, expand, flatten, keys
from quintet.errors import UsageError

OWN_NAMES = frozenset(rule.keyword for rule in OWN)
PAGE = "docs/migration.md"


class CompatibilityNotice(UserWarning):
    """Keywords of an original trainer were understood; the message says as what."""


@dataclass
class Translation:
    """What a trainer's keywords mean in quintet."""

    trainer: OriginalTrainer
    overrides: dict[str, Any] = field(default_factory=dict)
    """Dotted keys and their values."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Arguments of quintet's trainer: `model`, `data`, `validation`, `declared`, `out`, `preset` and the like."""
    notices: list[str] = field(default_factory=list)
    """What a person should know beside the new names."""
    renamed: dict[str, str] = field(default_factory=dict)
    """Original keyword to key or argument, in the order given."""
    sources: dict[str, str] = field(default_factory=dict)
    """Key or argument to the keyword that set it."""

    @property
    def foreign(self) -> bool:
        """Whether anything but quintet's own keywords was used."""
        return bool(self.notices) or any(keyword not in OWN_NAMES for keyword in self.renamed)


# --- which trainer ------------------------------------------------------------------------------------------


def trainer_recipe(trainer: str) -> str:
    """The recipe that one of the six trainers trains."""
    return _find(trainer).recipe


def require_landed(trainer: str) -> None:
    """Refuse a trainer whose family this version of quintet does not have."""
    found = _find(trainer)
    if found.planned:
        raise UsageError(f"{trainer} trains recipe '{found.recipe}', which is not in this version of quintet yet")


def _find(trainer: str) -> OriginalTrainer:
    if trainer not in TRAINERS:
        raise UsageError(f"unknown trainer '{trainer}'; known: {', '.join(TRAINERS)}")
    return TRAINERS[trainer]


# --- translating --------------------------------------------------------------------------------------------


def translate(trainer: str, keywords: Mapping[str, Any], positional: Sequence[Any] = ()) -> Translation:
    """The keys and arguments that a call of a trainer asks for; UsageError for what is unknown, refused or impossible.

    None stands for a keyword that was not given, as it does in the originals.
    """
    require_landed(trainer)
    return translate_by(TRAINERS[trainer], keywords, positional)


def translate_by(trainer: OriginalTrainer, keywords: Mapping[str, Any], positional: Sequence[Any] = ()) -> Translation:
    """As `translate`, whether or not the family has landed."""
    rules = {rule.keyword: rule for rule in (*OWN, *trainer.rules)}
    translation = Translation(trainer)
    given = {**_named(trainer, keywords, positional), **keywords}
    for keyword, value in given.items():
        if keyword not in rules:
            raise UsageError(_unknown(trainer, keyword, rules))
        _apply(translation, rules[keyword], keyword, value)
    _count_whole_steps(translation, rules)
    return translation


def announce(translation: Translation) -> None:
    """One warning for the whole call, at the line of the caller; none for quintet's own keywords."""
    if not translation.foreign:
        return
    trainer = translation.trainer
    sentences = [*translation.notices]
    if translation.renamed:
        listed = ", ".join(f"{keyword} -> {target}" for keyword, target in translation.renamed.items())
        sentences.insert(0, f"keywords of {trainer.package} translated: {listed}")
    text = f"{trainer.name}: {'; '.join(sentences)} (see {PAGE})"
    warnings.warn(text, CompatibilityNotice, stacklevel=_levels_to_caller())


def _levels_to_caller() -> int:
    """How far up the first frame outside quintet is, as `warnings.warn` counts from `announce`."""
    level = 1
    frame = sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).split(".")[0] == "quintet":
        frame = frame.f_back
        level += 1
    return level


def _named(trainer: OriginalTrainer, keywords: Mapping[str, Any], positional: Sequence[Any]) -> dict[str, Any]:
    """Values by position, under quintet's names where it has them: `Trainer(model, …)` is nobody's old habit."""
    allowed = trainer.rules[: trainer.positional]
    if len(positional) > len(allowed):
        listed = ", ".join(rule.keyword for rule in allowed)
        raise UsageError(f"{trainer.name} takes {len(allowed)} value(s) by position ({listed}); name the others")
    named = {}
    for rule, value in zip(allowed, positional, strict=False):
        if rule.keyword in keywords or rule.argument in keywords:
            raise UsageError(f"{trainer.name} got '{rule.keyword}' by position and by name; give it once")
        named[rule.argument or rule.keyword] = value
    return named


def _apply(translation: Translation, rule: Rule, where: str, value: Any) -> None:
    """One keyword, or one entry of a dictionary; `where` is how the person wrote it."""
    if value is None and not rule.keeps_none:
        return
    if rule.parts:
        _apply_parts(translation, rule, value)
    elif rule.spread:
        for key, part in flatten(expand(_mapping(translation, where, value))).items():
            _put(translation, translation.overrides, key, part, where)
    elif rule.refused:
        if not _is_one_of(value, rule.fits):
            raise UsageError(f"{translation.trainer.name}: {_written(where, value)} is refused: {rule.refused}")
    elif rule.always:
        if not _is_one_of(value, rule.fits):
            translation.notices.append(f"{_written(where, value)} has no effect: {rule.always}")
    else:
        _set(translation, rule, where, value)


def _apply_parts(translation: Translation, rule: Rule, value: Any) -> None:
    known = {part.keyword: part for part in rule.parts}
    for name, part in _mapping(translation, rule.keyword, value).items():
        where = f"{rule.keyword}[{name!r}]"
        if name not in known:
            hint = _nearest(str(name), known)
            raise UsageError(f"{translation.trainer.name}: {where} is not known{hint}; {PAGE} lists what is")
        _apply(translation, known[name], where, part)


def _set(translation: Translation, rule: Rule, where: str, value: Any) -> None:
    plain = rule.convert(_checked(translation, rule, where, value)) if value is not None else None
    if plain is SKIP:
        return
    if isinstance(plain, Noted):
        translation.notices.append(f"{_written(where, value)}: {plain.notice}")
        plain = plain.value
    for key in rule.keys:
        _put(translation, translation.overrides, key, plain, where)
    if rule.argument:
        _put(translation, translation.arguments, rule.argument, plain, where)
    new = " and ".join(rule.keys) or rule.argument
    if rule not in OWN and where != new:
        translation.renamed[where] = new


def _checked(translation: Translation, rule: Rule, where: str, value: Any) -> Any:
    if rule.kind is None:
        return value
    try:
        return rule.kind.accept(value)
    except (TypeError, ValueError):
        target = " and ".join(rule.keys) or f"the argument {rule.argument}"
        raise UsageError(
            f"{translation.trainer.name}: {_written(where, value)} is impossible; it sets {target}, which takes "
            f"{rule.kind.phrase}, for example {where}={rule.kind.example}"
        ) from None


def _put(translation: Translation, target: dict[str, Any], name: str, value: Any, where: str) -> None:
    """Two keywords for one thing are an error, unless they agree."""
    if name in target:
        agree = target is translation.overrides and bool(target[name] == value)
        if not agree:
            first = translation.sources[name]
            raise UsageError(f"{translation.trainer.name}: {first} and {where} both set {name}; give one of them")
    target[name] = value
    translation.sources[name] = where


def _count_whole_steps(translation: Translation, rules: Mapping[str, Rule]) -> None:
    """The originals count micro-batches and their size; quintet counts what a whole step takes."""
    if "grad_accum_every" not in translation.renamed:
        return
    factor = translation.overrides["train.accumulate"]
    for rule in rules.values():
        if not rule.times_accumulation or factor == 1:
            continue
        (key,) = rule.keys
        if translation.sources.get(key) == rule.keyword:
            before = translation.overrides[key]
            translation.overrides[key] = before * factor
            translation.notices.append(
                f"{rule.keyword}={before} with grad_accum_every={factor} is {key}={before * factor} here, "
                "where a whole optimizer step is counted"
            )


def _mapping(translation: Translation, where: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UsageError(f"{translation.trainer.name}: {_written(where, value)} is impossible; it takes a dictionary")
    return value


def _is_one_of(value: Any, fits: Iterable[Any]) -> bool:
    # Of one type first: 1 is not True, and foreign objects need not know how to compare themselves.
    return any(value is fit or (type(value) is type(fit) and bool(value == fit)) for fit in fits)


def _written(where: str, value: Any) -> str:
    return f"{where}={reprlib.repr(value)}"


def _unknown(trainer: OriginalTrainer, keyword: str, rules: Mapping[str, Rule]) -> str:
    """The same thing under another trainer's name is nearer than the same letters."""
    targets = {
        target
        for other in TRAINERS.values()
        for rule in other.rules
        if rule.keyword == keyword
        for target in (*rule.keys, rule.argument)
        if target
    }
    meant = [name for name, rule in rules.items() if targets.intersection((*rule.keys, rule.argument))]
    hint = f"; did you mean '{meant[0]}'?" if meant else _nearest(keyword, rules)
    listed = "" if hint else f"; it knows {', '.join(rules)}"
    return f"{trainer.name} has no keyword '{keyword}'{hint}{listed} (other keys go into `config`; see {PAGE})"


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean '{near[0]}'?" if near else ""


# --- the page -----------------------------------------------------------------------------------------------

INTRODUCTION = """\
# Moving to quintet

The six trainers keep their names and understand every keyword they had: it becomes a key or an argument of quintet, or
is refused with the reason. One warning (`CompatibilityNotice`) lists what was translated; rename the keywords and it is
gone. This page is made from the table the trainers use (`python -m quintet.compat > docs/migration.md`).

```python
# muse-maskgit-pytorch
VQGanVAETrainer(vae, folder="photos", image_size=128, num_train_steps=10_000, batch_size=4, grad_accum_every=4,
                results_folder="results").train()
# quintet
VQGanVAETrainer(vae, data="photos", steps=10_000, batch_size=16, accumulate=4, out="runs/tok").train()
```

What you do not name has quintet's default, not the original's; `quintet config RECIPE` shows them all. Two keywords
that set the same thing to different values are an error, and so is a value that cannot be, before anything is written.
"""

CHANGES = """\
## What changes in the results

- **The batch size is that of a whole optimizer step**, over all processes and micro-batches. The originals' was that of
  one micro-batch on one process: with `grad_accum_every` it is multiplied by it, but the number of processes is not
  looked at. Multiply by it yourself, except where `split_batches=True` was set.
- **The learning rate is a function of the step.** The originals' schedulers moved once per process and step, their
  warm-up did not reach the peak, and only SoundStorm had a cosine by default; quintet's default is a cosine. For a
  constant rate: `config={"optim.schedule": "constant"}`.
- **The decay of the moving average is honoured**, with a short ramp at the start. `VQGanVAETrainer` ignored `ema_beta`;
  `PhenakiTrainer` and `MeshTransformerTrainer` ignored all they were told about an average.
- **The interval of the gradient penalty is honoured.** `VQGanVAETrainer` passed it on where nothing read it, and
  penalised every step of the discriminator.
- **The discriminator begins late** (`loss.discriminator_start`, `loss.discriminator_ramp`), and sees the batch that the
  generator saw; the original drew another one. There is no perceptual loss unless `loss.perceptual_weights`
  names a file: nothing is downloaded.
- **Clipping covers one phase's whole gradient**, not both networks of a GAN, nor each parameter group by itself.
- **Validation is the same `eval.batches` batches each time**, without augmentation, on all processes, and leaves the
  model in training mode. Its samples cannot change the training.
- **Something is always held out**, also where Phenaki and the mesh trainers used all items for training when they were
  given no validation set. `data.validation_fraction=0` trains on everything and validates on the same.
- **Only what should be trained is**: a tokenizer inside a generator and a perceptual net are frozen.
- **Step 0 is not saved, the last step always is.** The newest `checkpoint.keep` checkpoints and the best one stay; the
  originals kept all.
- **Resuming is exact**: optimizer state by parameter name, step, order of the data and all random choices.
- **An existing run is never cleared, and nothing is asked on the terminal.** `resume=True` continues it.
- **A file that cannot be read is replaced and named in `data.json`.** `data.truncated=use` takes pictures that end too
  early as far as they go, as `VQGanVAETrainer` did. A batch larger than the data set is an error instead of an endless
  loop.
- **Sounds of different lengths are padded, and the padding is not heard.** `MuLaNTrainer` cut a whole batch to its
  shortest sound. What is longer than `data.seconds` is cropped at a place drawn for each item and epoch.
- **Phenaki drops texts and trains its critic.** The original dropped none, so that guidance had nothing to lead away
  from, and left the critic as it was; its masks fell on padding as often as on codes.
- **Mixed precision is bf16**; fp16 is not offered.
"""

OLD_WEIGHTS_HEAD = """\
## Old weights

quintet reads no `.pt` file: a pickle can run code when it is opened, so none ever is. The architectures are quintet's
own as well, so renaming tensors would not help:
"""

OLD_WEIGHTS_TAIL = """\
An existing **tokenizer stays usable through its codes**: encode your media with its own package, and train
`PhenakiTrainer` on items with `video_codebook_ids`, `SoundStormTrainer` on (semantic, acoustic) token ids. What they
make are then codes too, which the old package decodes. `MuseTrainer` and `MeshTransformerTrainer` want a tokenizer of
quintet's own, whose hash the run keeps: train one on the same files. A run that was given objects resumes from Python,
with the same objects.
"""


def page() -> str:
    """`docs/migration.md`."""
    return "\n".join(
        [
            INTRODUCTION,
            CHANGES,
            "## Keywords\n",
            "Every trainer has quintet's own keywords:\n",
            _table(
                ("keyword", "sets", "meaning"),
                ((f"`{rule.keyword}`", _goes_to(rule), rule.explanation) for rule in OWN),
            ),
            *(_trainer_section(trainer) for trainer in TRAINERS.values()),
            "### Entries of dictionaries\n",
            *(_parts_section(name, rules) for name, rules in PARTS.items()),
            "## Methods and attributes\n",
            _table(("original", "quintet", "to know"), METHODS),
            "## File names\n",
            "N is the step; K is the step divided by the interval. All of quintet's lie in the run folder; its step "
            "numbers have eight digits.\n",
            _table(("original", "quintet"), FILES),
            OLD_WEIGHTS_HEAD,
            _table(("class", "why its weights do not fit"), OLD_WEIGHTS),
            OLD_WEIGHTS_TAIL,
        ]
    )


def _trainer_section(trainer: OriginalTrainer) -> str:
    status = " This version of quintet does not have the recipe yet." if trainer.planned else ""
    head = f"### {trainer.name}\n\nOf {trainer.package} {trainer.version}; trains recipe `{trainer.recipe}`.{status}\n"
    return f"{head}\n{_rules_table(trainer.rules, trainer.planned)}"


def _parts_section(name: str, rules: Sequence[Rule]) -> str:
    return f"`{name}`:\n\n{_rules_table(rules, planned=False)}"


def _rules_table(rules: Sequence[Rule], planned: bool) -> str:
    rows = ((f"`{rule.keyword}`", _default(rule), _goes_to(rule, planned), rule.explanation) for rule in rules)
    return _table(("keyword", "its default", "in quintet", "to know"), rows)


def _default(rule: Rule) -> str:
    if rule.default is REQUIRED:
        return "required"
    return f"`{rule.default:.4g}`" if isinstance(rule.default, float) else f"`{rule.default!r}`"


def _goes_to(rule: Rule, planned: bool = False) -> str:
    if rule.keys:
        common = set(keys(RunConfig))
        return ", ".join(
            f"`{key}`" + (" (with the family)" if planned and key not in common else "") for key in rule.keys
        )
    if rule.argument:
        return f"argument `{rule.argument}`"
    if rule.refused:
        return f"refused, but for `{rule.fits[0]!r}`" if rule.fits else "refused"
    if rule.spread:
        return "any key"
    return "each entry" if rule.parts else "no effect"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    def lines() -> Iterator[str]:
        yield f"| {' | '.join(head)} |"
        yield "|" + "---|" * len(head)
        for row in rows:
            yield f"| {' | '.join(row)} |"

    return "\n".join(lines()) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
