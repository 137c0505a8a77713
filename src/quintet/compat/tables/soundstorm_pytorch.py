"""Every keyword of `SoundStormTrainer` in soundstorm-pytorch 0.6.1, its default, and where it goes."""

from __future__ import annotations

from quintet.compat.kinds import NOT_NEGATIVE
from quintet.compat.rules import REQUIRED, OriginalTrainer, Rule, no_effect, to_key, to_parts
from quintet.compat.tables.dictionaries import ENGINE_PARTS, GLOBAL_BATCH
from quintet.compat.tables.shared import (
    CLEAR,
    SPLIT,
    accumulation,
    batch_size,
    checkpoints,
    clip,
    data_set,
    model,
    only_train,
    out,
    rate,
    steps,
    validations,
    warmup,
    weight_decay,
)

SOUNDSTORM: tuple[Rule, ...] = (
    model("model", "SoundStorm"),
    steps("num_train_steps", REQUIRED),
    warmup("num_warmup_steps", REQUIRED),
    batch_size(),
    data_set(None),
    only_train("generator"),
    only_train("critic"),
    rate("lr", 3e-4),
    to_key("initial_lr", 1e-5, "optim.initial_lr", NOT_NEGATIVE, "Rate at the start of the warm-up."),
    accumulation(1),
    weight_decay("wd", 0.0),
    clip(0.5),
    *SPLIT,
    validations("save_results_every", 100),
    checkpoints("save_model_every"),
    out("results_folder", "./results"),
    to_parts("accelerate_kwargs", ENGINE_PARTS),
    no_effect("split_batches", False, (True,), GLOBAL_BATCH),
    no_effect(
        "drop_last", False, (False,), "batches run on over the end of an epoch: all are full, nothing is dropped"
    ),
    CLEAR,
)

SOUNDSTORM_TRAINER = OriginalTrainer("SoundStormTrainer", "soundstorm", "soundstorm-pytorch", "0.6.1", 1, SOUNDSTORM)
