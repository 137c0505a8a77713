"""A run's folder: who may write, what is refused, and what survives a killed process or a full disk."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from quintet.config import RunConfig
from quintet.errors import UsageError
from quintet.training.run_folder import Run, next_folder

# --- new and old --------------------------------------------------------------------------------------------------


def test_a_new_run_needs_a_folder_that_is_not_there_or_is_empty(tmp_path: Path) -> None:
    assert not Run.new(tmp_path / "a" / "b").folder.exists()
    assert Run.new(tmp_path).folder == tmp_path


def test_an_existing_run_is_refused_with_the_two_commands_that_help(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").touch()
    (tmp_path / "checkpoints" / "step-00000010").mkdir(parents=True)
    with pytest.raises(UsageError, match=rf"{tmp_path} exists already.*quintet resume {tmp_path}.*--out"):
        Run.new(tmp_path)


def test_what_a_process_left_before_there_was_a_run_is_no_obstacle(tmp_path: Path) -> None:
    for name in ("lock", "data.json", ".config.yaml.writing"):
        (tmp_path / name).touch()
    assert Run.new(tmp_path).folder == tmp_path
    for name in ("teacher", ".writing-teacher"):
        (tmp_path / name).mkdir()
    assert Run.new(tmp_path, frozen=("teacher",)).folder == tmp_path
    with pytest.raises(UsageError, match="exists already"):
        Run.new(tmp_path, frozen=("tokenizer",))


def test_a_log_does_not_make_a_folder_a_used_one(tmp_path: Path) -> None:
    run = Run.new(tmp_path)
    run.write_log_if_run("the stack of a process that hung before the beginning")
    assert Run.new(tmp_path).folder == tmp_path
    run.config_file.touch()
    run.write_log_if_run("later")
    assert run.log_file.read_text().endswith(" later\n")


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_anything_else_that_exists_is_refused_too(tmp_path: Path, kind: str) -> None:
    (tmp_path / "holiday.jpg").touch()
    with pytest.raises(UsageError, match=r"exists already; choose another folder with --out") as caught:
        Run.new(tmp_path if kind == "folder" else tmp_path / "holiday.jpg")
    assert "resume" not in str(caught.value)


def test_opening_what_is_no_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        Run.open(tmp_path / "nowhere")
    with pytest.raises(UsageError, match=r"is not a run: it has no config\.yaml"):
        Run.open(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="is a file; pass the folder of a run"):
        Run.open(tmp_path / "file")


@pytest.mark.parametrize("name", ["vae.100.pt", "model.PTH", "x.ckpt", "pytorch_model.bin", "a.pkl"])
def test_pickles_of_other_packages_get_a_hint(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"never opened")
    with pytest.raises(UsageError, match=r"never opens pickled .* docs/migration\.md"):
        Run.open(tmp_path / name)


def test_opening_a_run_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").touch()
    Run.open(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


def test_the_default_folder_is_the_first_free_one(tmp_path: Path) -> None:
    assert next_folder("vqgan", tmp_path) == tmp_path / "vqgan-1"
    (tmp_path / "vqgan-1").mkdir()
    (tmp_path / "vqgan-2").touch()
    (tmp_path / "vqgan-4").mkdir()
    assert next_folder("vqgan", tmp_path) == tmp_path / "vqgan-3"


# --- one writer ---------------------------------------------------------------------------------------------------

HOLD = """
import sys
from pathlib import Path
from quintet.training.run_folder import Run
run = Run(Path(sys.argv[1]))
run.lock()
print("held", flush=True)
sys.stdin.read()
"""


def test_another_process_is_kept_out_until_it_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        run = Run(folder)
        for _ in range(2):  # being refused must not take the other's lock away
            with pytest.raises(UsageError, match=rf"{folder} is being written by process {holder.pid} on "):
                run.lock()
        holder.send_signal(signal.SIGKILL)
        assert holder.wait() == -signal.SIGKILL
    run.lock()
    assert f"process {holder.pid} " not in (folder / "lock").read_text(encoding="utf-8")
    run.close()


def test_a_lock_holds_within_a_process_too_and_close_releases_it(tmp_path: Path) -> None:
    first, second = Run(tmp_path), Run(tmp_path)
    first.lock()
    with pytest.raises(UsageError, match="is being written by"):
        second.lock()
    first.close()
    second.lock()
    second.close()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot write to the run folder"):
        Run(tmp_path / "file" / "run").lock()


# --- metrics ------------------------------------------------------------------------------------------------------


def test_metrics_are_one_json_object_a_line(tmp_path: Path) -> None:
    run = Run(tmp_path)
    rows = [{"step": 1, "loss": 0.5, "items": ["ü", "b"]}, {"step": 2, "loss": 1e-30}]
    for row in rows:
        run.write_metrics(row)
        assert run.read_metrics()[-1] == row  # at once, not when the file is closed
    run.close()
    lines = run.metrics_file.read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == rows


def test_numbers_that_json_does_not_know_become_null(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.write_metrics({"step": 1, "a": float("nan"), "b": float("inf"), "c": -float("inf"), "d": 1.0})
    run.close()
    (line,) = run.metrics_file.read_text(encoding="utf-8").splitlines()

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    assert json.loads(line, parse_constant=refuse) == {"step": 1, "a": None, "b": None, "c": None, "d": 1.0}


def test_names_with_odd_line_separators_do_not_break_the_rows(tmp_path: Path) -> None:
    """JSON may hold these raw, and Python's splitlines cuts at them."""
    run = Run(tmp_path)
    rows = [{"step": step, "items": [f"a{separator}b"]} for step, separator in enumerate("\x85\u2028\u2029\x0b\x0c")]
    for row in rows:
        run.write_metrics(row)
    run.close()
    assert run.read_metrics() == rows


