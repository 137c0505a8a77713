"""Every keyword of `PhenakiTrainer` in phenaki-pytorch 0.5.0, its default, and where it goes."""

from __future__ import annotations

from quintet.compat.kinds import DECAY, FRAMES, INTERVAL, TEXTS, TEXTS_FILE
from quintet.compat.rules import FP16_NOTICE, OriginalTrainer, Rule, if_true, no_effect, to_argument, to_key
from quintet.compat.tables.dictionaries import GLOBAL_BATCH
from quintet.compat.tables.shared import (
    accumulation,
    batch_size,
    betas,
    clip,
    data_set,
    declared,
    model,
    out,
    rate,
    steps,
    weight_decay,
)
from quintet.training.options import FEW, FLAG

PHENAKI: tuple[Rule, ...] = (
    model("phenaki", "Phenaki"),
    to_argument("folder", None, "data", "The folder of videos or pictures."),
    to_key("train_on_images", False, "data.frames", FLAG, "Of a video one frame is taken.", if_true(1)),
    batch_size(16),
    accumulation(1),
    to_key("num_frames", 17, "data.frames", FRAMES, "Frames of a training clip; pictures are clips of one."),
    to_key("sample_num_frames", None, "sample.frames", FRAMES, "Frames of a sample."),
    rate("train_lr", 1e-4),
    steps("train_num_steps", 100_000),
    clip(None),
    to_key("ema_update_every", 10, "ema.every", FEW, "Steps between two updates; the original kept no average."),
    to_key("ema_decay", 0.995, "ema.decay", DECAY, "Decay of the average; the original kept no average."),
    betas("adam_betas"),
    weight_decay("wd", 0),
    Rule("save_and_sample_every", 1000, "Both at once.", keys=("sample.every", "checkpoint.every"), kind=INTERVAL),
    to_key("num_samples", 25, "sample.num", FEW, "Any number, not only squares."),
    out("results_folder", "./results"),
    to_key("amp", False, "engine.precision", FLAG, "Autocast to bf16.", if_true("bf16")),
    to_key("fp16", False, "engine.precision", FLAG, "Becomes bf16.", if_true("bf16", FP16_NOTICE)),
    no_effect("split_batches", True, (True,), GLOBAL_BATCH),
    no_effect("convert_image_to", None, (), "files are converted to the tokenizer's channels: 1 is L, 3 RGB, 4 RGBA"),
    to_key("sample_texts_file_path", None, "sample.texts", TEXTS_FILE, "Captions to sample, a line each."),
    to_key("sample_texts", None, "sample.texts", TEXTS, "Captions to sample; the original ignored them."),
    data_set(None),
    declared("dataset_fields", None),
)

PHENAKI_TRAINER = OriginalTrainer("PhenakiTrainer", "phenaki", "phenaki-pytorch", "0.5.0", 1, PHENAKI)
