"""Old names of configuration keys, and the migration of stored configurations to the current names.

`migrate` is applied to every configuration that is read from a file: runs, checkpoints, exported models, the copies of
frozen models inside them, and `--config` files. So old runs stay readable. Old names are accepted nowhere else: for
`key=value` on the command line and keywords in Python, the error message gives the current name (`renamed`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from quintet.config.tree import Tree, expand, flatten

KEYS: Mapping[str, str] = {
    "data.cache": "data.cache_dir",
    "data.clip": "model.condition_form",
    "data.drop_words": "data.word_dropout",
    "data.empty_captions": "data.allow_missing_captions",
    "data.semantic": "data.semantic_tokens",
    "data.workers": "data.num_workers",
    "engine.processes": "engine.world_size",
    "engine.recompute": "engine.activation_checkpointing",
    "engine.shard": "engine.fsdp",
    "eval.distinct": "eval.distinct_captions",
    "eval.generated": "eval.num_generated",
    "eval.labels": "eval.zero_shot_labels",
    "eval.prompt": "eval.zero_shot_template",
    "loss.adaptive": "loss.adaptive_weight",
    "loss.alike": "loss.codebook_smoothing",
    "loss.blur": "loss.bin_blur_sigma",
    "loss.coarse_first": "loss.coarse_bias",
    "loss.drop_condition": "loss.cond_drop_prob",
    "loss.drop_faces": "loss.face_count_drop_prob",
    "loss.drop_text": "loss.cond_drop_prob",
    "loss.feature": "loss.feature_matching",
    "loss.first_moment": "loss.first_frame_prob",
    "loss.kind": "loss.gan_loss",
    "loss.level_dropout": "loss.quantizer_dropout",
    "loss.motion": "loss.frame_difference",
    "loss.only": "loss.train_only",
    "loss.order": "loss.frame_autoregressive",
    "loss.penalty": "loss.gradient_penalty",
    "loss.penalty_every": "loss.gradient_penalty_every",
    "loss.primed": "loss.continuation_prob",
    "loss.schedule": "loss.mask_schedule",
    "loss.span": "loss.mask_span",
    "loss.tell_caption": "loss.caption_cond_prob",
    "loss.window": "loss.window_faces",
    "model.audio.hop": "model.audio.hop_length",
    "model.audio.mels": "model.audio.n_mels",
    "model.audio.multiplier": "model.audio.ff_mult",
    "model.audio.patch": "model.audio.patch_size",
    "model.audio.rate": "model.audio.sample_rate",
    "model.clip_dim": "model.condition_dim",
    "model.decoder": "model.decoder_dims",
    "model.encoder": "model.encoder_dims",
    "model.expansion": "model.conv_expansion",
    "model.kernel": "model.conv_kernel_size",
    "model.levels": "model.num_quantizers",
    "model.loss": "model.contrastive_loss",
    "model.loudness_levels": "model.num_loudness_quantizers",
    "model.low_codes": "model.low_res_num_codes",
    "model.low_grid": "model.low_res_grid",
    "model.merge": "model.code_patch_size",
    "model.middle_losses": "model.intermediate_losses",
    "model.multiplier": "model.ff_mult",
    "model.patch": "model.patch_size",
    "model.positions": "model.position_embedding",
    "model.quantizer_levels": "model.num_quantizers",
    "model.rate": "model.sample_rate",
    "model.temporal_patch": "model.temporal_patch_size",
    "model.text.multiplier": "model.text.ff_mult",
    "model.text.reads": "model.text.encoder",
    "model.text.vocabulary": "model.text.vocab_size",
    "model.transformers": "model.transformers_config",
    "model.units": "model.num_residual_units",
    "optim.clip": "optim.max_grad_norm",
    "optim.critic.clip": "optim.critic.max_grad_norm",
    "optim.discriminator.clip": "optim.discriminator.max_grad_norm",
    "optim.horizon": "optim.decay_steps",
    "optim.matrix_lr": "optim.muon_lr",
    "sample.anneal": "sample.temperature_schedule",
    "sample.choice_noise": "sample.choice_temperature",
    "sample.greedy_end": "sample.greedy_last_step",
    "sample.guidance": "sample.guidance_scale",
    "train.accumulate": "train.grad_accum_steps",
    "train.max_bad_steps": "train.max_nonfinite_steps",
}
"""Old key to current key. An old name may be a current key of another recipe; the recipe's schema decides."""

VALUES: Mapping[str, Mapping[str, Any]] = {
    "engine.shard": {"none": False, "full": True},
    "loss.order": {"together": False, "moments": True},
}
"""Old values of old keys, where the current key expects a different value."""


def renamed(key: str, known: Collection[str]) -> str | None:
    """The current name of an old key, or None if the key was not renamed in this schema."""
    current = KEYS.get(key)
    return current if current in known and key not in known else None


def migrate(tree: Mapping[str, Any], known: Collection[str]) -> Tree:
    """The same configuration with current key names; `known` are the dotted keys of its schema."""
    flat = flatten(tree)
    if not any(renamed(key, known) for key in flat):
        return dict(tree)
    return expand(dict(_migrate_entry(key, value, known) for key, value in flat.items()))


def _migrate_entry(key: str, value: Any, known: Collection[str]) -> tuple[str, Any]:
    current = renamed(key, known)
    if current is None:
        return key, value
    return current, VALUES.get(key, {}).get(value, value) if isinstance(value, str) else value
