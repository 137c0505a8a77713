"""A run that is killed at any moment and resumed ends in the same bytes as one that was left alone."""

from __future__ import annotations

import os
import random
import re
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from faults import tracing
from faults.conftest import Ledger, Words
from faults.ledger import WHOLE
from faults.moments import held, hold, part, run_at
from faults.tracing import Operation, Trace
from helpers import (
    LAST_STEP,
    Process,
    copied,
    forked,
    last_step,
    made_once,
    metrics,
    state,
    succeed,
    tensor_hashes,
    wait_for_step,
    wait_until,
)
from quintet.common.weights import checkpoint

SEED = int(os.environ.get("QUINTET_KILL_SEED", random.randrange(10**6)))
"""Where the processes are killed at random; named in every failure, to be set again."""

INTERVAL = 5
"""`checkpoint.every` of the `unending` training."""

SHARES = 40 if WHOLE else 6
"""Number of tests that the operations are divided into, for parallel test workers. In the fast part, each test tries
one operation."""


def share_of(operations: list[Operation], share: int) -> list[Operation]:
    """The operations that one test tries."""
    if WHOLE:
        return operations[share::SHARES]
    return [operations[share * (len(operations) - 1) // (SHARES - 1)]]


# --- what holds after any death ---------------------------------------------------------------------------------


def command_after_death(run: Path, unending: Words) -> Words:
    """What a person types who finds the run dead: `resume` if it had begun, the same command again otherwise."""
    return ("resume", run) if (run / "config.yaml").exists() else (*unending, "--out", run)


def newest_saved(run: Path) -> int:
    """The step of the newest checkpoint, or 0. Every folder with a checkpoint name must be complete."""
    standing = checkpoint.steps(run / "checkpoints")
    for folder in standing:
        checkpoint.verify(folder)
    return checkpoint.step_of(standing[-1]) if standing else 0


def resumed_from(errors: str) -> int:
    """The step that `resume` reports to continue from, or 0."""
    said = re.search(r"resumed from \S+/step-(\d+)", errors)
    return int(said[1]) if said else 0


def check_whole(run: Path, straight: Path, step: int, where: str) -> None:
    """The run is at `step`, as if it had never been interrupted."""
    assert tensor_hashes(run, step) == tensor_hashes(straight, step), where
    rows = [row["step"] for row in metrics(run) if "train/lr" in row]
    assert rows[:step] == list(range(1, step + 1)), where
    check_best(run, where)
    assert not list(run.rglob(".*")), where


def check_best(run: Path, where: str) -> None:
    """`best` names the checkpoint that the run believes to be its best, and it stands."""
    best = state(run)["best"]
    pointer = run / "checkpoints" / "best"
    assert pointer.exists() == (best is not None), where
    if best is not None:
        assert pointer.read_text(encoding="utf-8") == f"step-{best['step']:08d}\n", where
        assert checkpoint.folder_of(run / "checkpoints", best["step"]).is_dir(), where


def check_death(trace: Trace, run: Path, planned: Operation, planned_run: Path) -> str:
    """The process died by the signal, at the operation it was to die at. Says where that is."""
    assert trace.code == -9, trace.said
    died = trace.operations[-1]
    assert not died.done
    assert died.about(run) == planned.about(planned_run)
    return f"killed at {died.call} {died.number}: {died.text}"


# --- a save -----------------------------------------------------------------------------------------------------

SAVE_END = 10
SAVING = ("train.minutes=null", f"train.steps={SAVE_END}", "eval.every=2", "checkpoint.keep=1")
"""From step 1 on: step 2 is the first best, steps 4 and 5 are saved after it, and each save deletes an older one."""

IN_THE_LOOP = "checkpoint.background=false"


@pytest.fixture
def begun(recipe: str, unending: Words, shared: Path) -> Path:
    """A run that was stopped after its first step, before any validation. Read only."""
    return made_once(shared, f"begun-{recipe}", lambda run: succeed(*unending, "--out", run, "train.minutes=1e-6"))


@pytest.fixture
def whole_save(recipe: str, begun: Path, shared: Path) -> Path:
    """The run resumed to its end without harm, its saves watched: its folder `run`, and its trace."""
    return watched_resume(f"whole-save-{recipe}", begun, shared, tracing.trace_saves, SAVING)


@pytest.fixture
def whole_resume(recipe: str, begun: Path, shared: Path) -> Path:
    """The same, but the thread that trains is watched, and saves itself."""
    return watched_resume(f"whole-resume-{recipe}", begun, shared, tracing.trace, (*SAVING, IN_THE_LOOP))


def watched_resume(name: str, begun: Path, shared: Path, watch: Callable[..., Trace], keys: Words) -> Path:
    def make(folder: Path) -> None:
        folder.mkdir()
        run = copied(begun, folder / "run")
        assert watch(["resume", run, *keys], folder / "trace").code == 0

    tracing.skip_without_strace()
    return made_once(shared, name, make)


def operations_of_saves(watched: Path) -> list[Operation]:
    """From the first file of the first save to the last deletion and pointer of the one at step 5."""
    root = watched / "run" / "checkpoints"
    changes = [each for each in tracing.read(watched / "trace") if each.changes and each.within(root)]
    steps = [int(found[1]) if (found := re.search(r"\.writing-step-(\d+)", each.text)) else 0 for each in changes]
    begin = next(index for index, step in enumerate(steps) if step)
    end = next(index for index, step in enumerate(steps) if step > INTERVAL)
    window = changes[begin:end]
    operations = "\n".join(each.text for each in window)
    assert all(f'"{root}/{name}"' in operations for name in ("best", "latest", ".deleting-step-00000001")), operations
    return window


def steps_renamed(trace: Trace, run: Path) -> list[int]:
    """The checkpoints that came to stand, by the log of the process."""
    pattern = re.compile(rf'rename\("\S+/\.writing-step-\d+", "{re.escape(str(run))}/checkpoints/step-(\d+)"\) = 0')
    return [int(found[1]) for each in trace.operations if (found := pattern.match(each.text))]


def check_best_without_a_new_one(run: Path, copy: Path, where: str) -> None:
    """A pointer that was not moved before the death is not left to the next validation, which may be no better."""
    copied(run, copy)
    succeed("resume", copy, "train.minutes=1e-6", "eval.every=1000000")
    check_best(copy, where)
    shutil.rmtree(copy)


def kill_and_resume(
    operation: Operation,
    watch: Callable[..., Trace],
    keys: Words,
    begun: Path,
    whole: Path,
    straight: Path,
    tmp_path: Path,
) -> None:
    """One trial: `begun` is resumed, killed at the operation, and resumed to the end."""
    run = copied(begun, tmp_path / "run")
    trace = watch(["resume", run, *keys], tmp_path / "trace", kill_at=operation)
    where = check_death(trace, run, operation, whole / "run")
    # No saved checkpoint is lost: only the interrupted save is missing.
    saved = max(steps_renamed(trace, run), default=1)
    assert newest_saved(run) == saved, where
    check_best_without_a_new_one(run, tmp_path / "copy", where)

    # The keys, too, because a process that died early did not store them.
    resumed = succeed("resume", run, *SAVING)

    assert resumed_from(resumed.errors) == saved, where
    check_whole(run, straight, SAVE_END, where)
    assert state(run)["best"] == state(whole / "run")["best"], where
    shutil.rmtree(run)
    shutil.rmtree(tmp_path / "trace")


@pytest.mark.parametrize("share", range(SHARES))
def test_a_run_killed_at_any_file_operation_of_a_save_resumes_to_the_same_bytes(
    share: int, begun: Path, whole_save: Path, straight: Path, tmp_path: Path, ledger: Ledger
) -> None:
    operations = share_of(operations_of_saves(whole_save), share)
    for operation in operations:
        kill_and_resume(operation, tracing.trace_saves, SAVING, begun, whole_save, straight, tmp_path)
    ledger("kill-save", len(operations))


@pytest.mark.parametrize(
    "moment", part(("save, before its name", "save, before its files", "save, before old ones go"))
)
def test_a_run_killed_some_steps_after_a_save_began_resumes_to_the_same_bytes(
    moment: str, straight: Path, tmp_path: Path, ledger: Ledger
) -> None:
    """Its thread is held in the save of step 35, while training goes on until the next save has to wait for it."""
    run = run_at(30, straight, tmp_path / "run")
    place = hold(moment, tmp_path)
    with forked(["resume", run, "eval.every=1000000"], tmp_path / "said", place) as process, held(process, place):
        wait_for_step(run, 40, process)
        process.kill()
    assert newest_saved(run) == (35 if moment == "save, before old ones go" else 30)

    succeed("resume", run)
    assert tensor_hashes(run, LAST_STEP) == tensor_hashes(straight, LAST_STEP)
    ledger("kill-save", 1)


def operations_of_the_resume(watched: Path) -> list[Operation]:
    """From the first change in the folder to the first file of the first save."""
    changes = [each for each in tracing.read(watched / "trace") if each.changes and each.within(watched / "run")]
    return changes[: next(index for index, each in enumerate(changes) if ".writing-step-" in each.text)]


@pytest.mark.parametrize("share", range(SHARES if WHOLE else 1))
def test_a_run_killed_while_it_resumes_resumes_again(
    share: int, begun: Path, whole_resume: Path, straight: Path, tmp_path: Path
) -> None:
    operations = operations_of_the_resume(whole_resume)
    # Of a part, the one in the middle, when some of the files are new and some are old.
    for operation in share_of(operations, share) if WHOLE else [operations[len(operations) // 2]]:
        kill_and_resume(operation, tracing.trace, (*SAVING, IN_THE_LOOP), begun, whole_resume, straight, tmp_path)


# --- the beginning ----------------------------------------------------------------------------------------------

START_END = 5


@pytest.fixture
def whole_start(recipe: str, unending: Words, straight: Path, shared: Path) -> Path:
    """A new run watched to its first checkpoints without harm: its folder `run`, and its trace.

    After another one, so that it finds the cache as the runs do that are killed.
    """

    def watch(folder: Path) -> None:
        folder.mkdir()
        words = [*unending, f"train.steps={START_END}", IN_THE_LOOP, "--out", folder / "run"]
        assert tracing.trace(words, folder / "trace").code == 0

    tracing.skip_without_strace()
    return made_once(shared, f"whole-start-{recipe}", watch)


def operations_of_the_start(watched: Path) -> list[Operation]:
    """From the making of the folder until the first checkpoint stands."""
    run = watched / "run"
    changes = [each for each in tracing.read(watched / "trace") if each.changes and each.within(run)]
    assert changes[0].call == "mkdir"
    stands = next(index for index, each in enumerate(changes) if re.search(r'"\S+/checkpoints/step-', each.text))
    return changes[: stands + 1]


@pytest.mark.parametrize("share", range(SHARES))
def test_a_run_killed_before_its_first_checkpoint_begins_again(
    share: int, unending: Words, whole_start: Path, straight: Path, tmp_path: Path, ledger: Ledger
) -> None:
    operations = share_of(operations_of_the_start(whole_start), share)
    run = tmp_path / "run"
    words = (*unending, f"train.steps={START_END}", IN_THE_LOOP)
    for operation in operations:
        trace = tracing.trace([*words, "--out", run], tmp_path / "trace", kill_at=operation)
        where = check_death(trace, run, operation, whole_start / "run")
        assert newest_saved(run) == 0, where

        succeed(*command_after_death(run, words))

        check_whole(run, straight, START_END, where)
        assert state(run)["best"] == state(whole_start / "run")["best"], where
        shutil.rmtree(run)
        shutil.rmtree(tmp_path / "trace")
    ledger("kill-start", len(operations))


# --- any moment -------------------------------------------------------------------------------------------------

LIVES, KILLS = (20, 5) if WHOLE else (1, 3)
"""Number of runs, and how often each is killed."""


def has_begun(run: Path, process: Process) -> bool:
    """Whether this process, not a dead one before it, is the run's writer."""
    try:
        return f"process {process.pid} " in (run / "lock").read_text(encoding="utf-8")
    except FileNotFoundError:
        return False


def drawn_steps(chance: random.Random) -> list[int]:
    """Where each process of one life is killed: after a step, in their order, or as it begins, which is step 0."""
    steps = sorted(chance.randrange(LAST_STEP) for _ in range(KILLS))
    return [0 if chance.random() < 0.2 else step for step in steps]


@pytest.mark.parametrize("life", range(LIVES))
def test_a_run_killed_again_and_again_ends_in_the_same_bytes(
    life: int, unending: Words, straight: Path, tmp_path: Path, ledger: Ledger
) -> None:
    run = tmp_path / "run"
    chance = random.Random(f"{SEED} {life}")
    workers = 0 if life % 2 else 2
    words = (*unending, f"data.num_workers={workers}")
    where = f"QUINTET_KILL_SEED={SEED}, life {life}, {workers} workers, killed after steps"
    # The processes leave the stack at the end only: workers of a dead one may live while the next one trains.
    with ExitStack() as living:
        for number, step in enumerate(drawn_steps(chance)):
            process = living.enter_context(forked(command_after_death(run, words), tmp_path / f"said-{number}"))
            reached = reached_by(process, run, step)
            wait_until(reached, process, f"step {step} ({where})")
            # Steps, metrics, samples and saves take up to a tenth of a second; the kill may hit any of them.
            time.sleep(chance.uniform(0, 0.1))
            process.kill()
            where += f" {last_step(run)}"
            # The next save waits for one that is still written, so training is at most two intervals ahead.
            assert newest_saved(run) >= last_step(run) - 2 * INTERVAL, where
        # A checkpoint later than the last step compared is no harm, so long as that one stands, too.
        end = max(LAST_STEP, (newest_saved(run) // INTERVAL + 1) * INTERVAL)
        succeed(*command_after_death(run, words), f"train.steps={end}")

    check_whole(run, straight, LAST_STEP, where)
    ledger("kill-random", KILLS)


def reached_by(process: Process, run: Path, step: int) -> Callable[[], bool]:
    return lambda: has_begun(run, process) and last_step(run) >= step
