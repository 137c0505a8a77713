"""Shared by all tests: one thread a process, a small data set, and finished runs that tests only read."""

from __future__ import annotations

import os
from pathlib import Path

# Before torch is imported: the tests run side by side, and one and two threads do not agree to the last bit.
os.environ["OMP_NUM_THREADS"] = "1"

import pytest

from helpers import LAST_STEP, UNENDING, made_once, succeed, train_tiny


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this test session that all parallel workers see."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def pictures(shared: Path) -> Path:
    """48 pictures of 32 x 32 pixels with captions. Read only."""
    return made_once(
        shared, "pictures", lambda folder: succeed("data", "make", "shapes", folder, "--num", 48, "--size", 32)
    )


@pytest.fixture(scope="session")
def trained(shared: Path, pictures: Path) -> Path:
    """A finished run with the checkpoints 4, 8 and 12. Read only: copy it before changing it."""
    return made_once(shared, "trained", lambda folder: train_tiny(pictures, folder))


@pytest.fixture(scope="session")
def straight(shared: Path, pictures: Path) -> Path:
    """What an `UNENDING` training is without interruption, to step 40, every checkpoint kept. Read only."""
    last = f"train.steps={LAST_STEP}"
    return made_once(shared, "straight", lambda folder: train_tiny(pictures, folder, *UNENDING, last))
