"""Names that differ between the two revisions, and the translation of commands into the vocabulary of one side."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

KEY = re.compile(r"[a-z_]+(\.[a-z_]+)+=")


class UnknownKeyError(Exception):
    """A key of a case that a side has under none of its names."""


@dataclass(frozen=True)
class Rename:
    """A key that has another name on the other side, and values that are written otherwise there."""

    old: str
    new: str
    values: Mapping[str, str] = field(default_factory=dict)
    """Old values to new ones; a value that is not listed is the same on both sides."""


RENAMES = (
    Rename("train.accumulate", "train.grad_accum_steps"),
    Rename("train.max_bad_steps", "train.max_nonfinite_steps"),
    Rename("optim.horizon", "optim.decay_steps"),
    Rename("optim.clip", "optim.max_grad_norm"),
    Rename("optim.discriminator.clip", "optim.discriminator.max_grad_norm"),
    Rename("optim.critic.clip", "optim.critic.max_grad_norm"),
    Rename("optim.matrix_lr", "optim.muon_lr"),
    Rename("engine.recompute", "engine.activation_checkpointing"),
    Rename("engine.shard", "engine.fsdp", {"full": "true", "none": "false"}),
    Rename("engine.processes", "engine.world_size"),
    Rename("data.workers", "data.num_workers"),
    Rename("data.cache", "data.cache_dir"),
    Rename("data.clip", "model.condition_form"),
    Rename("data.drop_words", "data.word_dropout"),
    Rename("data.empty_captions", "data.allow_missing_captions"),
    Rename("data.semantic", "data.semantic_tokens"),
    Rename("eval.generated", "eval.num_generated"),
    Rename("eval.distinct", "eval.distinct_captions"),
    Rename("eval.labels", "eval.zero_shot_labels"),
    Rename("eval.prompt", "eval.zero_shot_template"),
    Rename("loss.drop_text", "loss.cond_drop_prob"),
    Rename("loss.drop_condition", "loss.cond_drop_prob"),
    Rename("loss.drop_faces", "loss.face_count_drop_prob"),
    Rename("loss.alike", "loss.codebook_smoothing"),
    Rename("loss.tell_caption", "loss.caption_cond_prob"),
    Rename("loss.only", "loss.train_only"),
    Rename("loss.order", "loss.frame_autoregressive", {"moments": "true", "together": "false"}),
    Rename("loss.first_moment", "loss.first_frame_prob"),
    Rename("loss.primed", "loss.continuation_prob"),
    Rename("loss.schedule", "loss.mask_schedule"),
    Rename("loss.span", "loss.mask_span"),
    Rename("loss.coarse_first", "loss.coarse_bias"),
    Rename("loss.level_dropout", "loss.quantizer_dropout"),
    Rename("loss.feature", "loss.feature_matching"),
    Rename("loss.penalty", "loss.gradient_penalty"),
    Rename("loss.penalty_every", "loss.gradient_penalty_every"),
    Rename("loss.motion", "loss.frame_difference"),
    Rename("loss.kind", "loss.gan_loss"),
    Rename("loss.blur", "loss.bin_blur_sigma"),
    Rename("loss.window", "loss.window_faces"),
    Rename("loss.adaptive", "loss.adaptive_weight"),
    Rename("model.levels", "model.num_quantizers"),
    Rename("model.quantizer_levels", "model.num_quantizers"),
    Rename("model.loudness_levels", "model.num_loudness_quantizers"),
    Rename("model.rate", "model.sample_rate"),
    Rename("model.audio.rate", "model.audio.sample_rate"),
    Rename("model.merge", "model.code_patch_size"),
    Rename("model.units", "model.num_residual_units"),
    Rename("model.patch", "model.patch_size"),
    Rename("model.temporal_patch", "model.temporal_patch_size"),
    Rename("model.audio.patch", "model.audio.patch_size"),
    Rename("model.audio.mels", "model.audio.n_mels"),
    Rename("model.audio.hop", "model.audio.hop_length"),
    Rename("model.audio.multiplier", "model.audio.ff_mult"),
    Rename("model.text.multiplier", "model.text.ff_mult"),
    Rename("model.text.reads", "model.text.encoder"),
    Rename("model.text.vocabulary", "model.text.vocab_size"),
    Rename("model.multiplier", "model.ff_mult"),
    Rename("model.expansion", "model.conv_expansion"),
    Rename("model.kernel", "model.conv_kernel_size"),
    Rename("model.positions", "model.position_embedding"),
    Rename("model.clip_dim", "model.condition_dim"),
    Rename("model.low_codes", "model.low_res_num_codes"),
    Rename("model.low_grid", "model.low_res_grid"),
    Rename("model.loss", "model.contrastive_loss"),
    Rename("model.middle_losses", "model.intermediate_losses"),
    Rename("model.encoder", "model.encoder_dims"),
    Rename("model.decoder", "model.decoder_dims"),
    Rename("model.transformers", "model.transformers_config"),
    Rename("sample.guidance", "sample.guidance_scale"),
    Rename("sample.choice_noise", "sample.choice_temperature"),
    Rename("sample.anneal", "sample.temperature_schedule"),
    Rename("sample.greedy_end", "sample.greedy_last_step"),
)
"""Keys. Several old keys may become one new key, because recipes differ: the side's own keys decide."""

OPTIONS: tuple[tuple[str, str, str], ...] = ()
"""Options of the command line: verb, old name, new name."""

FILES: Mapping[str, str] = {}
"""Files that a side writes: old name to new name, without folders."""


def translate(command: Sequence[str], known: Collection[str], help_of: Callable[[str], str]) -> tuple[str, ...]:
    """A command in the words of a side that knows these keys; `help_of` gives the help text of a verb."""
    verb = command[0]
    return tuple(
        translate_key(word, known) if KEY.match(word) else translate_option(word, verb, help_of) for word in command
    )


def translate_key(word: str, known: Collection[str]) -> str:
    key, _, value = word.partition("=")
    if key in known:
        return word
    for rename in RENAMES:
        if rename.old == key and rename.new in known:
            return f"{rename.new}={rename.values.get(value, value)}"
        if rename.new == key and rename.old in known:
            backwards = {new: old for old, new in rename.values.items()}
            return f"{rename.old}={backwards.get(value, value)}"
    raise UnknownKeyError(f"key '{key}' is unknown there under any name; add its rename to tests/identity/keys.py")


def translate_option(word: str, verb: str, help_of: Callable[[str], str]) -> str:
    for renamed_verb, old, new in OPTIONS:
        if renamed_verb == verb and word in {old, new}:
            return new if re.search(rf"{re.escape(new)}\b", help_of(verb)) else old
    return word


def current_file(name: str) -> str:
    """The name of a file, whatever side wrote it."""
    return FILES.get(name, name)


def current_setting(name: str) -> str:
    """The name of a key of `sample.*`, whatever side wrote it."""
    for rename in RENAMES:
        if rename.old == f"sample.{name}":
            return rename.new.removeprefix("sample.")
    return name
