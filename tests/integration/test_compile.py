"""`engine.compile` without a compiler ends in one sentence."""

from __future__ import annotations

from pathlib import Path

from helpers import TINY, environment, error_line, executed, python


def test_a_missing_compiler_is_one_sentence_with_the_key(pictures: Path, tmp_path: Path) -> None:
    words = ("train", "vqgan", pictures, "--out", tmp_path / "run", *TINY, "engine.compile=true")
    missing = environment(CXX="/nonexistent/c++", TORCHINDUCTOR_CACHE_DIR=tmp_path / "cache")
    with executed(python("-m", "quintet", *words), tmp_path / "said", env=missing) as process:
        assert process.end() == 1
    said = error_line((tmp_path / "said").read_text())
    assert said.startswith("error: torch.compile failed (")
    assert "compiler" in said
    assert said.endswith("set engine.compile=false")
