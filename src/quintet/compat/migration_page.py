"""The page about moving from the original packages, `docs/migration.md`, made from the tables of their keywords."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from quintet.compat.rules import REQUIRED, OriginalTrainer, Rule
from quintet.compat.tables import TRAINERS
from quintet.compat.tables.shared import OWN, PARTS

INTRODUCTION = """\
# Moving to quintet

quintet has the six trainers under their old names, with keywords of its own. `quintet.compat` has them once more, in a
module for each original package, where they understand every keyword they had: it becomes a key or an argument of
quintet, or is refused with the reason. One warning (`CompatibilityNotice`) lists what was translated. Change the import
first; rename the keywords, and `quintet` itself is enough.

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

This page is made from the tables that `quintet.compat` translates by (`python -m quintet.compat > docs/migration.md`).
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

METHODS: tuple[tuple[str, str, str], ...] = (
    ("`train(log_fn)`", "`train(log_fn)`", "`log_fn` gets the figures of each step, and the grids of a sampling step."),
    ("`train(only_train_generator, only_train_critic)`", "`loss.train_only`", "A key of the run."),
    ("`trainer()`", "`trainer()`", "The same as `train()`."),
    ("`train_step()`", "`train_step()`", "Returns a dictionary of loss parts in every trainer, still on the device."),
    ("`save(path)`, `save(milestone)`, `save(overwrite=)`", "`save()`", "Into `checkpoints/` of the run, by step."),
    ("`load(path)`, `load(milestone)`", "`load(folder)`", "A checkpoint folder of quintet."),
    ("`load(path, restore_optimizer=False)`", "`load(folder, restore_optimizer=False)`", "Weights alone."),
    ("`print(msg)`", "`print(text)`", "Once, on the console and in `log.txt`."),
    ("`log(**values)`", "`log(**figures)`", "A row in `metrics.jsonl` and in every tracker."),
    ("`wait()`", "`wait()`", "For the other processes."),
    ("`device`, `is_main`, `is_local_main`", "`device`, `is_main`, `is_local_main`", "The same."),
    ("`is_distributed`", "`is_distributed`", "The same."),
    ("`steps`, `step`", "`step`", "An integer: steps taken so far."),
    ("`unwrapped_model`", "`unwrapped_model`", "Of every trainer; `task.modules` has all modules by name."),
    ("`ema_vae`, `ema_model`, `ema_tokenizer`", "`ema_model`", "The averaged model; the live one without averaging."),
    ("`warmup(step)`", "`lr_schedule(step)`", "The rate of any step, not only of the warm-up."),
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
    "`VQGanVAE`": "Pixels enter and leave as 2 x 2 blocks, and residual blocks and quantizers are others; the "
    "discriminator is a module of its own.",
    "`MuLaN`": "The audio tower hears log-mel spectrograms where the original heard raw power: its weights do not fit.",
    "`SoundStorm`": "Masking, embedding of levels and heads differ, and the codes are those of the codec it was "
    "trained with.",
    "`Phenaki`, `CViViT`": "The original's tokenizer is not causal in time, by a defect of its position module; one "
    "that is cannot use its weights, and a generator is of use with its own tokenizer only.",
    "`MeshAutoencoder`": "Angles and areas of faces are measured and binned in another way, so the embeddings mean "
    "other things.",
    "`MeshTransformer`": "It speaks the codes of one `MeshAutoencoder`; with another tokenizer its vocabulary has "
    "another meaning.",
}


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
            *(f"`{name}`:\n\n{_rules_table(rules)}" for name, rules in PARTS.items()),
            "## Methods and attributes\n",
            _table(("original", "quintet", "to know"), METHODS),
            "## File names\n",
            "N is the step; K is the step divided by the interval. All of quintet's lie in the run folder; its step "
            "numbers have eight digits.\n",
            _table(("original", "quintet"), FILES),
            OLD_WEIGHTS_HEAD,
            _table(("class", "why its weights do not fit"), OLD_WEIGHTS.items()),
            OLD_WEIGHTS_TAIL,
        ]
    )


def _trainer_section(trainer: OriginalTrainer) -> str:
    module = f"quintet.compat.{trainer.package.replace('-', '_')}"
    facts = f"Of {trainer.package} {trainer.version}, in `{module}`; trains recipe `{trainer.recipe}`."
    return f"### {trainer.name}\n\n{facts}\n\n{_rules_table(trainer.rules)}"


def _rules_table(rules: Sequence[Rule]) -> str:
    rows = ((f"`{rule.keyword}`", _default(rule), _goes_to(rule), rule.explanation) for rule in rules)
    return _table(("keyword", "its default", "in quintet", "to know"), rows)


def _default(rule: Rule) -> str:
    if rule.default is REQUIRED:
        return "required"
    return f"`{rule.default:.4g}`" if isinstance(rule.default, float) else f"`{rule.default!r}`"


def _goes_to(rule: Rule) -> str:
    if rule.keys:
        return ", ".join(f"`{key}`" for key in rule.keys)
    if rule.argument:
        return f"argument `{rule.argument}`"
    if rule.refused:
        return f"refused, but for `{rule.fits[0]!r}`" if rule.fits else "refused"
    if rule.spread:
        return "any key"
    return "each entry" if rule.parts else "no effect"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    line, *lines = (f"| {' | '.join(row)} |\n" for row in (head, *rows))
    return "".join([line, "|" + "---|" * len(head) + "\n", *lines])