def test_a_half_written_last_line_is_passed_over(tmp_path: Path) -> None:
    run = Run(tmp_path)
    assert run.read_metrics() == []
    for step in (1, 2, 3):
        run.write_metrics({"step": step, "text": "ü" * 10})
    run.close()
    whole = run.metrics_file.read_bytes()
    for cut in range(1, 30):
        run.metrics_file.write_bytes(whole[:-cut])
        kept = [row["step"] for row in run.read_metrics()]
        assert kept == ([1, 2, 3] if cut == 1 else [1, 2])


def test_rows_beyond_the_checkpoint_are_dropped(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.drop_metrics_after(10)  # nothing there: nothing to do
    assert not run.metrics_file.exists()
    for step in (1, 5, 5, 6, 7):
        run.write_metrics({"step": step, "items": ["ü"]})
    run.close()
    with run.metrics_file.open("a", encoding="utf-8") as file:
        file.write('{"step": 8, "lo')
    run.drop_metrics_after(5)
    assert [row["step"] for row in run.read_metrics()] == [1, 5, 5]
    run.write_metrics({"step": 6})
    assert run.read_metrics()[-1] == {"step": 6}
    run.close()


# --- observations never stop a training ---------------------------------------------------------------------------


def test_a_loss_is_remembered_and_not_raised(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for file in (run.metrics_file, run.log_file):
        file.symlink_to(tmp_path / "elsewhere")
    run.write_metrics({"step": 1})
    run.write_log("something happened")
    assert run.lost_writes.keys() == {"metrics.jsonl", "log.txt"}
    assert all("symbolic links" in reason for reason in run.lost_writes.values())
    assert not (tmp_path / "elsewhere").exists()
    run.close()


def test_a_log_that_cannot_be_written_is_remembered_until_it_can(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.log_file.mkdir()
    run.write_log("lost")
    assert "log.txt" in run.lost_writes
    run.log_file.rmdir()
    run.write_log("kept ü")
    assert run.lost_writes == {}
    assert run.log_file.read_text(encoding="utf-8").endswith(" kept ü\n")


def test_state_says_who_is_at_work(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.write_state("running", step=3, best=None)
    state = json.loads(run.state_file.read_text(encoding="utf-8"))
    assert state.keys() >= {"status", "heartbeat", "pid", "host", "step", "best"}
    assert (state["status"], state["step"]) == ("running", 3)


def test_samples_lie_under_their_step_with_a_line_about_each(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for prefix in ("", "live-"):
        run.write_sample(7, prefix, "grid.txt", lambda path: path.write_text("x", encoding="utf-8"), {"text": "ü"})
    folder = tmp_path / "samples" / "step-00000007"
    assert {path.name for path in folder.iterdir()} == {"grid.txt", "live-grid.txt", "samples.jsonl"}
    lines = (folder / "samples.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == [
        {"file": "grid.txt", "text": "ü"},
        {"file": "live-grid.txt", "text": "ü"},
    ]


def test_a_sample_that_cannot_be_written_is_remembered(tmp_path: Path) -> None:
    (tmp_path / "samples").touch()
    run = Run(tmp_path)
    run.write_sample(7, "", "grid.txt", Path.touch, {})
    assert "samples" in run.lost_writes


def test_config_is_written_whole(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.write_initial_files(RunConfig(recipe="toy"), {}, {})
    run.write_initial_files(RunConfig(recipe="toy2"), {}, {})
    assert run.config_file.read_text(encoding="utf-8").startswith("recipe: toy2\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.yaml", "data.json"]
