"""Entries of the dictionaries that the original trainers take, such as `accelerate_kwargs`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quintet.compat.kinds import BACKEND, BETAS, COUNT, DECAY, NOT_NEGATIVE, PRECISION, TRACKERS
from quintet.compat.rules import REQUIRED, Rule, if_true, is_inductor, no_effect, precision, refuse, to_key
from quintet.training.options import FEW, FLAG, RATE, STEPS

FLAGS = (True, False)
EMPTY: tuple[Any, ...] = ((), [], set())
GLOBAL_BATCH = "the batch size is that of all processes together"
NOT_DDP = "torch's DDP is all there is, set by `engine.*` keys and the launcher; leave it out"
RUN_FOLDER = "logs lie in the run folder, and the tracker's project is the key `log.project`"
RAMP = "the ramp of the average is fixed; leave it out, and set its decay and start alone"
EVERYTHING = "all parameters are averaged; leave it out"
ONE_WAY = "the average never flows back into the weights; leave it out"
OWN_WAY = "how the average is computed is not for choice"
OWN_ORDER = "order, batches and random choices are functions of seed and step"

ENGINE_PARTS: tuple[Rule, ...] = (
    to_key("mixed_precision", None, "engine.precision", PRECISION, "`no` is fp32; fp16 becomes bf16.", precision),
    to_key("log_with", None, "log.trackers", TRACKERS, "Trackers beside `metrics.jsonl`, which is always written."),
    to_key("cpu", False, "engine.device", FLAG, "Compute on the CPU.", if_true("cpu")),
    to_key("dynamo_backend", None, "engine.compile", BACKEND, "`torch.compile` every module.", is_inductor),
    no_effect("split_batches", False, (True,), GLOBAL_BATCH),
    refuse("gradient_accumulation_steps", 1, (1,), "use the trainer's `accumulate` or `grad_accum_every`"),
    no_effect("kwargs_handlers", None, EMPTY, "each recipe sets DDP's flags by itself"),
    no_effect("project_dir", None, (), RUN_FOLDER),
    no_effect("project_config", None, (), RUN_FOLDER),
    no_effect("device_placement", True, (True,), "modules and batches are always placed"),
    no_effect("step_scheduler_with_optimizer", True, FLAGS, "the learning rate is a function of the step"),
    no_effect("rng_types", None, (), OWN_ORDER),
    no_effect("dataloader_config", None, (), OWN_ORDER),
    refuse("deepspeed_plugin", None, (), NOT_DDP),
    refuse("deepspeed_plugins", None, (), NOT_DDP),
    refuse("fsdp_plugin", None, (), NOT_DDP),
    refuse("megatron_lm_plugin", None, (), NOT_DDP),
    refuse("torch_tp_plugin", None, (), NOT_DDP),
    refuse("parallelism_config", None, (), NOT_DDP),
    refuse("dynamo_plugin", None, (), "the key `engine.compile` is all there is; leave it out"),
    refuse("gradient_accumulation_plugin", None, (), "use the trainer's `accumulate` or `grad_accum_every`"),
)

EMA_PARTS: tuple[Rule, ...] = (
    to_key("beta", 0.9999, "ema.decay", DECAY, "Decay of the average."),
    to_key("update_after_step", 100, "ema.start", COUNT, "The average is a plain copy before."),
    to_key("update_every", 10, "ema.every", FEW, "Steps between two updates."),
    refuse("inv_gamma", 1.0, (1.0, 1), RAMP),
    refuse("power", 2 / 3, (2 / 3,), RAMP),
    refuse("min_value", 0.0, (0.0, 0), RAMP),
    refuse("param_or_buffer_names_no_ema", set(), EMPTY, EVERYTHING),
    refuse("ignore_names", set(), EMPTY, EVERYTHING),
    refuse("ignore_startswith_names", set(), EMPTY, EVERYTHING),
    refuse("ema_model", None, (), "the average copies the model by itself; leave it out"),
    refuse("update_model_with_ema_every", None, (), ONE_WAY),
    refuse("update_model_with_ema_beta", 0.0, (0.0, 0), ONE_WAY),
    no_effect("include_online_model", True, FLAGS, OWN_WAY),
    no_effect("allow_different_devices", False, FLAGS, OWN_WAY),
    no_effect("use_foreach", False, FLAGS, OWN_WAY),
    no_effect("forward_method_names", (), EMPTY, OWN_WAY),
    no_effect("move_ema_to_online_device", False, FLAGS, OWN_WAY),
    no_effect("coerce_dtype", False, FLAGS, OWN_WAY),
    no_effect("lazy_init_ema", False, FLAGS, OWN_WAY),
)

OPTIMIZER_PARTS: tuple[Rule, ...] = (
    to_key("betas", (0.9, 0.99), "optim.betas", BETAS, "Decay rates of the moments."),
    to_key("eps", 1e-8, "optim.eps", RATE, "Term that keeps the division finite."),
    no_effect("filter_by_requires_grad", False, FLAGS, "only parameters that require gradients are optimized"),
    no_effect("omit_gammas_and_betas_from_wd", True, (True,), "vectors are never decayed"),
)

SCHEDULER_PARTS: tuple[Rule, ...] = (
    to_key("T_max", REQUIRED, "optim.horizon", STEPS, "Step at which the cosine ends."),
    to_key("eta_min", 0.0, "optim.final_lr", NOT_NEGATIVE, "Rate at the end of the cosine."),
)

PARTS: Mapping[str, tuple[Rule, ...]] = {
    "accelerate_kwargs, accelerator_kwargs": ENGINE_PARTS,
    "ema_kwargs": EMA_PARTS,
    "optimizer_kwargs": OPTIMIZER_PARTS,
    "scheduler_kwargs": SCHEDULER_PARTS,
}
