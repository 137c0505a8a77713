"""Tables of all keywords of the original trainers: default values and translation. Does not import torch."""

from __future__ import annotations

from collections.abc import Mapping

from quintet.compat import kinds
from quintet.compat.rules import (
    REQUIRED,
    Implied,
    OriginalTrainer,
    Rule,
    if_true,
    no_effect,
    to_argument,
    to_key,
    to_parts,
)
from quintet.compat.tables import shared
from quintet.training.options import CONTRASTIVE_BATCH, FLAG, POSITIVE, STEPS

MULAN: tuple[Rule, ...] = (
    shared.model("mulan", "MuLaN"),
    shared.dataset(REQUIRED),
    shared.steps("num_train_steps", None, "Number of optimizer steps; by default the number of items."),
    shared.batch_size(kind=CONTRASTIVE_BATCH),
    to_argument(
        "data_max_length",
        None,
        "max_samples",
        "Becomes `data.seconds`, converted with the model's sampling rate; None takes the longest clip of the model.",
        STEPS,
    ),
    no_effect("folder", None, (), "the original never read it; pass a folder as `data`"),
    shared.rate("lr", 3e-4),
    shared.accumulation(1),
    shared.betas("betas"),
    shared.clip(0.5),
    *shared.SPLIT,
    shared.checkpoints("save_model_every"),
    shared.results("results_folder", "./results"),
    to_parts("accelerate_kwargs", shared.ENGINE_PARTS),
    to_key("use_lion", False, "optim.name", FLAG, "Use Lion instead of Adam.", lambda flag: "lion" if flag else "adam"),
    shared.CLEAR,
)

SOUNDSTORM: tuple[Rule, ...] = (
    shared.model("model", "SoundStorm"),
    shared.steps("num_train_steps", REQUIRED),
    shared.warmup("num_warmup_steps", REQUIRED),
    shared.batch_size(),
    shared.dataset(None),
    shared.only_train("generator"),
    shared.only_train("critic"),
    shared.rate("lr", 3e-4),
    to_key("initial_lr", 1e-5, "optim.initial_lr", kinds.NOT_NEGATIVE, "Learning rate at the start of the warm-up."),
    shared.accumulation(1),
    shared.weight_decay("wd", 0.0),
    shared.clip(0.5),
    *shared.SPLIT,
    shared.validations("save_results_every", 100),
    shared.checkpoints("save_model_every"),
    shared.results("results_folder", "./results"),
    to_parts("accelerate_kwargs", shared.ENGINE_PARTS),
    shared.SPLIT_BATCHES,
    no_effect(
        "drop_last",
        False,
        (False,),
        "batches continue across the end of an epoch: all are full, and no item is dropped",
    ),
    shared.CLEAR,
)

GAN_TOKENIZER: tuple[Rule, ...] = (
    to_key(
        "discr_max_grad_norm",
        None,
        "optim.discriminator.max_grad_norm",
        kinds.NORM,
        "Maximum gradient norm of the discriminator.",
    ),
    to_key(
        "save_results_every",
        100,
        "sample.every",
        kinds.INTERVAL,
        "Number of steps between two grids of reconstructions.",
    ),
    shared.checkpoints("save_model_every"),
    shared.results("results_folder", "./results"),
    *shared.SPLIT,
    to_key("use_ema", True, "ema.enabled", FLAG, "Maintain an exponential moving average of the weights."),
    to_key("ema_beta", 0.995, "ema.decay", kinds.DECAY, "Decay of the moving average; the original ignored it."),
    to_key(
        "ema_update_after_step", 0, "ema.start", kinds.COUNT, "Before this step, the average is a copy of the weights."
    ),
    to_key("ema_update_every", 1, "ema.every", POSITIVE, "Number of steps between two updates of the average."),
    to_key(
        "apply_grad_penalty_every",
        4,
        "loss.gradient_penalty_every",
        POSITIVE,
        "Number of steps between two gradient penalties; the original applied it in every step.",
    ),
    to_parts("accelerate_kwargs", shared.ENGINE_PARTS),
)
"""The last keywords of both trainers of tokenizers."""

VQGAN: tuple[Rule, ...] = (
    shared.model("vae", "VQGanVAE"),
    to_argument("folder", REQUIRED, "data", "Folder of images."),
    shared.steps("num_train_steps", REQUIRED),
    shared.batch_size(),
    to_argument("image_size", REQUIRED, "image_size", "Must equal `model.image_size` of the model."),
    shared.rate("lr", 3e-4),
    shared.accumulation(1),
    shared.clip(None, "Maximum gradient norm; also of the discriminator, unless `discr_max_grad_norm` is given."),
    *GAN_TOKENIZER,
)

TRAIN_ON_IMAGES = Rule(
    "train_on_images",
    False,
    "Train on one frame of each video; `num_frames` has then no effect.",
    keys=("data.frames",),
    kind=FLAG,
    convert=if_true(1),
    replaces="num_frames",
)

