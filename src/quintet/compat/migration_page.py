"""The page `docs/migration.md` about moving from the original packages, generated from the tables of their keywords."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from quintet.compat.rules import REQUIRED, OriginalTrainer, Rule
from quintet.compat.tables import TRAINERS
from quintet.compat.tables.shared import OWN, PARTS
from quintet.compat.usages import Record, records_of_package

INTRODUCTION = """\
# Moving to quintet

This page is for users of muse-maskgit-pytorch, musiclm-pytorch, soundstorm-pytorch, phenaki-pytorch and
meshgpt-pytorch. quintet has their seven trainers under the same names, with its own keywords.
`quintet.compat` has one module for each original package, whose trainers accept all original keywords.
Each keyword becomes a key or an argument of quintet, or is refused with the reason.
One warning (`CompatibilityNotice`) lists the translated keywords.
First change the import; after you rename the keywords, you can import from `quintet` itself.

```python
# muse-maskgit-pytorch
from muse_maskgit_pytorch import VQGanVAETrainer
VQGanVAETrainer(vae, folder="photos", image_size=128, num_train_steps=10_000, batch_size=4, grad_accum_every=4,
                results_folder="results").train()
# quintet, the same call
from quintet.compat.muse_maskgit_pytorch import VQGanVAETrainer
VQGanVAETrainer(vae, folder="photos", image_size=128, num_train_steps=10_000, batch_size=4, grad_accum_every=4,
                results_folder="results").train()
# quintet, its own keywords
from quintet import VQGanVAETrainer
VQGanVAETrainer(vae, data="photos", steps=10_000, batch_size=16, grad_accum_steps=4, out="results").train()
```

This page is generated from the tables of `quintet.compat` (`python -m quintet.compat > docs/migration.md`).
Keywords that you leave out have quintet's defaults, not the original ones; `quintet config RECIPE` shows them all.
Two keywords that set the same key to different values are an error, and so is an invalid value.
Both are reported before anything is written.
"""

CHANGES = """\
## What changes in the results

- **The batch size is that of one optimizer step**, over all processes and micro-batches. In the
  originals it is that of one micro-batch in one process. If `grad_accum_every` is given,
  `quintet.compat` multiplies the batch size by it. It does not know the number of processes:
  multiply by that yourself, unless you used `split_batches=True`.
- **The learning rate is a function of the step.** The schedulers of the originals advanced once per
  process and step, their warm-up did not reach the peak, and only SoundStorm had a cosine schedule
  by default. quintet's default is a cosine schedule. For a constant rate:
  `config={"optim.schedule": "constant"}`.
- **The decay of the exponential moving average is used**, with a short ramp at the start.
  `VQGanVAETrainer` ignored `ema_beta`; `PhenakiTrainer` and `MeshTransformerTrainer` ignored all
  settings of the average.
- **The interval of the gradient penalty is used.** `VQGanVAETrainer` ignored it and penalized every
  step of the discriminator.
- **The discriminator starts late** (`loss.discriminator_start`, `loss.discriminator_ramp`) and sees
  the same batch as the generator; the original used another one. There is no perceptual loss unless
  `loss.perceptual_weights` names a file: nothing is downloaded.
- **Gradient clipping uses the norm of one phase**, not of both networks of a GAN, and not of each
  parameter group.
- **Validation uses the same `eval.batches` batches each time**, without augmentation, on all
  processes, and leaves the model in training mode. It does not affect the training.
- **Some items are always held out**, also where Phenaki and the mesh trainers used all items for
  training because there was no validation set. `data.validation_fraction=0` trains and validates on
  all items.
- **Frozen models stay frozen**: the tokenizer of a generator and the network of the perceptual loss
  are not trained.
- **Step 0 is not saved; the last step always is.** The newest `checkpoint.keep` checkpoints and the
  best one remain; the originals kept all checkpoints.
- **Resuming is exact**: optimizer state by parameter name, step, order of the data and all random
  numbers.
- **An existing run is never cleared, and there are no prompts on the terminal.** `resume=True`
  continues a run.
- **A file that cannot be read is replaced by another one and recorded in `data.json`.**
  `data.truncated=use` accepts truncated images, as `VQGanVAETrainer` did. A batch larger than the
  dataset is an error instead of an endless loop.
