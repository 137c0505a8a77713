"""The training display, on a terminal and without one."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

from quintet.training.display import Display, summary

FIGURES = {"train/generator/loss": 0.5, "train/lr": 1e-3, "train/rate/items_per_second": 9.0}
VALIDATED = {"psnr": 30.5, "codebook_usage": 0.875}


def test_without_a_terminal_the_display_prints_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    display = Display("run")
    display.start(0, 100)
    display.update(10)
    display.update(20, FIGURES, 3 * 2**30)
    display.show_validation(20, VALIDATED)
    display.note("[a] note")
    display.stop()
    first, validation, second = capsys.readouterr().err.splitlines()
    assert first.startswith("step 20/100  ")
    assert first.endswith(" left  3.00 GB  generator/loss 0.5  lr 0.001")
    assert validation == "validation at 20: codebook_usage 0.875  psnr 30.5"
    assert second == "[a] note"


def test_the_display_shows_tokens_and_flops_per_second(capsys: pytest.CaptureFixture[str]) -> None:
    display = Display("run")
    display.start(0, 100)
    speed = {"train/rate/tokens_per_second": 12_345.0, "train/rate/flops_per_second": 4.56e10}
    display.update(20, {**FIGURES, **speed}, 2**30)
    display.update(40, {**FIGURES, **speed, "train/rate/mfu": 0.4567}, 2**30)
    early, late = capsys.readouterr().err.splitlines()
    assert " left  12.3k tokens/s  45.6 GFLOP/s  1.00 GB  generator/loss 0.5" in early
    assert "  45.6 GFLOP/s (46% of peak)  1.00 GB  " in late


def everything_of(terminal: int) -> bytes:
    """Everything written to a terminal whose other end is closed; a single read may return only part of it."""
    parts = []
    try:
        while part := os.read(terminal, 2**16):
            parts.append(part)
    except OSError:  # how Linux says that nothing more will come
        pass
    return b"".join(parts)


def test_a_terminal_shows_step_speed_memory_losses_and_the_last_validation() -> None:
    code = (
        "from quintet.training.display import Display\n"
        f"display = Display('run'); display.start(0, 100); display.update(20, {FIGURES}, 3 * 2**30)\n"
        f"display.show_validation(20, {VALIDATED}); display.note('[a] note'); display.stop()\n"
    )
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "120", "TERM": "xterm"}
    done = subprocess.run([sys.executable, "-c", code], stderr=theirs, check=False, env=environment)
    os.close(theirs)
    shown = everything_of(ours).decode()
    os.close(ours)
    assert done.returncode == 0
    for expected in ("20/100", "steps/s", "left  3.00 GB", "generator/loss 0.5", "[a] note"):
        assert expected in shown
    # Updated in place below the bar, not printed again for every validation.
    assert "validation at 20: codebook_usage 0.875  psnr 30.5" in shown
    assert shown.index("[a] note") < shown.rindex("validation at 20")


def test_total_losses_come_before_their_parts_and_gradient_norms_last() -> None:
    parts = (
        "discriminator/fake",
        "discriminator/gradient_norm",
        "discriminator/loss",
        "generator/loss",
        "lr",
        "more",
        "x",
    )
    figures = {f"train/{name}": 1.0 for name in parts} | {"train/time/overhead": 1.0}
    assert summary(figures) == "discriminator/loss 1  generator/loss 1  discriminator/fake 1  lr 1  more 1"


def test_a_silent_display_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    display = Display("run", silent=True)
    display.start(0, 10)
    display.update(5, FIGURES)
    display.note("something")
    display.stop()
    assert capsys.readouterr().err == ""
