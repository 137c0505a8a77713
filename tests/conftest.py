"""Shared by all tests: one thread a process, data, every recipe in turn, and finished runs that tests only read."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

# Before torch is imported: the tests run side by side, and one and two threads do not agree to the last bit.
os.environ["OMP_NUM_THREADS"] = "1"
# No test touches the cache of the person who runs it. Parallel workers inherit one cache, so that none of them finds
# codes missing that another has made.
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="quintet-tests-")

import pytest

from contract.cases import Case, Train, case_of
from faults.plugin import ledger, pytest_collection_modifyitems, pytest_runtest_makereport  # noqa: F401
from helpers import made_once, succeed, train_tiny
from quintet.registry import RECIPES


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
def meshes(shared: Path) -> Path:
    """64 small meshes with captions. Read only."""
    return made_once(shared, "meshes", lambda folder: succeed("data", "make", "solids", folder, "--num", 64))


@pytest.fixture(scope="session")
def sounds(shared: Path) -> Path:
    """48 sounds of one to four seconds with captions. Read only."""
    return made_once(shared, "sounds", lambda folder: succeed("data", "make", "sounds", folder, "--num", 48))


@pytest.fixture(scope="session")
def videos(shared: Path) -> Path:
    """48 clips of 17 frames, 32 x 32 pixels, with captions. Read only."""
    return made_once(
        shared, "videos", lambda folder: succeed("data", "make", "motions", folder, "--num", 48, "--size", 32)
    )


@pytest.fixture(scope="session")
def trained(shared: Path, pictures: Path) -> Path:
    """A finished run with the checkpoints 4, 8 and 12. Read only: copy it before changing it."""
    return made_once(shared, "trained", lambda folder: train_tiny(pictures, folder))


@pytest.fixture(params=RECIPES)
def recipe(request: pytest.FixtureRequest) -> str:
    """Every registered recipe in turn."""
    return str(request.param)


@pytest.fixture
def case(recipe: str) -> Case:
    return case_of(recipe)


@pytest.fixture
def data(case: Case, request: pytest.FixtureRequest) -> Path:
    """The folder the recipe is trained on. Read only."""
    return Path(request.getfixturevalue(case.data))


@pytest.fixture
def train(recipe: str, case: Case, data: Path) -> Train:
    """A tiny training of the recipe by the command, with more words."""

    def run(out: Path, *words: object) -> Path:
        succeed("train", recipe, data, "--out", out, *case.tiny, *words)
        return out

    return run


@pytest.fixture
def finished(recipe: str, train: Train, shared: Path) -> Path:
    """A finished run of twelve steps. Read only: copy it before changing it."""
    return made_once(shared, f"finished-{recipe}", train)
