"""`MuLaNTrainer`: dataset objects of every form, and the keywords of the original trainer."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import soundfile
import torch

from quintet import runs
from quintet.common.rng import ItemRNG
from quintet.compat import musiclm_pytorch
from quintet.errors import UsageError
from quintet.families.mulan.model import AudioSpectrogramTransformer, MuLaN, TextTransformer
from quintet.families.mulan.trainer import MuLaNTrainer

RATE = 8000
TOWER: dict[str, Any] = {"dim": 16, "depth": 1, "heads": 2, "head_dim": 8}
QUICK: dict[str, Any] = {
    "data.num_workers": 0,
    "log.trackers": [],
    "eval.batches": 1,
    "sample.num": 2,
    "data.seconds": 0.5,
}


def small_mulan(**text: Any) -> MuLaN:
    torch.manual_seed(0)
    audio = AudioSpectrogramTransformer(
        **TOWER,
        sample_rate=RATE,
        n_fft=256,
        hop_length=80,
        n_mels=16,
        patch_size=8,
        frequency_mask=4,
        time_mask=4,
        max_seconds=1.0,
    )
    return MuLaN(audio_transformer=audio, text_transformer=TextTransformer(**TOWER, **text), latent_dim=8)


class Tones:
    """Twelve tones of different lengths, in one of the forms that datasets have."""

    def __init__(self, form: str) -> None:
        self.form = form

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        wave = torch.sin(torch.arange(2400 + 400 * index) * (index + 1) * 0.05)
        text, ids = f"tone {index}", torch.tensor([index + 1, 3, *[9] * (index % 3)])
        return {
            "tuple": (wave, text),
            "names": {"wavs": wave.numpy(), "texts": text},
            "raw texts": {"wavs": wave, "raw_texts": text},
            "declared": (text, wave),
            "ids": (wave, ids),
        }[self.form]


def trained(out: Path, form: str = "tuple", model: MuLaN | None = None, **more: Any) -> MuLaNTrainer:
    arguments: dict[str, Any] = {"steps": 2, "batch_size": 4, "config": QUICK, **more}
    trainer = MuLaNTrainer(model or small_mulan(), data=Tones(form), out=out, **arguments)
    trainer.train()
    trainer.close()
    return trainer


@pytest.mark.parametrize("form", ["tuple", "declared", "ids"])
def test_datasets_of_every_form_train(tmp_path: Path, form: str) -> None:
    declared = {"declared": ("texts", "wavs")} if form == "declared" else {}
    model = small_mulan(vocab_size=20) if form == "ids" else None
    trainer = trained(tmp_path / "run", form, model, **declared)
    assert trainer.step == 2
    assert isinstance(trainer.unwrapped_model, MuLaN)
    assert trainer.ema_model is not trainer.unwrapped_model
    assert (tmp_path / "run" / "checkpoints" / "latest").is_file()


def test_the_form_of_a_dataset_does_not_change_training(tmp_path: Path) -> None:
    first, *others = (
        trained(tmp_path / form, form).unwrapped_model.state_dict() for form in ("tuple", "names", "raw texts")
    )
    for other in others:
        assert all(torch.equal(first[name], other[name]) for name in other)


def test_a_run_of_a_python_dataset_resumes_only_from_python(tmp_path: Path) -> None:
    settings = {**QUICK, "optim.decay_steps": 4}
    straight = trained(tmp_path / "straight", steps=4, config=settings)
    trained(tmp_path / "parts", config=settings)
    with pytest.raises(UsageError, match="only be resumed from Python"):
        runs.resumed_trainer(tmp_path / "parts", {"train.steps": 4})
    again = trained(tmp_path / "parts", steps=4, resume=True)
    for name, value in straight.unwrapped_model.state_dict().items():
        assert torch.equal(again.unwrapped_model.state_dict()[name], value), name


def original_call(out: Path, **changes: Any) -> dict[str, Any]:
    """Every keyword of MuLaNTrainer in musiclm-pytorch 0.2.8, but for the model."""
    return {
        "dataset": Tones("tuple"),
        "num_train_steps": 2,
        "batch_size": 2,
        "data_max_length": 4000,
        "folder": None,
        "lr": 1e-3,
        "grad_accum_every": 2,
        "betas": (0.9, 0.99),
        "max_grad_norm": 0.5,
        "valid_frac": 0.2,
        "random_split_seed": 42,
        "save_model_every": 1,
        "results_folder": str(out),
        "accelerate_kwargs": {"mixed_precision": "no"},
        "use_lion": True,
        "force_clear_prev_results": None,
        **changes,
    }


def test_the_whole_original_signature_trains(tmp_path: Path) -> None:
    call = original_call(tmp_path / "run", config={"data.num_workers": 0, "log.trackers": []})
    dataset = call.pop("dataset")
    trainer = musiclm_pytorch.MuLaNTrainer(small_mulan(), dataset, **call)
    settings = trainer.config
    assert settings.data.seconds == 4000 / RATE
    assert (settings.train.batch_size, settings.train.grad_accum_steps, settings.optim.name) == (4, 2, "lion")
    assert (settings.optim.max_grad_norm, settings.optim.lr, settings.checkpoint.every) == (0.5, 1e-3, 1)
    longest = max(trainer.splits.train.load(item, ItemRNG(0, [0], [item]))["wavs"].shape[1] for item in range(9))
    assert longest == 4000
    logs: list[dict[str, Any]] = []
    trainer.train(log_fn=logs.append)
    trainer.close()
    assert [[*log] for log in logs] == [["loss"], ["loss"]]
    assert trainer.steps.tolist() == [2.0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batch_size": 1, "grad_accum_every": 1}, "batch_size=1 is invalid.*at least 2"),
        ({"data_max_length": 0}, "data_max_length=0 is invalid"),
        ({"data_max_length": 80_000}, r"data\.seconds=10\.0 is longer than model\.audio\.max_seconds=1\.0"),
        ({"dataset": None}, "MuLaNTrainer needs data"),
        ({"mulan": "a string"}, "trains a quintet.MuLaN, not a str"),
    ],
)
@pytest.mark.filterwarnings("ignore::quintet.compat.CompatibilityNotice")
def test_invalid_original_values_are_one_sentence(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        musiclm_pytorch.MuLaNTrainer(**{"mulan": small_mulan(), **original_call(tmp_path / "run"), **change})
    assert not (tmp_path / "run").exists()


def test_captions_of_a_dataset_are_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    same = [(torch.rand(4000), "a tone")] * 8
    MuLaNTrainer(small_mulan(), data=same, out=tmp_path / "same", steps=1, batch_size=2, config=QUICK).close()
    assert "have the same caption 'a tone'" in capsys.readouterr().err
    empty = [(torch.rand(4000), "")] * 8
    with pytest.raises(UsageError, match="have no caption, for example item 0"):
        MuLaNTrainer(small_mulan(), data=empty, out=tmp_path / "empty", steps=1, batch_size=2, config=QUICK)


def test_ids_beyond_the_vocabulary_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"model\.text\.vocab_size"):
        MuLaNTrainer(
            small_mulan(vocab_size=5), data=Tones("ids"), out=tmp_path / "run", steps=1, batch_size=4, config=QUICK
        )


def test_the_readme_form_gives_no_notice(tmp_path: Path) -> None:
    folder = tmp_path / "audio"
    folder.mkdir()
    for number in range(8):
        soundfile.write(folder / f"{number}.wav", Tones("tuple")[number][0].numpy(), RATE)
        (folder / f"{number}.txt").write_text(f"tone {number}")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer = MuLaNTrainer(
            small_mulan(), data=str(folder), out=tmp_path / "run", steps=1, batch_size=4, config={"data.seconds": 0.5}
        )
    trainer.close()