- **Audio clips of different lengths are padded, and the padding is masked.** `MuLaNTrainer`
  truncated a batch to its shortest clip. Clips longer than `data.seconds` are cropped at a random
  position for each item and epoch.
- **Phenaki drops texts and trains its critic.** The original never dropped texts, so that
  classifier-free guidance had no unconditional model, and never trained the critic; it masked
  padding as often as codes.
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

METHODS: tuple[tuple[str, str, str], ...] = (
    (
        "`train(log_fn)`",
        "`train(log_fn)`",
        "`log_fn` gets the metrics of each step, and the grids of a step with samples.",
    ),
    ("`train(only_train_generator, only_train_critic)`", "`loss.train_only`", "A key of the run."),
    ("`trainer()`", "`trainer()`", "The same as `train()`."),
    ("`train_step()`", "`train_step()`", "Returns a dictionary of loss parts in every trainer, still on the device."),
    (
        "`save(path)`, `save(milestone)`, `save(overwrite=)`",
        "`save()`",
        "Writes to `checkpoints/` of the run, by step.",
    ),
    ("`load(path)`, `load(milestone)`", "`load(folder)`", "A checkpoint folder of quintet."),
    ("`load(path, restore_optimizer=False)`", "`load(folder, restore_optimizer=False)`", "Loads only the weights."),
    ("`print(msg)`", "`print(text)`", "Prints once, on the console and in `log.txt`."),
    ("`log(**values)`", "`log(**metrics)`", "Writes a row to `metrics.jsonl` and to every tracker."),
    ("`wait()`", "`wait()`", "Waits for the other processes."),
    ("`device`, `is_main`, `is_local_main`", "`device`, `is_main`, `is_local_main`", "The same."),
    ("`is_distributed`", "`is_distributed`", "The same."),
    ("`steps`, `step`", "`step`", "An integer: number of finished steps."),
    ("`unwrapped_model`", "`unwrapped_model`", "In every trainer; `task.modules` has all modules by name."),
    (
        "`ema_vae`, `ema_model`, `ema_tokenizer`",
        "`ema_model`",
        "The averaged model; the live model if there is no average.",
    ),
    ("`warmup(step)`", "`lr_schedule(step)`", "The learning rate of any step, not only of the warm-up."),
    ("`generate(…)`", "the model's `generate`", "Or `quintet sample RUN`."),
    ("`tokenize(…)`", "the tokenizer's `encode`", "Or `quintet encode RUN DATA`."),
    (
        "`wandb_tracking(project, run)`",
        "`log.trackers`, `log.project`, `log.name`",
        "Keys instead of a context manager.",
    ),
    ("`accelerator`", "`engine`", "`torchrun` and `accelerate launch` both start quintet."),
)

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
            "## Keywords\n",
            "Every trainer has quintet's own keywords:\n",
            _table(
                ("keyword", "sets", "meaning"),
                ((f"`{rule.keyword}`", _target(rule), rule.explanation) for rule in OWN),
            ),
            *(_trainer_section(trainer) for trainer in TRAINERS.values()),
            "### Entries of dictionaries\n",
            *(f"`{name}`:\n\n{_rules_table(rules)}" for name, rules in PARTS.items()),
            "## Methods and attributes\n",
            _table(("original", "quintet", "note"), METHODS),
            "## File names\n",
            "N is the step; K is the step divided by the interval. The files of quintet are in the run folder;\n"
            "its step numbers have eight digits.\n",
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


def _trainer_section(trainer: OriginalTrainer) -> str:
    module = f"quintet.compat.{trainer.package.replace('-', '_')}"
    facts = f"From {trainer.package} {trainer.version}, in `{module}`; trains the recipe `{trainer.recipe}`."
    return f"### {trainer.name}\n\n{facts}\n\n{_rules_table(trainer.rules)}"


def _rules_table(rules: Sequence[Rule]) -> str:
    rows = ((f"`{rule.keyword}`", _default(rule), _target(rule), rule.explanation) for rule in rules)
    return _table(("keyword", "original default", "in quintet", "note"), rows)


def _default(rule: Rule) -> str:
    if rule.default is REQUIRED:
        return "required"
    return f"`{rule.default:.4g}`" if isinstance(rule.default, float) else f"`{rule.default!r}`"


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
