"""Exceptions of quintet. Each message is one sentence that names the key or file and the fix.

The command line prints only the message and exits with `exit_code`. Any other exception is a bug and keeps its
traceback.
"""

from __future__ import annotations


class QuintetError(Exception):
    """An error that the user can fix; the message says how."""

    exit_code = 1


class UsageError(QuintetError):
    """An invalid key, folder, file or value."""

    exit_code = 2


class RunError(QuintetError):
    """A run that started correctly cannot continue."""

    exit_code = 1


class LostContactError(RunError):
    """Another process of the run died or does not respond."""


class CheckpointError(RunError):
    """A checkpoint is damaged or does not match the model."""


class PrunedError(CheckpointError):
    """A checkpoint was deleted while it was read, by the training that still writes to the run."""


class UnreadableItem(Exception):
    """An item of a data set cannot be read; the message is the reason. Training replaces the item and continues."""
