"""The errors quintet raises on purpose. Each message is one sentence that names the key or file and the fix.

The command line prints the message alone and exits with the error's code; anything else is a defect and keeps
its traceback.
"""

from __future__ import annotations


class QuintetError(Exception):
    """Something a person can mend; the message says how."""

    exit_code = 1


class UsageError(QuintetError):
    """The request cannot be carried out as written: a wrong key, folder, file or value."""

    exit_code = 2


class RunError(QuintetError):
    """A run that began properly could not go on."""

    exit_code = 1


class LostContactError(RunError):
    """Another process of the run is dead or does not answer."""


class CheckpointError(RunError):
    """A checkpoint is damaged or is not what it should be."""


class UnreadableItem(Exception):
    """One item of a data set cannot be used; the message is the reason. Training replaces the item and goes on."""
