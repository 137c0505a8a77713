"""The recipe mesh-transformer: data, conditioning, metrics, generation and invalid input."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from contract.cases import GOLDEN, TINY_MESH_AUTOENCODER, TINY_MESH_TRANSFORMER
from contract.worlds import make_task
from helpers import error_line, made_once, metrics, quintet, step_folder, succeed, tree
from quintet import config as configs
from quintet.common.batch import Batch
from quintet.common.inference import inference_mode
from quintet.common.rng import ItemRNG
from quintet.common.statistics import Statistics
from quintet.data.index.marker import write_marker
from quintet.errors import UsageError
from quintet.families.mesh_transformer import pipeline
from quintet.families.mesh_transformer.config import MeshTransformerConfig
from quintet.families.mesh_transformer.data import python_splits
from quintet.families.mesh_transformer.model import PADDING, MeshTransformer
from quintet.families.mesh_transformer.pipeline import MeshTransformerPipeline
from quintet.families.mesh_transformer.task import MeshTransformerTask, point_clouds, validity_sums
from quintet.families.mesh_transformer.trainer import MeshTransformerTrainer
from quintet.media.mesh import Mesh, canonical, clean, quantise, read_mesh, write_mesh
from quintet.media.mesh_measures import is_valid
from quintet.pipelines.loading import open_pipeline
from quintet.registry import read_config
from quintet.synthetic.solids import CLASSES, draw_solid
from quintet.synthetic.solids_judge import SolidsJudge
from quintet.training.judge import mean_scores
from quintet.training.order import Order
from quintet.training.run_folder import Run
from quintet.training.trainer import Trainer
from text_models import make_folder

BINS = 32


def command(data: Path, out: Path, *more: object) -> tuple[object, ...]:
    return ("train", "mesh-transformer", data, "--out", out, *TINY_MESH_TRANSFORMER, *more)


def build_task(data: Path, *keys: str) -> MeshTransformerTask:
    task = make_task("mesh-transformer", data, (*TINY_MESH_TRANSFORMER, *keys))
    assert isinstance(task, MeshTransformerTask)
    return task


@pytest.fixture
def task(meshes: Path) -> MeshTransformerTask:
    return build_task(meshes)


@pytest.fixture(scope="session")
def run(shared: Path, meshes: Path) -> Path:
    """A finished run. Read only."""
    return made_once(shared, "mesh-transformer-run", lambda folder: succeed(*command(meshes, folder)))


@pytest.fixture(scope="session")
def learned(shared: Path, meshes: Path) -> Path:
    """A trained tokenizer. Read only."""

    def train(folder: Path) -> None:
        succeed("train", "mesh-autoencoder", meshes, "--out", folder, *TINY_MESH_AUTOENCODER)

    return made_once(shared, "mesh-transformer-tokenizer", train)


def batch_of(task: MeshTransformerTask, items: range, epoch: int = 0) -> Batch:
    source = task.splits().train
    rngs = [ItemRNG(0, [epoch], [item]) for item in items]
    fields = task.collate([source.load(item, rng) for item, rng in zip(items, rngs, strict=True)])
    return Batch(fields, tuple(source.name(item) for item in items), ItemRNG(0, [epoch] * len(items), list(items)))


def in_epoch(batch: Batch, epoch: int) -> Batch:
    count = len(batch)
    return Batch(batch.fields, batch.names, ItemRNG(0, [epoch] * count, list(range(count))))


# --- training data ------------------------------------------------------------------------------------------------


def test_items_are_the_codes_of_their_meshes_padded_at_the_end(task: MeshTransformerTask, meshes: Path) -> None:
    splits = task.splits()
    validation = splits.validation
    items = [validation.load(item, ItemRNG(0, [0], [item])) for item in range(len(validation))]
    batch = task.collate(items)
    longest = max(len(item["codes"]) for item in items)
    assert len({len(item["codes"]) for item in items}) > 1
    for item in range(len(validation)):
        mesh = read_mesh(meshes / validation.name(item), bins=BINS)
        corners = quantise(mesh.vertices, BINS)[mesh.faces][:, :, ::-1].reshape(len(mesh.faces), 9)
        count = len(corners)
        assert np.array_equal(batch["codes"][item, :count].numpy(), corners)
        assert (batch["codes"][item, count:] == PADDING).all()
        assert batch["lengths"][item] == batch["faces"][item] == count
    assert batch["codes"].shape == (len(items), longest, 9)
    assert batch["begins"].all()
    assert batch["ends"].all()


def test_batches_hold_meshes_of_similar_size(task: MeshTransformerTask) -> None:
    source = task.splits().train
    lengths = task.lengths(source)
    assert lengths is not None
    loaded = [len(source.load(item, ItemRNG(0, [0], [item]))["codes"]) for item in range(len(source))]
    assert list(lengths) == loaded

    def padding(order: Order) -> int:
        batches = [[lengths[item] for _, item in order.batch(step)] for step in range(64)]
        return sum(max(batch) * len(batch) - sum(batch) for batch in batches)

    assert padding(Order(len(source), 4, 0, lengths)) < padding(Order(len(source), 4, 0)) / 2


def test_each_epoch_uses_a_random_augmented_variant(meshes: Path) -> None:
    def codes(task: MeshTransformerTask, epochs: int) -> set[bytes]:
        source = task.splits().train
        return {source.load(0, ItemRNG(0, [epoch], [0]))["codes"].numpy().tobytes() for epoch in range(epochs)}

    assert len(codes(build_task(meshes, "data.variants=3"), 40)) == 3
    assert len(codes(build_task(meshes, "data.variants=3", "data.augment=false"), 40)) == 1


def test_a_window_is_part_of_the_mesh_and_marks_its_ends(meshes: Path) -> None:
    whole, windowed = build_task(meshes).splits().train, build_task(meshes, "loss.window_faces=8").splits().train
    ends: set[tuple[bool, bool]] = set()
    for item in range(len(whole)):
        for epoch in range(12):
            rng = ItemRNG(0, [epoch], [item])
            mesh, part = whole.load(item, rng)["codes"], windowed.load(item, rng)
            count = len(mesh)
            assert part["faces"] == count
            assert len(part["codes"]) == min(count, 8)
            starts = [
                at for at in range(count - len(part["codes"]) + 1) if torch.equal(mesh[at : at + 8], part["codes"])
            ]
            assert starts
            first, last = part["begins"], part["ends"]
            assert not first or starts[0] == 0
            assert not last or starts[-1] + len(part["codes"]) == count
            ends.add((first, last))
    assert ends >= {(True, False), (False, True), (False, False)}
    assert max(windowed.lengths()) == 8  # type: ignore[attr-defined]


def test_generated_meshes_are_compared_with_full_meshes_not_windows(meshes: Path) -> None:
    task = build_task(meshes, "loss.window_faces=8")
    source = task.splits().validation
    items = range(len(source))
    loaded = [source.load(item, ItemRNG(0, [0], [item])) for item in items]
    batch = Batch(task.collate(loaded), tuple(map(source.name, items)), ItemRNG(0, [0] * len(items), list(items)))
    assert int(batch["lengths"].max()) == 8 < int(batch["faces"].max())
    with inference_mode(task.modules):
        statistics = task.measure_generated(task.modules, batch, "validation")
        task.sample(task.modules, batch)
    assert statistics.rows["match_class_reconstruction"].tolist() == [1.0] * len(items)


def test_meshes_that_are_too_large_are_skipped_or_used_in_windows(meshes: Path, tmp_path: Path) -> None:
    sizes = {entry: len(read_mesh(entry, bins=BINS).faces) for entry in sorted((meshes / "meshes").iterdir())}
    large = [f"meshes/{path.name}" for path, faces in sizes.items() if faces > 30]
    assert 0 < len(large) < len(sizes)
    outcome = succeed(*command(meshes, tmp_path / "run", "model.max_faces=30", "data.augment=false"))
    record = json.loads((tmp_path / "run" / "data.json").read_text())
    assert set(record["skipped"]) == set(large)
    assert "more than model.max_faces=30" in record["skipped"][large[0]]
    assert not {*record["train"], *record["validation"]} & set(large)
    lines = [line for line in outcome.errors.splitlines() if "are skipped" in line]
    assert sum(int(line.split()[0]) for line in lines) == len(large)
    # With windows all of them are used.
    outcome = succeed(*command(meshes, tmp_path / "windows", "model.max_faces=30", "loss.window_faces=30"))
    record = json.loads((tmp_path / "windows" / "data.json").read_text())
    assert record["skipped"] == {}
    assert set(record["train"]) > set(record["train"]) & set(large)
    assert "are skipped" not in outcome.errors


def test_a_dataset_of_too_large_meshes_is_refused(meshes: Path, tmp_path: Path) -> None:
    keys = ("model.max_faces=4", "sample.max_faces=4")
    outcome = quintet(*command(meshes, tmp_path / "run", *keys))
    assert outcome.code == 2
    assert "can be used" in error_line(outcome.errors)
    assert "model.max_faces=4" in error_line(outcome.errors)


# --- training -----------------------------------------------------------------------------------------------------


def test_the_fractions_of_dropped_texts_and_face_counts_match_the_keys(meshes: Path) -> None:
    task = build_task(meshes, "loss.cond_drop_prob=0.3", "loss.face_count_drop_prob=0.6")
    batch = batch_of(task, range(20))
    conditioning: list[dict[str, Tensor]] = []
    hook = task.transformer.register_forward_pre_hook(lambda module, arguments: conditioning.append(arguments[2]))
    for epoch in range(60):
        task.forward(task.modules, in_epoch(batch, epoch), step=0)
    hook.remove()
    texts = torch.cat([~each["text_mask"].any(1) for each in conditioning]).double().mean()
    counts = torch.cat([each["faces"] == 0 for each in conditioning]).double().mean()
    assert texts.item() == pytest.approx(0.3, abs=0.04)
    assert counts.item() == pytest.approx(0.6, abs=0.04)


@pytest.mark.parametrize("keys", [(), ("loss.window_faces=8",), ("model.kind=flat",)])
def test_the_loss_is_a_mean_over_tokens_whatever_the_batch(keys: tuple[str, ...], meshes: Path) -> None:
    task = build_task(meshes, *keys)
    task.transformer.double()

    def sums(items: range) -> tuple[float, int]:
        batch = batch_of(task, items)
        output = task.forward(task.modules, batch, step=0)
        count = len(output["targets"])
        expected = int(batch["lengths"].sum() * 9 + batch["ends"].sum() - 9 * (~batch["begins"]).sum())
        assert count == expected
        return task.token_loss(task.modules, batch, output, step=0).value.item() * count, count

    together, count = sums(range(6))
    alone = [sums(range(item, item + 1)) for item in range(6)]
    assert count == sum(each for _, each in alone)
    assert together == pytest.approx(sum(value for value, _ in alone), rel=1e-9)


def test_validation_metrics_are_means_over_all_tokens(task: MeshTransformerTask) -> None:
    with inference_mode(task.modules):
        parts = [task.measure(task.modules, batch_of(task, items)) for items in (range(1), range(1, 5))]
        whole = task.measure(task.modules, batch_of(task, range(5)))
    scores = task.summarise(sum(parts, Statistics()))
    for name, value in task.summarise(whole).items():
        assert scores[name] == pytest.approx(value, rel=1e-5)
    assert scores["perplexity"] == pytest.approx(np.exp(scores["loss"]))
    assert 0 <= scores["accuracy"] <= 1


def test_dropout_and_text_dropping_resume_after_validation(meshes: Path, tmp_path: Path) -> None:
    task = build_task(meshes, "model.dropout=0.5", "loss.cond_drop_prob=0.5", "eval.every=2", "sample.every=2")
    trainer = Trainer(task, Run.new(tmp_path / "run"), silent=True)
    batch = batch_of(task, range(12))

    def check(logs: dict[str, Any]) -> None:
        assert all(part.training for part in task.transformer.modules()), logs["step"]
        with torch.no_grad():
            one, other = (task.forward(task.modules, batch, step=0)["logits"] for _ in range(2))
        assert not torch.equal(one, other), "dropout is off"
        conditioning: list[dict[str, Tensor]] = []
        hook = task.transformer.register_forward_pre_hook(lambda module, arguments: conditioning.append(arguments[2]))
        task.forward(task.modules, in_epoch(batch, logs["step"]), step=0)
        hook.remove()
        has_text = conditioning[0]["text_mask"].any(1)
        assert 0 < has_text.sum() < len(has_text)

    trainer.train(log_fn=check)
    trainer.close()
    assert [row["step"] for row in metrics(tmp_path / "run") if "validation/loss" in row] == [2, 4, 6, 8, 10, 12]


@pytest.mark.parametrize("kind", ["coarse_fine", "flat"])
def test_bf16_trains_measures_and_samples(kind: str, meshes: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    keys = (f"model.kind={kind}", "train.steps=2", "eval.every=1", "sample.every=1", "engine.precision=bf16")
    succeed(*command(meshes, run, *keys))
    succeed("eval", run)
    succeed("sample", run, "sample.guidance_scale=2", "--text", "a table", "--num", 2, "--out", tmp_path / "out")
    scores = json.loads((run / "eval.json").read_text())
    assert np.isfinite([*scores.values()]).all()


# --- metrics of generated meshes ----------------------------------------------------------------------------------


TETRAHEDRON = Mesh(
    np.array([[0.0, 0, 0], [0.5, 0, 0], [0, 0.5, 0], [0, 0, 0.5]]),
    np.array([[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]]),
)


def test_a_mesh_is_valid_if_it_ended_and_has_no_defects() -> None:
    vertices, faces = TETRAHEDRON.vertices, TETRAHEDRON.faces
    flipped = Mesh(vertices, np.concatenate([faces, faces[:1, ::-1]]))  # one face twice, once flipped
    flat = Mesh(np.concatenate([vertices, [[0.25, 0, 0]]]), np.concatenate([faces, [[0, 4, 1]]]))
    open_mesh = Mesh(vertices, faces[:3])
    meshes = [TETRAHEDRON, TETRAHEDRON, flipped, flat, open_mesh]
    results = [validity_sums([mesh], [end]) for mesh, end in zip(meshes, [True, False, True, True, True], strict=True)]
    assert [int(each["valid"]) for each in results] == [1, 0, 0, 0, 1]
    assert [int(each["watertight"]) for each in results] == [1, 0, 0, 0, 0]
    assert [int(each["ended"]) for each in results] == [1, 0, 1, 1, 1]
    assert int(validity_sums(meshes, [True] * 5)["valid"]) == 3


def test_the_judge_scores_class_and_proportions_of_the_caption() -> None:
    generator = np.random.default_rng(0)
    items = [draw_solid(generator, kind) for kind in CLASSES]
    rows = [{"class": item.kind, "proportions": item.proportions} for item in items]
    meshes, judge = [item.mesh for item in items], SolidsJudge()
    assert all(map(judge.knows, rows))
    assert not judge.knows({"class": "spoon", "proportions": {}})
    found = judge.metrics(meshes, rows, "validation")
    assert mean_scores(found) == {"match_class": 1, "match_proportions": 1}
    assert found["match_proportions"].isfinite().sum() == sum(len(item.proportions) for item in items)
    kinds = [item.kind for item in items]
    moved = judge.metrics(meshes, [{"class": kind, "proportions": {}} for kind in [*kinds[1:], kinds[0]]], "validation")
    assert mean_scores(moved).keys() == {"match_class"}
    assert moved["match_class"].mean() < 1 / 4


def test_metrics_of_generated_meshes_do_not_depend_on_batches(task: MeshTransformerTask) -> None:
    with inference_mode(task.modules):
        measured = task.measure(task.modules, batch_of(task, range(4)))
        parts = [
            task.measure_generated(task.modules, batch_of(task, part), "validation") for part in (range(3), range(3, 4))
        ]
        whole = task.measure_generated(task.modules, batch_of(task, range(4)), "validation")
        assert task.measure_generated(task.modules, batch_of(task, range(4)), "withheld").rows == {}
    scores = task.summarise(sum(parts, measured))
    names = {"valid", "watertight", "match_class", "match_proportions", "coverage", "mmd", "one_nna"}
    assert names <= scores.keys()
    assert scores["match_class_reconstruction"] == 1
    for name, value in task.summarise(measured + whole).items():
        assert scores[name] == pytest.approx(value), name
    assert task.summarise(measured).keys() == {"loss", "perplexity", "accuracy"}


def test_set_metrics_of_a_perfect_generator(task: MeshTransformerTask) -> None:
    """Two sets of real meshes as generated and real ones, compared with a less diverse set."""
    generator = np.random.default_rng(0)
    sets = [point_clouds([draw_solid(generator, kind).mesh for kind in CLASSES for _ in range(3)]) for _ in range(2)]
    with inference_mode(task.modules):
        measured = task.measure(task.modules, batch_of(task, range(2)))
    sums = {name: torch.tensor(1.0) for name in ("generated", "valid", "watertight", "ended")}
    perfect = task.summarise(measured + Statistics(sums, {"generated": sets[0], "real": sets[1]}))
    repetitive = task.summarise(measured + Statistics(sums, {"generated": sets[0][:4], "real": sets[1]}))
    assert perfect["one_nna"] == pytest.approx(0.5, abs=0.2)
    assert perfect["coverage"] > 0.4 > repetitive["coverage"]
    assert perfect["mmd"] < repetitive["mmd"]


def test_an_overfitted_model_generates_its_data_from_the_captions(tmp_path: Path) -> None:
    data, run, generator = tmp_path / "data", tmp_path / "run", np.random.default_rng(0)
    rows = []
    for kind in ("cone", "stairs"):
        solid = draw_solid(generator, kind)
        write_mesh(solid.mesh, data / f"{kind}.obj")
        rows.append({"file_name": f"{kind}.obj", "text": kind, "class": kind, "proportions": solid.proportions})
    (data / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_marker(data, {"name": "solids", "version": 1})
    keys = ("data.augment=false", "data.validation_fraction=0", "train.batch_size=2", "train.steps=120", "model.dim=48")
    speed = ("optim.name=muon", "optim.lr=3e-3", "ema.decay=0.8", "eval.every=120", "sample.every=120")
    sampling = ("sample.temperature=0", "sample.max_faces=null", "loss.cond_drop_prob=0", "model.heads=3")
    succeed(*command(data, run, *keys, *speed, *sampling, "checkpoint.every=120"))
    succeed("eval", run)
    scores = json.loads((run / "eval.json").read_text())
    assert {scores[name] for name in ("valid", "watertight", "ended", "match_class", "coverage")} == {1.0}
    assert scores["mmd"] == pytest.approx(0, abs=1e-6)
    assert scores["perplexity"] < 1.1


# --- generation ---------------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_files(run: Path, tmp_path: Path) -> None:
    for out, seed in (("one", 1), ("again", 1), ("other", 2)):
        texts = ("--text", "a tall table", "--text", "stairs")
        succeed("sample", run, *texts, "--num", 2, "--seed", seed, "--out", tmp_path / out)
    one, again, other = (tree(tmp_path / out) for out in ("one", "again", "other"))
    assert one == again
    assert one["003.obj"] != other["003.obj"]
    expected = {f"{number:03d}.{suffix}" for number in range(4) for suffix in ("glb", "obj")}
    assert one.keys() == expected | {"sheet.png", "samples.jsonl"}
    rows = [json.loads(line) for line in (tmp_path / "one" / "samples.jsonl").read_text().splitlines()]
    by_file = {row["file"]: row for row in rows}
    assert by_file.keys() == expected | {"sheet.png"}
    assert by_file["002.glb"]["text"] == "stairs"
    assert by_file["002.glb"]["seed"] == 1
    assert by_file["002.glb"]["settings"]["temperature"] == 1.0
    for number in range(4):
        row = by_file[f"{number:03d}.obj"]
        content = (tmp_path / "one" / f"{number:03d}.obj").read_text().splitlines()
        assert row["faces"] == sum(line.startswith("f ") for line in content) <= 4
        assert row["ended"] is False or row["faces"] <= 4


def same(one: Mesh, other: Mesh) -> bool:
    return np.array_equal(one.vertices, other.vertices) and np.array_equal(one.faces, other.faces)


def test_a_mesh_depends_neither_on_the_number_of_meshes_nor_on_the_batch(
    task: MeshTransformerTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate = task.pipeline(task.modules)
    few, many = (generate("a table", num=num, seed=3) for num in (2, 5))
    monkeypatch.setattr(pipeline, "MESHES_AT_ONCE", 2)
    parts = generate(["a table", "stairs"], num=5, seed=3)
    assert [same(*pair) for pair in zip(few, many, strict=False)] == [True] * 2
    assert [same(*pair) for pair in zip(many, parts, strict=False)] == [True] * 5
    assert len(parts) == 10


def test_the_python_pipeline_and_the_command_give_the_same_meshes(run: Path, tmp_path: Path) -> None:
    succeed("export", run, tmp_path / "hub")
    generate = MeshTransformerPipeline.from_pretrained(tmp_path / "hub")
    meshes = generate(["a table", "stairs"], num=2, seed=5)
    assert all(mesh.vertices.shape[1] == mesh.faces.shape[1] == 3 and len(mesh.faces) <= 4 for mesh in meshes)
    assert all(np.abs(mesh.vertices).max() <= 1 and mesh.faces.max() < len(mesh.vertices) for mesh in meshes)
    assert not all(same(*pair) for pair in zip(meshes, generate(["a table", "stairs"], num=2, seed=6), strict=True))
    texts = ("--text", "a table", "--text", "stairs")
    succeed("sample", run, *texts, "--num", 2, "--seed", 5, "--out", tmp_path / "out")
    for number, mesh in enumerate(meshes):
        write_mesh(mesh, tmp_path / "own.obj")
        assert (tmp_path / "own.obj").read_bytes() == (tmp_path / "out" / f"{number:03d}.obj").read_bytes()
    (part,) = generate("a table", mesh=tmp_path / "own.obj")
    assert len(part.faces) >= 1


def test_an_export_generates_the_same_meshes_as_its_run(run: Path, tmp_path: Path) -> None:
    succeed("export", run, tmp_path / "hub")
    for folder in (run, tmp_path / "hub"):
        succeed("sample", folder, "--text", "a table", "--num", 2, "--out", tmp_path / "out" / folder.name)
    first, second = (tmp_path / "out" / name / "001.obj" for name in (run.name, "hub"))
    assert first.read_bytes() == second.read_bytes()


def test_the_strict_grammar_generates_only_valid_faces(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    succeed("sample", run, "sample.grammar=strict", "--text", "a table", "--num", 8, "--out", out)
    for number in range(8):
        generated = _as_written(out / f"{number:03d}.obj")
        assert is_valid(generated)
        ordered = canonical(generated, BINS)
        assert np.array_equal(ordered.vertices[ordered.faces], generated.vertices[generated.faces])


def _as_written(path: Path) -> Mesh:
    """The faces of an OBJ file in the order of the file."""
    rows = [line.split() for line in path.read_text().splitlines()]
    vertices = np.array([[float(word) for word in row[1:]] for row in rows if row[0] == "v"])
    return Mesh(vertices, np.array([[int(word) - 1 for word in row[1:]] for row in rows if row[0] == "f"]))


def test_the_number_of_faces_can_be_requested(run: Path, meshes: Path, tmp_path: Path) -> None:
    succeed("sample", run, "sample.faces=12", "--text", "a table", "--num", 1, "--out", tmp_path / "out")
    outcome = quintet("sample", run, "sample.faces=900", "--text", "a table", "--out", tmp_path / "out")
    assert outcome.code == 2
    assert "more than model.max_faces=256" in error_line(outcome.errors)
    outcome = quintet(*command(meshes, tmp_path / "run", "sample.faces=12", "model.face_buckets=0"))
    assert outcome.code == 2
    assert "model.face_buckets" in error_line(outcome.errors)


def test_a_model_without_text_generates_unconditionally(meshes: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    succeed(*command(meshes, run, "model.text=none"))
    succeed("sample", run, "--num", 2, "--out", tmp_path / "out")
    assert (tmp_path / "out" / "001.glb").is_file()
    outcome = quintet("sample", run, "--text", "a table", "--out", tmp_path / "out")
    assert outcome.code == 2
    assert "trained without text" in error_line(outcome.errors)


def test_a_negative_text_needs_guidance(run: Path, tmp_path: Path) -> None:
    arguments = ("sample", run, "--text", "a table", "--negative", "a chair", "--num", 1, "--out", tmp_path / "out")
    outcome = quintet(*arguments)
    assert outcome.code == 2
    assert "sample.guidance_scale above 1" in error_line(outcome.errors)
    succeed(*arguments, "sample.guidance_scale=2")


def test_an_empty_negative_prompt_equals_no_negative_prompt(task: MeshTransformerTask) -> None:
    generate = task.pipeline(task.modules).with_keys({"sample.guidance_scale": 3.0})
    (without,), (empty,), (other,) = (
        generate("a table", negative_prompt=text, seed=1) for text in (None, "", "a flat disc")
    )
    assert same(without, empty)
    assert not same(without, other)


def test_a_learned_tokenizer_works_as_well(learned: Path, meshes: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    succeed(*command(meshes, run, "--tokenizer", learned))
    model = read_config(run / "config.yaml").model
    assert (model.num_codes, model.tokens_per_face) == (256, 6)  # type: ignore[attr-defined]
    succeed("sample", run, "--text", "a table", "--num", 2, "--out", tmp_path / "out")
    outcome = quintet("sample", run, "sample.grammar=strict", "--text", "a table", "--out", tmp_path / "out")
    assert outcome.code == 2
    assert "sample.grammar=strict needs" in error_line(outcome.errors)


# --- partial meshes -----------------------------------------------------------------------------------------------


@pytest.fixture
def part(meshes: Path, tmp_path: Path) -> tuple[Path, Mesh]:
    """The first three faces of a mesh, as a file and in memory."""
    whole = read_mesh(meshes / "meshes" / "00000.obj", bins=BINS)
    mesh = canonical(clean(Mesh(whole.vertices, whole.faces[:3]), BINS), BINS)
    path = tmp_path / "part.obj"
    write_mesh(mesh, path)
    return path, mesh


def test_a_generated_mesh_starts_with_its_partial_mesh(run: Path, part: tuple[Path, Mesh], tmp_path: Path) -> None:
    path, mesh = part
    out = tmp_path / "out"
    succeed("sample", run, "--text", "a table", "--mesh", path, "--num", 3, "--out", out)
    expected = quantise(mesh.vertices, BINS)[mesh.faces]
    for number in range(3):
        generated = _as_written(out / f"{number:03d}.obj")
        assert np.array_equal(quantise(generated.vertices, BINS)[generated.faces][:3], expected)
    rows = [json.loads(line) for line in (out / "samples.jsonl").read_text().splitlines()]
    assert all(row["mesh"] == str(path) for row in rows)
    # Also without a text.
    succeed("sample", run, "--mesh", path, "--num", 1, "--out", tmp_path / "silent")


def test_invalid_partial_meshes_are_refused(run: Path, part: tuple[Path, Mesh], meshes: Path, tmp_path: Path) -> None:
    def message(path: Path, *keys: str) -> str:
        outcome = quintet("sample", run, *keys, "--text", "a table", "--mesh", path, "--out", tmp_path / "out")
        assert outcome.code == 2
        return error_line(outcome.errors)

    whole = meshes / "meshes" / "00000.obj"
    faces = len(read_mesh(whole, bins=BINS).faces)
    inside = tmp_path / "whole.obj"
    write_mesh(read_mesh(whole, bins=BINS), inside)
    assert f"has {faces} faces, more than sample.max_faces=4" in message(inside)
    assert "No such file" in message(tmp_path / "none.obj")
    (tmp_path / "broken.obj").write_text("v 0 0\nf 1 2 3\n")
    assert str(tmp_path / "broken.obj") in message(tmp_path / "broken.obj")
    write_mesh(Mesh(part[1].vertices * 3, part[1].faces), tmp_path / "large.obj")
    assert "in the box from -1 to 1" in message(tmp_path / "large.obj")


def test_mesh_is_refused_by_other_recipes(part: tuple[Path, Mesh], tmp_path: Path) -> None:
    outcome = quintet("sample", GOLDEN / "muse-format-1" / "hub", "--mesh", part[0], "--out", tmp_path / "out")
    assert outcome.code == 2
    assert "'muse' does not take --mesh" in error_line(outcome.errors)


def test_image_is_refused_by_the_mesh_recipe(run: Path, tmp_path: Path) -> None:
    image = ("--image", tmp_path / "a.png", "--mask", tmp_path / "b.png")
    outcome = quintet("sample", run, *image, "--out", tmp_path / "out")
    assert outcome.code == 2
    assert "'mesh-transformer' does not take --image" in error_line(outcome.errors)


# --- in Python ----------------------------------------------------------------------------------------------------


class Solids:
    """A dataset object: vertices, faces and a caption."""

    def __init__(self, count: int, seed: int = 0) -> None:
        generator = np.random.default_rng(seed)
        self.items = [draw_solid(generator) for _ in range(count)]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, item: int) -> tuple[Tensor, Tensor, str]:
        mesh = self.items[item].mesh
        vertices = mesh.vertices / np.abs(mesh.vertices).max() * 0.9
        return torch.from_numpy(vertices).float(), torch.from_numpy(mesh.faces), self.items[item].caption


def small_model(**keys: Any) -> MeshTransformer:
    torch.manual_seed(0)
    sizes = {"dim": 16, "depth": 1, "fine_depth": 1, "heads": 2, "text_dim": 16, "text_depth": 1, "text_heads": 2}
    return MeshTransformer(**{"num_codes": BINS, "tokens_per_face": 9, **sizes, **keys})


def trainer(out: Path, data: Any, **more: Any) -> MeshTransformerTrainer:
    keys = {
        "log.trackers": [],
        "data.num_workers": 0,
        "sample.max_faces": 4,
        "eval.num_generated": 0,
        "optim.decay_steps": 4,
    }
    tokenizer = open_pipeline(f"coordinates:{BINS}")
    arguments: dict[str, Any] = {"steps": 4, "batch_size": 2, "config": keys, **more}
    model = arguments.pop("model", None) or small_model()
    return MeshTransformerTrainer(model, tokenizer=tokenizer, data=data, out=out, **arguments)


@pytest.mark.parametrize("kind", ["folder", "dataset object"])
def test_the_trainer_for_python(kind: str, meshes: Path, tmp_path: Path) -> None:
    def data() -> Any:
        return meshes if kind == "folder" else Solids(12)

    for out, steps in (("whole", 4), ("parts", 2)):
        started = trainer(tmp_path / out, data(), steps=steps)
        started.train()
        started.close()
    resumed = trainer(tmp_path / "parts", data(), resume=True)
    resumed.train()
    resumed.close()
    assert resumed.step == 4
    whole, parts = (load_file(step_folder(tmp_path / out, 4) / "transformer.safetensors") for out in ("whole", "parts"))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    assert isinstance(resumed.unwrapped_model, MeshTransformer)
    assert isinstance(resumed.ema_model, MeshTransformer)


def make_config(**keys: Any) -> MeshTransformerConfig:
    fixed = {"model.num_codes": BINS, "model.tokens_per_face": 9}
    return configs.build(MeshTransformerConfig, overrides={**fixed, **keys})


class Rows:
    """A dataset object: its items in one of the forms that a trainer takes."""

    def __init__(self, form: str, count: int = 8) -> None:
        self.solids, self.form = Solids(count), form
        self.tokenizer = open_pipeline(f"coordinates:{BINS}")

    def __len__(self) -> int:
        return len(self.solids)

    def __getitem__(self, item: int) -> Any:
        vertices, faces, text = self.solids[item]
        mesh = canonical(clean(Mesh(vertices.double().numpy(), faces.numpy()), BINS), BINS)
        codes = self.tokenizer.encode(mesh.vertices, mesh.faces)
        padded = torch.cat([codes, torch.full((3, codes.shape[1]), -1)])
        vectors = torch.randn(2 + item % 3, 6, generator=torch.Generator().manual_seed(item))
        return {
            "codes": {"codes": padded.numpy(), "texts": text},
            "flat codes": {"codes": codes.flatten(), "texts": text},
            "codes of vertices": {"codes": codes.view(-1, 3), "texts": text},
            "tuples of codes": (codes, text),
            "codes and vectors": {"codes": codes, "text_embeds": vectors},
            "meshes and vectors": (vertices, faces, vectors),
        }[self.form]


@pytest.mark.parametrize(
    "form", ["codes", "flat codes", "codes of vertices", "tuples of codes", "codes and vectors", "meshes and vectors"]
)
def test_a_dataset_of_codes_or_of_text_embeddings_trains_and_samples(form: str, tmp_path: Path) -> None:
    text = {"text": "vectors", "vector_dim": 6} if "vectors" in form else {}
    keys = {"log.trackers": [], "data.num_workers": 0, "sample.max_faces": 4, "sample.num": 2, "data.augment": False}
    training = MeshTransformerTrainer(
        small_model(**text),
        tokenizer=open_pipeline(f"coordinates:{BINS}"),
        data=Rows(form),
        out=tmp_path / "run",
        steps=2,
        batch_size=4,
        config=keys,
    )
    training.train()
    training.close()
    assert training.step == 2
    assert list((tmp_path / "run" / "samples").rglob("made.png"))


def test_codes_of_a_dataset_equal_those_of_its_meshes(tmp_path: Path) -> None:
    tokenizer, config = open_pipeline(f"coordinates:{BINS}"), make_config(**{"data.augment": False})
    made, given = (python_splits(data, config, tokenizer).train for data in (Solids(8), Rows("codes")))
    for item in range(len(made)):
        one, other = (data.load(item, ItemRNG(0, [0], [item])) for data in (made, given))
        assert torch.equal(one["codes"], other["codes"])
        assert one["texts"] == other["texts"]


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        ({"codes": torch.zeros(4, 8, dtype=torch.long)}, "shape (4, 8); model.tokens_per_face=9"),
        ({"codes": torch.full((4, 9), BINS)}, f"codes up to {BINS}"),
        ({"codes": torch.full((4, 9), -1)}, "has no codes"),
        ({"codes": torch.tensor([[0] * 9, [-1] * 9, [0] * 9])}, "below 0"),
    ],
)
def test_unusable_codes_are_named(item: Any, reason: str) -> None:
    with pytest.raises(UsageError, match=re.escape(reason)):
        python_splits([item] * 4, make_config(**{"model.text": "none"}), open_pipeline(f"coordinates:{BINS}"))


def test_text_embeddings_that_the_model_cannot_use_are_refused(meshes: Path, tmp_path: Path) -> None:
    tokenizer = open_pipeline(f"coordinates:{BINS}")
    with pytest.raises(UsageError, match=r"train with model\.text=vectors and model\.vector_dim=6"):
        python_splits(Rows("codes and vectors"), make_config(), tokenizer)
    with pytest.raises(UsageError, match=r"model\.text=vectors needs items with text embeddings"):
        trainer(tmp_path / "run", Solids(4), model=small_model(text="vectors", vector_dim=6))
    with pytest.raises(UsageError, match=r"model\.text=vectors needs items with text embeddings"):
        trainer(tmp_path / "run", meshes, model=small_model(text="vectors", vector_dim=6)).train()
    with pytest.raises(UsageError, match="neither vertices and faces nor codes"):
        python_splits([{"texts": "a"}] * 4, make_config(), tokenizer)


def test_the_trainer_names_missing_arguments(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="needs a tokenizer"):
        MeshTransformerTrainer(small_model(), data=Solids(4), out=tmp_path / "run", steps=1)
    with pytest.raises(UsageError, match="needs data"):
        trainer(tmp_path / "run", None)
    tokenizer = open_pipeline("coordinates:64")
    with pytest.raises(UsageError, match=r"model\.num_codes=32, but the tokenizer coordinates:64 has 64"):
        MeshTransformerTrainer(small_model(), tokenizer=tokenizer, data=Solids(4), out=tmp_path / "run", steps=1)
    assert not (tmp_path / "run").exists()


# --- invalid input ------------------------------------------------------------------------------------------------


def test_keys_that_contradict_the_tokenizer_are_refused(meshes: Path, tmp_path: Path) -> None:
    for key in ("model.num_codes=77", "model.tokens_per_face=6"):
        outcome = quintet(*command(meshes, tmp_path / "run", key))
        assert outcome.code == 2
        assert f"{key}, but the tokenizer coordinates:32 has" in error_line(outcome.errors)


def test_another_tokenizer_of_the_same_shape_is_refused(learned: Path, meshes: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    succeed(*command(meshes, run, "--tokenizer", learned))
    weights = run / "tokenizer" / "model.safetensors"
    save_file({name: tensor * 2 for name, tensor in load_file(weights).items()}, weights)
    (weights.parent / "SHA256SUMS").unlink()
    outcome = quintet("sample", run, "--text", "a table", "--out", tmp_path / "out")
    assert outcome.code == 2
    assert "tokenizer_hash=" in error_line(outcome.errors)


def test_a_moved_run_needs_neither_tokenizer_nor_cache(
    learned: Path, meshes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = shutil.copytree(learned, tmp_path / "tokenizer")
    succeed(*command(meshes, tmp_path / "run", "--tokenizer", tokenizer))
    shutil.rmtree(tokenizer)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another cache"))
    run = (tmp_path / "run").rename(tmp_path / "moved")
    succeed("resume", run, "train.steps=14")
    assert open_pipeline(run).origin.step == 14  # type: ignore[union-attr]
    succeed("sample", run, "--text", "a table", "--num", 1, "--out", tmp_path / "out")


def with_texts(meshes: Path, folder: Path, texts: list[str]) -> Path:
    """A copy of the data with other captions, in turn."""
    data = shutil.copytree(meshes, folder)
    rows = [json.loads(line) for line in (data / "metadata.jsonl").read_text().splitlines()]
    for number, row in enumerate(rows):
        row["text"] = texts[number % len(texts)]
    (data / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return data


def test_classes_are_the_captions_of_the_data(meshes: Path, tmp_path: Path) -> None:
    data, run = with_texts(meshes, tmp_path / "data", ["table", "chair"]), tmp_path / "run"
    succeed(*command(data, run, "model.text=classes"))
    assert read_config(run / "config.yaml").model.classes == ("chair", "table")  # type: ignore[attr-defined]
    outcome = quintet("sample", run, "--text", "chairs", "--num", 1, "--out", tmp_path / "out")
    assert outcome.code == 2
    assert "chair" in error_line(outcome.errors)
    outcome = quintet(*command(data, tmp_path / "other", "model.text=classes", "model.classes=[chair, stool]"))
    assert outcome.code == 2
    assert "32 captions are not among the 2 classes (model.classes), for example 'table'" in error_line(outcome.errors)


def test_a_frozen_encoder_is_loaded_and_its_embeddings_cached(meshes: Path, tmp_path: Path) -> None:
    encoder, cache, run = make_folder(tmp_path / "t5"), tmp_path / "cache", tmp_path / "run"
    succeed(*command(meshes, run, f"model.text=hf:{encoder}", f"data.cache_dir={cache}"))
    assert list((cache / "text").rglob("*.safetensors"))
    assert list(cache.glob("codes-*/*.npy"))
    succeed("sample", run, "--text", "a table", "--num", 1, "--out", tmp_path / "out")


def test_a_window_larger_than_the_model_is_refused(meshes: Path) -> None:
    with pytest.raises(UsageError, match=r"loss\.window_faces=300 is more than model\.max_faces=256"):
        build_task(meshes, "loss.window_faces=300")


def test_every_preset_is_valid() -> None:
    from quintet.families.mesh_transformer.config import MeshTransformerConfig

    for preset in MeshTransformerConfig.PRESETS:
        assert configs.build(MeshTransformerConfig, preset=preset).preset == preset
