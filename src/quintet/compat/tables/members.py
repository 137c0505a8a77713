"""Every public method and attribute of the original trainers, as an expression that a test executes.

In an expression, `trainer` is the trainer and `path` a new path. Does not import torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Member:
    """One use of a trainer."""

    use: str
    note: str = ""
    """What differs from the original, for the page; empty if nothing does."""
    refused: str = ""
    """A part of the message with which it is refused; empty if it works."""
    needs: str = ""
    """A package without which it is refused."""


def _members(*uses: str | Member) -> tuple[Member, ...]:
    return tuple(Member(use) if isinstance(use, str) else use for use in uses)


def _values(names: str) -> tuple[Member, ...]:
    return tuple(Member(f"trainer.{name}") for name in names.split())


NO_PICKLE = "a folder in quintet's format at this path, never a pickle; with the step, which some originals lost"
PROCESSES = _values("device is_distributed is_main is_local_main")
MESH_PROCESSES = _values("device is_main is_local_main unwrapped_model")
ACCELERATOR = _members(
    "trainer.accelerator.is_main_process",
    "trainer.accelerator.device",
    "trainer.accelerator.num_processes",
    "trainer.accelerator.print('text')",
    "trainer.accelerator.wait_for_everyone()",
    "trainer.accelerator.unwrap_model(trainer.unwrapped_model)",
    "trainer.accelerator.prepare(trainer.unwrapped_model)",
    "trainer.accelerator.get_state_dict(trainer.unwrapped_model)",
    "trainer.accelerator.autocast()",
    "trainer.accelerator.init_trackers('project')",
    "trainer.accelerator.log({'loss': 1.0}, step=0)",
    "trainer.accelerator.end_training()",
    Member("trainer.accelerator.save({}, path)", refused="never does; use save(path) of the trainer"),
    Member("trainer.accelerator.state", refused="it has what scripts use of accelerate"),
)
MODULE = _members(
    "trainer.to(trainer.device)",
    "trainer.cpu()",
    Member("trainer.cuda()", "one sentence if there is no CUDA device", needs="cuda"),
    "trainer.state_dict()",
    "list(trainer.parameters())",
    Member("trainer.half()", refused="instead of moving it"),
)
TRAIN = _members("trainer.train_step()", "trainer.train()")
SPLIT = _values("ds valid_ds") + tuple(
    Member(f"next(iter(trainer.{name}))", "batches of its own: reading them does not change the training")
    for name in ("dl", "valid_dl", "dl_iter", "valid_dl_iter")
)
SAVE = _members(
    Member("trainer.save(path)", NO_PICKLE),
    Member("(trainer.save(path), trainer.load(path))", "also restores the step and the order of the data"),
    Member("(open(path, 'wb').close(), trainer.load(path))", refused="never opens pickled checkpoints"),
)
PRINT = _members("trainer.print('text')")
AVERAGE = "a copy of the model with averaged weights"

MULAN: tuple[Member, ...] = (
    *_values("mulan steps num_train_steps batch_size grad_accum_every optim max_grad_norm data_max_length"),
    *_values("ds_fields save_model_every results_folder accelerator"),
    *SPLIT,
    *_members("trainer.data_tuple_to_kwargs(next(trainer.dl_iter))", "trainer.train_step()['loss']"),
    *SAVE,
    *PRINT,
    *PROCESSES,
    *_members("trainer.train(log_fn=lambda logs: logs['loss'])"),
    *ACCELERATOR,
    *MODULE,
)
SOUNDSTORM: tuple[Member, ...] = (
    *_values("model steps num_train_steps num_warmup_steps batch_size grad_accum_every only_train_generator"),
    *_values("only_train_critic optim lr initial_lr scheduler max_grad_norm save_model_every save_results_every"),
    *_values("results_folder accelerator"),
    *SPLIT,
    *_members(
        Member("trainer.scheduler.get_last_lr()"),
        Member("trainer.scheduler.step()", refused="which train_step() advances"),
        Member("trainer.warmup(1)", "the learning rate of any step, also after the warm-up"),
        "trainer.train_step()['generator_loss'] + trainer.train_step()['critic_loss']",
    ),
    *SAVE,
    *_members(
        Member(
            "(trainer.save(path), trainer.load(path, restore_optimizer=False))",
            "takes the weights alone; the step restarts at 0",
        ),
    ),
    *PRINT,
    *PROCESSES,
    *TRAIN,
    *ACCELERATOR,
    *MODULE,
)
GAN_TOKENIZER: tuple[Member, ...] = (
    *_values("vae steps num_train_steps batch_size grad_accum_every vae_parameters optim discr_optim"),
    *_values("max_grad_norm discr_max_grad_norm use_ema save_model_every save_results_every"),
    *_values("apply_grad_penalty_every results_folder accelerator"),
    *_members(Member("trainer.ema_vae", AVERAGE), "trainer.ema_vae.ema_model"),
    *_members(Member("trainer.ema_vae.update()", refused="the trainer updates the average")),
    *SPLIT,
    *_members("trainer.train_step()['loss']", "trainer.train_step()['discr_loss']"),
    *SAVE,
    *PRINT,
    *PROCESSES,
    *_members("trainer.train(log_fn=lambda logs: logs.get('reconstructions'))"),
    *ACCELERATOR,
    *MODULE,
)
VQGAN: tuple[Member, ...] = GAN_TOKENIZER
CVIVIT: tuple[Member, ...] = GAN_TOKENIZER
PHENAKI: tuple[Member, ...] = (
    *_values("model unconditional batch_size grad_accum_every max_grad_norm train_num_steps image_size num_samples"),
    *_values("sample_texts save_and_sample_every sample_num_frames train_on_images ds opt step"),
    Member("trainer.dataset_fields", "None before the first step, unless it was given"),
    *_values("results_folder accelerator accelerator.native_amp accelerator.scaler"),
    *_members("next(trainer.dl)", "trainer.data_tuple_to_kwargs(next(trainer.dl))"),
    *_members(
        Member("trainer.save(1)", "the folder `model-1.pt` in `results_folder`, in quintet's format"),
        Member("(trainer.save(1), trainer.load(1))", "also restores the order of the data"),
        "trainer.train_step() + 1.0",
        "trainer.train_step(only_train_generator=True)",
        Member("trainer.train_step(only_train_critic=True)", refused="has no critic"),
        "trainer.train()",
    ),
    *PRINT,
    *PROCESSES,
    *ACCELERATOR,
)
MESH: tuple[Member, ...] = (
    *_values("use_wandb_tracking model optimizer dataloader should_validate val_every val_num_batches"),
    *_values("val_dataloader data_kwargs grad_accum_every num_train_steps step checkpoint_every"),
    *_values("checkpoint_folder accelerator"),
    *_members(
        "trainer.step.item()",
        "trainer.next_data_to_forward_kwargs(iter(trainer.dataloader))",
        "trainer.optimizer.param_groups",
        "trainer.optimizer.scheduler.get_last_lr()",
        Member("trainer.optimizer.step()", refused="is advanced by train_step()"),
        "trainer.log(loss=1.0)",
        "trainer.wait()",
    ),
    *SAVE,
    *_members("trainer.save(path, overwrite=True)"),
    *_members(Member("(trainer.save(path), trainer.save(path, overwrite=False))", refused="exists already")),
    *PRINT,
    *MESH_PROCESSES,
    *_members(
        Member("trainer.train_step()", "the originals have only the whole loop"),
        "trainer()",
        "trainer.forward()",
        Member("trainer.wandb_tracking('project', run='name').__enter__()", needs="wandb"),
        Member("trainer.trackers('project', run='name').__enter__()", "any tracker; the keys are `log.*`"),
    ),
    *ACCELERATOR,
    *MODULE,
)
MESH_AUTOENCODER: tuple[Member, ...] = (
    *MESH,
    *_members(
        Member("trainer.ema_model", AVERAGE),
        "trainer.ema_tokenizer",
        "trainer.tokenize(**trainer.next_data_to_forward_kwargs(iter(trainer.dataloader)))",
    ),
)
MESH_TRANSFORMER: tuple[Member, ...] = MESH

MEMBERS: Mapping[str, tuple[Member, ...]] = {
    "MuLaNTrainer": MULAN,
    "SoundStormTrainer": SOUNDSTORM,
    "VQGanVAETrainer": VQGAN,
    "CViViTTrainer": CVIVIT,
    "PhenakiTrainer": PHENAKI,
    "MeshAutoencoderTrainer": MESH_AUTOENCODER,
    "MeshTransformerTrainer": MESH_TRANSFORMER,
}


def by_use(trainers: Iterable[str] = MEMBERS) -> dict[Member, list[str]]:
    """The trainers that have each member, in the order of their tables."""
    found: dict[Member, list[str]] = {}
    for trainer in trainers:
        for member in MEMBERS[trainer]:
            found.setdefault(member, []).append(trainer)
    return found