CVIVIT: tuple[Rule, ...] = (
    shared.model("vae", "CViViT"),
    shared.steps("num_train_steps", REQUIRED),
    shared.batch_size(),
    to_argument("folder", REQUIRED, "data", "Folder of videos or images."),
    TRAIN_ON_IMAGES,
    to_key(
        "num_frames",
        17,
        "data.frames",
        kinds.FRAMES,
        "Number of frames of a training clip; an image is a clip of one frame.",
    ),
    shared.rate("lr", 3e-4),
    shared.accumulation(1),
    shared.weight_decay("wd", 0.0),
    shared.clip(0.5, "Maximum gradient norm; also of the discriminator, unless `discr_max_grad_norm` is given."),
    *GAN_TOKENIZER,
)

PHENAKI: tuple[Rule, ...] = (
    shared.model("phenaki", "Phenaki"),
    to_argument("folder", None, "data", "Folder of videos or images."),
    TRAIN_ON_IMAGES,
    shared.batch_size(16),
    shared.accumulation(1),
    to_key(
        "num_frames",
        17,
        "data.frames",
        kinds.FRAMES,
        "Number of frames of a training clip; an image is a clip of one frame.",
    ),
    to_key("sample_num_frames", None, "sample.frames", kinds.FRAMES, "Number of frames of a sample."),
    shared.rate("train_lr", 1e-4),
    shared.steps("train_num_steps", 100_000),
    shared.clip(None),
    to_key(
        "ema_update_every",
        10,
        "ema.every",
        POSITIVE,
        "Number of steps between two updates of the average; the original had no average.",
    ),
    to_key("ema_decay", 0.995, "ema.decay", kinds.DECAY, "Decay of the moving average; the original had no average."),
    shared.betas("adam_betas"),
    shared.weight_decay("wd", 0),
    Rule(
        "save_and_sample_every",
        1000,
        "Number of steps between two samples, and between two checkpoints.",
        keys=("sample.every", "checkpoint.every"),
        kind=kinds.INTERVAL,
    ),
    to_key("num_samples", 25, "sample.num", POSITIVE, "Number of samples; need not be a square."),
    shared.results("results_folder", "./results"),
    to_key("amp", False, "engine.precision", FLAG, "Use bf16 mixed precision.", if_true("bf16")),
    to_key("fp16", False, "engine.precision", FLAG, "Becomes bf16.", if_true("bf16", shared.FP16_NOTICE)),
    to_argument(
        "split_batches", True, "split_batches", "Whether the batch size is the total over all processes.", FLAG
    ),
    no_effect(
        "convert_image_to",
        None,
        (),
        "files are converted to the channels of the tokenizer: 1 is L, 3 is RGB, 4 is RGBA",
    ),
    to_key(
        "sample_texts_file_path", None, "sample.texts", kinds.TEXTS_FILE, "File with one caption per line to sample."
    ),
    to_key("sample_texts", None, "sample.texts", kinds.TEXTS, "Captions to sample; the original ignored them."),
    shared.dataset(None),
    shared.declared("dataset_fields", None),
)

MESH_COMMON: tuple[Rule, ...] = (
    shared.dataset(REQUIRED),
    shared.steps("num_train_steps", REQUIRED),
    shared.batch_size(),
    shared.accumulation(REQUIRED),
)
SCHEDULE: tuple[Rule, ...] = (
    to_argument(
        "scheduler",
        None,
        "scheduler",
        "A scheduler class of torch; becomes `optim.scheduler`, a function of the step.",
        kinds.SCHEDULER,
    ),
    to_argument("scheduler_kwargs", {}, "scheduler_kwargs", "Arguments of the scheduler.", kinds.OPTIONS),
)


def _mesh_optimizer(rate: float, clip: float | None) -> tuple[Rule, ...]:
    return shared.rate("learning_rate", rate), shared.weight_decay("weight_decay", 0.0), shared.clip(clip)


def _mesh_validation(every: int) -> tuple[Rule, ...]:
    explanation = "Number of batches of a validation; multiplied by `grad_accum_every`, as in the original."
    return (
        to_argument("val_dataset", None, "validation", "A dataset object, or a folder."),
        shared.validations("val_every", every, only_with="val_dataset"),
        Rule(
            "val_num_batches",
            5,
            explanation,
            keys=("eval.batches",),
            kind=POSITIVE,
            times_accumulation=True,
            only_with="val_dataset",
        ),
    )


def _mesh_rest(*fields: str) -> tuple[Rule, ...]:
    tracking = "Log to wandb; `log.project` and `log.name` name the run."
    return (
        to_parts("accelerator_kwargs", shared.ENGINE_PARTS),
        to_parts("optimizer_kwargs", shared.OPTIMIZER_PARTS),
        shared.checkpoints("checkpoint_every"),
        shared.results("checkpoint_folder", "./checkpoints"),
        shared.declared("data_kwargs", list(fields)),
        shared.warmup("warmup_steps", 1000),
        to_key("use_wandb_tracking", False, "log.trackers", FLAG, tracking, if_true(("wandb",))),
    )


