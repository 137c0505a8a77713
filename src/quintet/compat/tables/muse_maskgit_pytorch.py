"""Every keyword of `VQGanVAETrainer` in muse-maskgit-pytorch 0.3.5, its default, and where it goes."""

from __future__ import annotations

from quintet.compat.kinds import COUNT, DECAY, INTERVAL, NORM
from quintet.compat.rules import REQUIRED, OriginalTrainer, Rule, to_argument, to_key, to_parts
from quintet.compat.tables.dictionaries import ENGINE_PARTS
from quintet.compat.tables.shared import SPLIT, accumulation, batch_size, checkpoints, clip, model, out, rate, steps
from quintet.training.options import FEW, FLAG

VQGAN: tuple[Rule, ...] = (
    model("vae", "VQGanVAE"),
    to_argument("folder", REQUIRED, "data", "The folder of pictures."),
    steps("num_train_steps", REQUIRED),
    batch_size(),
    to_argument("image_size", REQUIRED, "image_size", "Belongs to the model, `model.image_size`; must be the same."),
    rate("lr", 3e-4),
    accumulation(1),
    clip(None, "Largest norm of the gradient; the discriminator's too, unless `discr_max_grad_norm` is given."),
    to_key("discr_max_grad_norm", None, "optim.discriminator.clip", NORM, "The same for the discriminator alone."),
    to_key("save_results_every", 100, "sample.every", INTERVAL, "Steps between two grids of reconstructions."),
    checkpoints("save_model_every"),
    out("results_folder", "./results"),
    *SPLIT,
    to_key("use_ema", True, "ema.enabled", FLAG, "Keep a moving average of the weights."),
    to_key("ema_beta", 0.995, "ema.decay", DECAY, "Decay of the average; the original ignored it."),
    to_key("ema_update_after_step", 0, "ema.start", COUNT, "The average is a plain copy before."),
    to_key("ema_update_every", 1, "ema.every", FEW, "Steps between two updates."),
    to_key(
        "apply_grad_penalty_every", 4, "loss.penalty_every", FEW, "The original ignored it: it penalised each step."
    ),
    to_parts("accelerate_kwargs", ENGINE_PARTS),
)

VQGAN_TRAINER = OriginalTrainer("VQGanVAETrainer", "vqgan", "muse-maskgit-pytorch", "0.3.5", 1, VQGAN)
