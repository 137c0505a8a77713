"""Every keyword of `MuLaNTrainer` in musiclm-pytorch 0.2.8, its default, and where it goes."""

from __future__ import annotations

from quintet.compat.rules import REQUIRED, OriginalTrainer, Rule, no_effect, to_argument, to_key, to_parts
from quintet.compat.tables.dictionaries import ENGINE_PARTS
from quintet.compat.tables.shared import (
    CLEAR,
    SPLIT,
    accumulation,
    batch_size,
    betas,
    checkpoints,
    clip,
    data_set,
    model,
    out,
    rate,
    steps,
)
from quintet.training.options import CONTRASTIVE, FLAG, STEPS

MULAN: tuple[Rule, ...] = (
    model("mulan", "MuLaN"),
    data_set(REQUIRED),
    steps("num_train_steps", None, "Optimizer steps of the run; the original took as many as there are items."),
    batch_size(kind=CONTRASTIVE),
    to_argument("data_max_length", None, "max_samples", "Becomes `data.seconds`, by the model's rate.", STEPS),
    no_effect("folder", None, (), "the original never read it; a folder can be given as `data`"),
    rate("lr", 3e-4),
    accumulation(1),
    betas("betas"),
    clip(0.5),
    *SPLIT,
    checkpoints("save_model_every"),
    out("results_folder", "./results"),
    to_parts("accelerate_kwargs", ENGINE_PARTS),
    to_key("use_lion", False, "optim.name", FLAG, "Lion instead of AdamW.", lambda flag: "lion" if flag else "adamw"),
    CLEAR,
)

MULAN_TRAINER = OriginalTrainer("MuLaNTrainer", "mulan", "musiclm-pytorch", "0.2.8", 2, MULAN)