MESH_AUTOENCODER: tuple[Rule, ...] = (
    shared.model("model", "MeshAutoencoder"),
    *MESH_COMMON,
    *_mesh_validation(100),
    *_mesh_optimizer(1e-4, None),
    to_parts("ema_kwargs", shared.EMA_PARTS, {"use_foreach": True}),
    *SCHEDULE,
    *_mesh_rest("vertices", "faces", "face_edges"),
)
MESH_TRANSFORMER: tuple[Rule, ...] = (
    shared.model("model", "MeshTransformer"),
    *MESH_COMMON,
    *_mesh_optimizer(2e-4, 0.5),
    *_mesh_validation(1),
    *SCHEDULE,
    to_parts("ema_kwargs", shared.EMA_PARTS),
    *_mesh_rest("vertices", "faces", "face_edges", "texts"),
)

# --- what they do without a keyword ------------------------------------------------------------------------------

MULAN_ALWAYS = (
    *shared.ALWAYS,
    shared.NO_WORKERS,
    shared.NO_AVERAGE,
    shared.CONSTANT,
    shared.NO_WARMUP,
    shared.NO_DECAY,
)
SOUNDSTORM_ALWAYS = (
    *shared.ALWAYS,
    shared.NO_WORKERS,
    shared.NO_AVERAGE,
    shared.ADAMW,
    shared.implied_betas(0.9, 0.99),
    Implied("optim.schedule", "cosine", "The learning rate follows a cosine after the warm-up."),
    Implied("optim.final_lr", 0.0, "The cosine ends at 0."),
)
VQGAN_ALWAYS = (
    *shared.ALWAYS,
    shared.NO_WORKERS,
    shared.ADAM,
    shared.implied_betas(0.9, 0.999),
    shared.CONSTANT,
    shared.NO_WARMUP,
    shared.NO_DECAY,
    Implied("data.flip", True, "Half of the training images are flipped."),
    Implied("data.truncated", "use", "Truncated files are used as far as they go."),
)
CVIVIT_ALWAYS = (
    *shared.ALWAYS,
    shared.NO_WORKERS,
    shared.ADAMW,
    shared.implied_betas(0.9, 0.99),
    shared.CONSTANT,
    shared.NO_WARMUP,
)
WITHOUT_VALIDATION = "All items train, and without a validation set there is no validation."
PHENAKI_ALWAYS = (
    *shared.ALWAYS,
    shared.ADAMW,
    shared.CONSTANT,
    shared.NO_WARMUP,
    Implied("data.validation_fraction", 0.0, WITHOUT_VALIDATION),
    Implied("eval.every", shared.NEVER, WITHOUT_VALIDATION),
)
MESH_ALWAYS = (
    *shared.ALWAYS,
    shared.NO_WORKERS,
    shared.ADAMW,
    shared.implied_betas(0.9, 0.99),
    shared.CONSTANT,
    Implied("optim.initial_lr", 0.0, "The warm-up starts at 0."),
    Implied("data.augment", False, "Meshes are not augmented."),
    Implied("data.max_faces", shared.NEVER, "There is no limit on the number of faces."),
    Implied("data.validation_fraction", 0.0, WITHOUT_VALIDATION),
    Implied("eval.every", shared.NEVER, WITHOUT_VALIDATION, unless="val_dataset"),
    Implied("sample.every", shared.NEVER, "There are no samples during training."),
)
MESH_AUTOENCODER_ALWAYS = (
    *MESH_ALWAYS,
    Implied("ema.enabled", True, "There is an average of the weights, with the defaults of `ema_kwargs`."),
)
MESH_TRANSFORMER_ALWAYS = (
    *MESH_ALWAYS,
    Implied("ema.enabled", False, "There is no average of the weights, unless `ema_kwargs` is given.", "ema_kwargs"),
)

TRAINERS: Mapping[str, OriginalTrainer] = {
    trainer.name: trainer
    for trainer in (
        OriginalTrainer("MuLaNTrainer", "mulan", "musiclm-pytorch", "0.2.8", 2, MULAN, MULAN_ALWAYS),
        OriginalTrainer(
            "SoundStormTrainer", "soundstorm", "soundstorm-pytorch", "0.6.1", 1, SOUNDSTORM, SOUNDSTORM_ALWAYS
        ),
        OriginalTrainer("VQGanVAETrainer", "vqgan", "muse-maskgit-pytorch", "0.3.5", 1, VQGAN, VQGAN_ALWAYS),
        OriginalTrainer("CViViTTrainer", "cvivit", "phenaki-pytorch", "0.5.0", 1, CVIVIT, CVIVIT_ALWAYS),
        OriginalTrainer("PhenakiTrainer", "phenaki", "phenaki-pytorch", "0.5.0", 1, PHENAKI, PHENAKI_ALWAYS),
        OriginalTrainer(
            "MeshAutoencoderTrainer",
            "mesh-autoencoder",
            "meshgpt-pytorch",
            "1.8.1",
            21,
            MESH_AUTOENCODER,
            MESH_AUTOENCODER_ALWAYS,
        ),
        OriginalTrainer(
            "MeshTransformerTrainer",
            "mesh-transformer",
            "meshgpt-pytorch",
            "1.8.1",
            21,
            MESH_TRANSFORMER,
            MESH_TRANSFORMER_ALWAYS,
        ),
    )
}
