"""Every keyword of the two trainers of meshgpt-pytorch 1.8.1, its default, and where it goes."""

from __future__ import annotations

from quintet.compat.kinds import SCHEDULER
from quintet.compat.rules import REQUIRED, OriginalTrainer, Rule, if_true, to_argument, to_key, to_parts
from quintet.compat.tables.dictionaries import EMA_PARTS, ENGINE_PARTS, OPTIMIZER_PARTS, SCHEDULER_PARTS
from quintet.compat.tables.shared import (
    accumulation,
    batch_size,
    checkpoints,
    clip,
    data_set,
    declared,
    model,
    out,
    rate,
    steps,
    validations,
    warmup,
    weight_decay,
)
from quintet.training.options import FEW, FLAG

MESH_FIELDS = ("vertices", "faces", "face_edges")
MESH_COMMON: tuple[Rule, ...] = (
    data_set(REQUIRED),
    steps("num_train_steps", REQUIRED),
    batch_size(),
    accumulation(REQUIRED),
)
VALIDATION_SET = to_argument("val_dataset", None, "validation", "A data set object; a folder can stand here too.")
VALIDATION_BATCHES = Rule(
    "val_num_batches",
    5,
    "Batches of a validation; given with `grad_accum_every`, multiplied by it, as it was.",
    keys=("eval.batches",),
    kind=FEW,
    times_accumulation=True,
)
SCHEDULE: tuple[Rule, ...] = (
    to_key("scheduler", None, "optim.schedule", SCHEDULER, "torch's CosineAnnealingLR; for others use `lr_schedule`."),
    to_parts("scheduler_kwargs", SCHEDULER_PARTS),
)
MESH_TRACKING = to_key(
    "use_wandb_tracking", False, "log.trackers", FLAG, "`log.project` and `log.name` name the run.", if_true(("wandb",))
)

MESH_AUTOENCODER: tuple[Rule, ...] = (
    model("model", "MeshAutoencoder"),
    *MESH_COMMON,
    VALIDATION_SET,
    validations("val_every", 100),
    VALIDATION_BATCHES,
    rate("learning_rate", 1e-4),
    weight_decay("weight_decay", 0.0),
    clip(None),
    to_parts("ema_kwargs", EMA_PARTS, {"use_foreach": True}),
    *SCHEDULE,
    to_parts("accelerator_kwargs", ENGINE_PARTS),
    to_parts("optimizer_kwargs", OPTIMIZER_PARTS),
    checkpoints("checkpoint_every"),
    out("checkpoint_folder", "./checkpoints"),
    declared("data_kwargs", list(MESH_FIELDS)),
    warmup("warmup_steps", 1000),
    MESH_TRACKING,
)

MESH_TRANSFORMER: tuple[Rule, ...] = (
    model("model", "MeshTransformer"),
    *MESH_COMMON,
    rate("learning_rate", 2e-4),
    weight_decay("weight_decay", 0.0),
    clip(0.5),
    VALIDATION_SET,
    validations("val_every", 1),
    VALIDATION_BATCHES,
    *SCHEDULE,
    to_parts("ema_kwargs", EMA_PARTS),
    to_parts("accelerator_kwargs", ENGINE_PARTS),
    to_parts("optimizer_kwargs", OPTIMIZER_PARTS),
    checkpoints("checkpoint_every"),
    out("checkpoint_folder", "./checkpoints"),
    declared("data_kwargs", [*MESH_FIELDS, "texts"]),
    warmup("warmup_steps", 1000),
    MESH_TRACKING,
)

MESH_AUTOENCODER_TRAINER = OriginalTrainer(
    "MeshAutoencoderTrainer", "mesh-autoencoder", "meshgpt-pytorch", "1.8.1", 21, MESH_AUTOENCODER
)
MESH_TRANSFORMER_TRAINER = OriginalTrainer(
    "MeshTransformerTrainer", "mesh-transformer", "meshgpt-pytorch", "1.8.1", 21, MESH_TRANSFORMER
)
