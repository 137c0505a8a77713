"""The sentences of the migration page: what changes in every package and in each one, and recipes."""

from __future__ import annotations

from collections.abc import Mapping

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
both are made of quintet's own models and training loop. What differs in a call is named in one warning
(`CompatibilityNotice`) at its line, and what is impossible is refused in one sentence.

- [What changes](#what-changes) in all packages, and [in each package](#each-package): what is different
  and what is refused
- [Recipes](#recipes): averaged weights, reproducible samples, your own optimizer and more
- [File names](#file-names) and [old weights](#old-weights)
- [migration-tables.md](migration-tables.md): every usage, method, attribute and keyword, executed by tests

Both pages are generated: `make migration` executes the usages and writes them.
"""

CHANGES = """\
## What changes

### Models

- **Text encoders: nothing is downloaded.** A name such as `t5_name="google/t5-v1_1-base"` becomes quintet's
  byte-level encoder, which is trained with the model, unless it is a local folder with a T5. Text
  embeddings that you pass yourself work as before.
- **Audio is log-mel**: MuLaN's spectrograms are log-mel, and a clip has at most `max_seconds`, by default 30 s.
- **Mesh features are fixed**: coordinates, angles, area and normal of a face, all with the same number of
  bins; neighbours of a face are averaged.
- **There are no residual streams**: `num_residual_streams` has no effect.
- **Phenaki's `cond_drop_prob` takes effect**; the original replaced it with 0 while training.
- **Random numbers**: each call draws its seed from torch's global generator, so that `torch.manual_seed`
  makes a script reproducible. The numbers are not those of the original.
- **There is no perceptual loss** unless `vgg=` is the path of a safetensors file of VGG-16: nothing is
  downloaded.
- **Attention heads** have the dimension `dim / heads`; `dim_head` changes nothing else.
- **Phenaki trains its critic and masks no padding**; the original never trained the critic, and
  masked padding as often as codes.

### Trainers

- **A trainer writes a run folder**, `<recipe>-<n>` in its results folder: checkpoints, logs, samples
  and configuration. A second training makes a new one; nothing is ever deleted, and there are no
  questions on the terminal. `resume=True` continues the newest one.
- **Checkpoints are folders, not pickles.** `save("vae.pt")` writes a folder with this name, and
  `load` reads it. Periodic checkpoints have their original names as links into the run folder. A
  file is never opened by `load`, nor replaced by `save`.
- **Loading and resuming are exact**: optimizer state by parameter name, step, order of the data and
  all random numbers. `load(path, restore_optimizer=False)` takes the weights alone, and the step
  restarts at 0. Step 0 is not saved; the last step always is.
- **The batch size** is that of one process and one micro-batch, as in the originals. The run records
  `train.batch_size`, the items of one optimizer step: `batch_size` x `grad_accum_every` x processes.
  `PhenakiTrainer` and `split_batches=True` divide `batch_size` among the processes.
- **Every micro-batch is full.** One that is larger than the data is refused; `MuLaNTrainer` compares the
  items of a whole step with each other, and needs as many. The originals trained on a smaller batch, or,
  where they dropped incomplete batches, waited for ever.
- **A dataset object is split as in the original**, with the same items. The files of a folder are held
  out by a hash of their names, so that `valid_frac` is not exact there, and adding files moves none.
- **The learning rate is a function of the step.** The schedulers of the originals advanced once per
  process and step, and their warm-up did not reach the peak. SoundStorm's cosine ends at the last
  step; in the original, it did not count the warm-up. `train_step()` after the last step goes on at
  the rate of the end of the schedule.
- **The decay of the moving average is used**, with a short ramp at the start. `VQGanVAETrainer`
  ignored `ema_beta`, and `PhenakiTrainer` had no average, only its keywords.
- **The interval of the gradient penalty is used.** `VQGanVAETrainer` ignored it and penalized every
  step of the discriminator.
- **The discriminator sees the same batch as the generator**; the original used another one.
- **Gradient clipping uses the norm of one phase**, not of both networks of a GAN, and not of each
  parameter group.
- **Validation uses the same `eval.batches` batches each time**, without augmentation, on all
  processes, and leaves the model in training mode. There is one after the last step, also where the
  original has none.
- **Frozen models stay frozen**: the tokenizer of a generator and the network of the perceptual loss
  are not trained.
- **Gradients that a model comes with are cleared**; the originals added them to those of the first
  step.
- **A file that cannot be read is replaced by another one and recorded in `data.json`.**
- **Audio clips of different lengths are padded, and the padding is masked.** `MuLaNTrainer`
  truncated a batch to its shortest clip. Clips longer than `data_max_length` are cropped at a random
  position for each item and epoch; the original used the start.
- **`PhenakiTrainer` reads a folder in two processes**, the original in one per core, and a dataset
  object in the training process. It samples `sample_texts`, which the original ignored.
- **Items of a dataset object are read and encoded at every step**, as in the originals, and meshes
  are not changed. If the dataset draws its items at random, a resumed run continues with other items.
- **Mixed precision is bf16**, also for `fp16=True`. On a GPU without bf16, set `engine.precision=fp16`
  for the generators, MuLaN and the mesh autoencoder.
"""

DIFFERENT: Mapping[str, tuple[str, ...]] = {
    "musiclm-pytorch": (
        "`AudioSpectrogramTransformer`: spectrograms are log-mel, with a window of `spec_n_fft` samples, padded with "
        "zeros. `sample_rate` and `max_seconds` are keywords of quintet for the rate and the longest clip.",
        "Augmentation masks at most half of the frequencies and frames, and does not stretch.",
        "`TextTransformer`: the vector of a text is the mean of its tokens, and raw texts are read as UTF-8 bytes.",
    ),
    "soundstorm-pytorch": (
        "`SoundStorm`: `no_replace_prob` and `random_token_prob` hold for half as many masked codes of every batch, "
        "instead of for half of the batches; codes that are not replaced are predicted, too.",
        "Semantic tokens that are missing or padded have a learned embedding; in the original they are 0. Behind the "
        "mask, `generate` repeats the last codes of a clip.",
        "`Conformer`: `num_residual_streams` has no effect.",
        "`ConformerWrapper`: the embeddings of grouped quantizers are summed, not concatenated.",
        "`SoundStream`: the codec is convolutional, and options of its attention have no effect.",
    ),
    "muse-maskgit-pytorch": (
        "`VQGanVAE`: without `vgg=` there is no perceptual loss; `codebook_dim` and `use_cosine_sim` have no effect, "
        "because codes are compared by distance.",
        "`MaskGitTransformer`, `TokenCritic`: `t5_name` is a local folder, or means the byte-level encoder; attention "
        "heads have the dimension `dim / heads`, not `dim_head`.",
    ),
    "phenaki-pytorch": (
        "`CViViT`: the tokenizer is causal in time. The discriminator classifies patches and has no attention "
        "(`discr_attn_res_layers`), and without `vgg=` there is no perceptual loss.",
        "`MaskGit`, `TokenCritic`: attention heads have the dimension `dim / heads`, not `dim_head`; `num_tokens` "
        "becomes the `codebook_size` of the `CViViT`.",
        "`Phenaki`: `t5_name` is a local folder, or means the byte-level encoder; `cond_drop_prob` takes effect.",
    ),
    "meshgpt-pytorch": (
        "Coordinates outside of `coor_continuous_range` get the first or the last bin, which a warning says.",
        "`MeshAutoencoder`: all quantizers are always used, and codes are not sampled (`rq_kwargs`, "
        "`rvq_stochastic_sample_codes`); convolutions of the decoder have a kernel of 3 faces "
        "(`init_decoder_conv_kernel`); neighbours of a face are averaged without a projection of their own "
        "(`sageconv_kwargs`); all features have `num_discrete_coors` bins; attention is local, without linear "
        "attention, and the heads follow from `dim_head`.",
        "`MeshTransformer`: attention heads have `dim / attn_heads` dimensions; there are no gate-loop layers, and one "
        "start token; texts are attended to by the stage over faces only, without FiLM or adaptive norms; without "
        "`text_condition_model_kwargs=({'name': FOLDER},)`, texts are encoded by the byte-level encoder.",
    ),
}
"""What calls do differently, by package; every subject of a `CompatibilityNotice` is here."""

RECIPES = """\
## Recipes

**Averaged weights in a new model.** A trainer of a tokenizer writes `vae.N.ema.pt` beside `vae.N.pt`:

```python
vae = VQGanVAE(dim=256, codebook_size=65536)
vae.load("results/vae.1000.ema.pt")
```

In the same script, `trainer.ema_vae.ema_model` is a model with the averaged weights, as is
`trainer.ema_model.ema_model` of the mesh autoencoder.

**The same samples again.** Call `torch.manual_seed(0)` before `generate` or `sample`.

**Your own optimizer.** A trainer makes its own; write the loop yourself to use another one. The model
returns the same loss:

```python
optimizer = torch.optim.SGD(vae.parameters(), lr=1e-3)
loss = vae(images, return_loss=True)
loss.backward()
optimizer.step()
optimizer.zero_grad()
```

**A dataset that augments.** Random choices in your `__getitem__` work; they use torch's generator and
are not part of a checkpoint, so that only quintet's own augmentation (`data.*`) resumes exactly.

**Imports from submodules.** The modules of the originals have their paths, such as
`quintet.compat.muse_maskgit_pytorch.vqgan_vae`; the package itself has all public names.

**Moving on to quintet's own names**, when a script works:

```python
from quintet import VQGanVAETrainer
VQGanVAETrainer(vae, data="photos", steps=10_000, batch_size=16, grad_accum_steps=4, out="results").train()
```
"""

OLD_WEIGHTS_HEAD = """\
## Old weights

quintet does not read `.pt` files, because a pickle can run code when it is opened. The
architectures also differ, so that renaming tensors would not help:
"""
