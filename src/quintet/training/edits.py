"""Finds edits of a run's `config.yaml` after quintet wrote it.

A resumed run is built from `config.yaml`. One that was edited by hand or damaged would continue as another run, while
its checkpoints say what it was: each contains a copy of the configuration, protected by its hashes.
"""

from __future__ import annotations

import shlex
from typing import Any

from quintet.common.weights import checkpoint
from quintet.common.weights.run_reader import CONFIG_FILE, is_as_written, was_edited
from quintet.config import RESUMABLE, RunConfig, build, differences
from quintet.errors import UsageError
from quintet.training.run_folder import Run, resume_command


def edited_keys(run: Run, config: RunConfig, force: bool = False) -> dict[str, tuple[Any, Any]]:
    """The keys of `config`, read from the run's `config.yaml`, that were edited, each with both values.

    Raises UsageError, unless `force`, for keys that a resumed run may not change. References to frozen models may be
    edited: the run contains copies, and the hashes of the models are keys.
    """
    if is_as_written(run.folder):
        return {}  # also if it differs from the newest checkpoint: a resumed run wrote it with the keys of its command
    copy = checkpoint.newest_file(run.checkpoints, CONFIG_FILE)
    if copy is None:
        if not force and not checkpoint.steps(run.checkpoints) and was_edited(run.folder):
            raise UsageError(
                f"{run.config_file} was edited or damaged after the run started, and there is no checkpoint to "
                f"compare it with; restore it, or continue with it (`{resume_command(run.folder, '--force')}`)"
            )
        return {}
    edited = differences(build(type(config), file=copy), config)
    allowed = (*RESUMABLE, *config.FROZEN_KEYS)
    refused = {key: values for key, values in edited.items() if not _may_change(key, allowed)}
    if refused and not force:
        listed = "; ".join(f"{key}: {before!r} -> {after!r}" for key, (before, after) in refused.items())
        restore = shlex.join(["cp", str(copy), str(run.config_file)])
        raise UsageError(
            f"{run.config_file} differs from the configuration of the checkpoints ({listed}); restore it with "
            f"`{restore}`, or continue with it (`{resume_command(run.folder, '--force')}`)"
        )
    return edited


def _may_change(key: str, allowed: tuple[str, ...]) -> bool:
    return any(key == each or (each.endswith(".") and key.startswith(each)) for each in allowed)
