"""The rows of the table in docs/reliability.md: each fault that is tried, and what must hold after it."""

from __future__ import annotations

from collections.abc import Mapping

ROWS: Mapping[str, tuple[str, str]] = {
    "kill-save": ("`kill -9` at each file operation of a save", "resumes automatically, ends in the same bytes"),
    "kill-random": ("`kill -9` at a random time during training", "the same; at most two checkpoint intervals lost"),
    "kill-start": ("`kill -9` before the first checkpoint", "`resume` starts from step 0, ends in the same bytes"),
    "signal": (
        "SIGTERM, SIGINT, SIGUSR1 during a step, validation, a save, data loading",
        "saves, exits with 128 + signal, ends in the same bytes",
    ),
    "second-signal": ("a second signal", "exits at once, leaves no partial file"),
    "disk-full": (
        "full disk during saves, logs, samples",
        "last checkpoint intact; continues, or stops with a clear error",
    ),
    "read-only": ("folder becomes read-only during saves, logs, samples", "the same"),
    "bit-flip": ("a flipped bit in any file of a checkpoint", "detected, named; newest intact checkpoint used"),
    "truncation": ("a truncated, emptied, missing or added file of a checkpoint", "the same"),
    "non-finite-data": (
        "NaN or Inf in the data",
        "step skipped, items named and counted; stops at the limit with finite weights",
    ),
    "non-finite-loss": ("NaN or Inf in a loss", "the same"),
    "non-finite-gradient": ("NaN or Inf in a gradient", "the same"),
    "non-finite-optimizer": ("NaN or Inf in the optimizer state", "the same"),
    "non-finite-weights": ("NaN or Inf in the weights", "never saved; stops and names the last finite checkpoint"),
    "roll-back": (
        "the same, with `train.max_rollbacks`",
        "rolls back to the last good checkpoint, continues with other items",
    ),
    "worker-killed": ("a data worker killed", "workers restart, ends in the same bytes"),
    "file-deleted": ("a data file deleted during training", "replaced by another item, named"),
    "file-replaced": ("a data file replaced during training", "replaced by another item, named"),
    "clock": ("the clock moves backwards", "no difference"),
    "two-processes": ("several processes started on the same run", "one continues, the others are refused"),
    "changed-config": ("resume with changed keys", "refused with the difference; `--force` where possible"),
    "changed-data": ("resume with changed data", "refused with the difference; `--force`"),
    "changed-version": ("resume with another version", "refused with the difference; `--force`"),
    "golden": ("the golden run of each format", "loads, evaluates, resumes"),
    "hostile-weights": (
        "hostile weight files: pickles, false headers",
        "refused with a one-line error, nothing executed",
    ),
    "hostile-media": ("hostile media: decompression bombs, false headers", "skipped with the reason, bounded memory"),
    "hostile-text": (
        "hostile configs, metadata, JSON; paths outside the folder",
        "refused or skipped, nothing read outside",
    ),
    "fuzz": ("random bytes and mutations for each file reader", "a clear error or a correct result"),
    "verify": (
        "`quintet verify`: steps between two checkpoints replayed",
        "the same hashes; a forged checkpoint is detected",
    ),
    "damaged-media": (
        "large or hostile media of every format, under a limit of memory and steps",
        "read or skipped with the reason, below the limit",
    ),
    "edited-config": ("an edited `config.yaml` of a run", "refused with the key, or without effect on the result"),
    "flipped-cache": (
        "a flipped bit in shards, their copies, exports or linked models",
        "detected; written again, skipped by name, or refused",
    ),
    "disagreeing-ranks": (
        "processes of one run that disagree on data, keys or versions",
        "all stop with one error; none waits for another",
    ),
    "moved-run": (
        "a run folder or a token cache that is moved or deleted during training",
        "followed, or stops with one error",
    ),
    "reader-beside-writer": (
        "`eval`, `sample`, `view` and `verify` beside a training process",
        "read complete files only; training is not disturbed",
    ),
    "hostile-page": (
        "the page of `quintet view` with hostile run contents and idle connections",
        "shown as text, nothing executed; other visitors are served",
    ),
    "interrupted-make": (
        "`kill -9` during `data make` and `data shard`",
        "the folder does not exist; what is left is never data, and is replaced",
    ),
    "run-in-data": (
        "runs, samples and other outputs inside a data folder",
        "left out and named; the run resumes",
    ),
    "unusable-metadata": (
        "metadata files that cannot be used: columns, quotes, encodings",
        "refused with the reason and the fix",
    ),
}
"""Key to the fault and the expected behaviour."""
