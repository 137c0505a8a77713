"""The page `docs/migration.md` about moving from the original packages, generated from the tables of this package."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from quintet.compat.rules import REQUIRED, OriginalTrainer, Rule
from quintet.compat.tables import TRAINERS
from quintet.compat.tables.members import Member, by_use
from quintet.compat.tables.shared import NEVER, OWN, PARTS
from quintet.compat.usages import Record, records_of_package

INTRODUCTION = """\
# Moving to quintet

This page is for users of musiclm-pytorch, soundstorm-pytorch, muse-maskgit-pytorch, phenaki-pytorch and
meshgpt-pytorch. Only the import line of a script changes:

```python
from muse_maskgit_pytorch import VQGanVAE, VQGanVAETrainer                  # before
from quintet.compat.muse_maskgit_pytorch import VQGanVAE, VQGanVAETrainer   # after
```

`quintet.compat` has one package for each original, with its public names. Models have the original
constructors, calls and losses, and trainers the original keywords, defaults, methods and attributes;
both are made of quintet's own models and training loop. What differs is listed here. A keyword that
becomes a key of quintet, and everything that has no effect, is also named in one warning
(`CompatibilityNotice`) at the line of the call. What is impossible is refused in one sentence.

- [What changes](#what-changes-in-the-results) in the results
- [Usages](#usages), executed, for each package
- [Methods and attributes](#methods-and-attributes) of the trainers, executed
- [Keywords](#keywords) of the trainers, and their defaults
- [File names](#file-names) and [old weights](#old-weights)

When a script works, you can move on to quintet's own names:

```python
from quintet import VQGanVAETrainer
VQGanVAETrainer(vae, data="photos", steps=10_000, batch_size=16, grad_accum_steps=4, out="results").train()
```

This page is generated: `make migration` executes the usages and writes it.
"""

CHANGES = """\
## What changes in the results

- **A trainer writes a run folder**, `<recipe>-<n>` in its results folder: checkpoints, logs, samples
  and configuration. A second training makes a new one; nothing is ever deleted, and there are no
  questions on the terminal. `resume=True` continues the newest one.
- **Checkpoints are folders, not pickles.** `save("vae.pt")` writes a folder with this name, and
  `load` reads it. Periodic checkpoints have their original names as links into the run folder. A
  file is never opened by `load`, nor replaced by `save`.
- **Loading and resuming are exact**: optimizer state by parameter name, step, order of the data and
  all random numbers. `load(path, restore_optimizer=False)` takes the weights alone, and the step
  restarts at 0. Step 0 is not saved; the last step always is.
- **Random numbers come from torch's global generator**: at each call of a model, and when a trainer
  is built. `torch.manual_seed` before a call reproduces it, and makes a script reproducible.
- **The learning rate is a function of the step.** The schedulers of the originals advanced once per
  process and step, and their warm-up did not reach the peak. SoundStorm's cosine ends at the last
  step; in the original, it did not count the warm-up.
- **The batch size** is that of one process and one micro-batch, as in the originals; the run records
  the total.
- **The decay of the moving average is used**, with a short ramp at the start. `VQGanVAETrainer`
  ignored `ema_beta`, and `PhenakiTrainer` had no average, only its keywords.
- **The interval of the gradient penalty is used.** `VQGanVAETrainer` ignored it and penalized every
  step of the discriminator.
- **The discriminator sees the same batch as the generator**; the original used another one. There is
  no perceptual loss unless a file of weights is given: nothing is downloaded.
- **Gradient clipping uses the norm of one phase**, not of both networks of a GAN, and not of each
  parameter group.
- **Validation uses the same `eval.batches` batches each time**, without augmentation, on all
  processes, and leaves the model in training mode. There is one after the last step, also where the
  original has none.
- **Frozen models stay frozen**: the tokenizer of a generator and the network of the perceptual loss
  are not trained.
- **Gradients that a model comes with are cleared**; the originals added them to those of the first
  step.
- **A file that cannot be read is replaced by another one and recorded in `data.json`.** A batch
  larger than the dataset is an error instead of an endless loop.
- **Audio clips of different lengths are padded, and the padding is masked.** `MuLaNTrainer`
  truncated a batch to its shortest clip. Clips longer than `data_max_length` are cropped at a random
  position for each item and epoch; the original used the start.
- **Phenaki trains its critic and masks no padding**; the original never trained the critic, and
  masked padding as often as codes. It reads a folder in two processes, the original in one per core,
  and a dataset object in the training process.
- **Items of a dataset object are read and encoded at every step**, as in the originals, and meshes
  are not changed. If the dataset draws its items at random, a resumed run continues with other items.
- **Semantic tokens that are missing or padded have a learned embedding** in SoundStorm; in the
  original they are 0. Behind the mask, `generate` repeats the last codes of a clip.
- **Mixed precision is bf16**; fp16 is not supported.
"""

OLD_WEIGHTS_HEAD = """\
## Old weights

quintet does not read `.pt` files, because a pickle can run code when it is opened. The
architectures also differ, so that renaming tensors would not help:
"""

OLD_WEIGHTS_TAIL = """\
An existing **tokenizer remains usable through its codes**: encode your media with the original
package, and train `PhenakiTrainer` on items with `video_codebook_ids`, or `SoundStormTrainer` on
(semantic, acoustic) token ids. Their samples are then codes as well, which the original package
decodes. `MuseTrainer` and `MeshTransformerTrainer` need a tokenizer of quintet, whose hash is
recorded in the run: train one on the same files. A run on a Python dataset resumes from Python,
with the same dataset.
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
    ("`vae.N.ema.pt`", "`checkpoints/step-N/ema/<module>.safetensors`"),
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


def page() -> str:
    """The content of `docs/migration.md`."""
    return "\n".join(
        [
            INTRODUCTION,
            CHANGES,
            "## Usages\n",
            USAGES,
            *(_usages_section(package) for package in dict.fromkeys(each.package for each in TRAINERS.values())),
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
