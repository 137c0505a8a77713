"""Point clouds as conditioning of the mesh transformer: training, sampling, coordinates of a scan, invalid input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from contract.cases import GOLDEN, TINY_MESH_TRANSFORMER
from contract.worlds import make_task
from helpers import error_line, made_once, quintet, succeed
from quintet import config as configs
from quintet.common.batch import Batch
from quintet.common.rng import ItemRNG
from quintet.errors import UsageError
from quintet.families.mesh_transformer.config import MeshTransformerConfig
from quintet.families.mesh_transformer.data import python_splits
from quintet.families.mesh_transformer.model import MeshTransformer
from quintet.families.mesh_transformer.pipeline import MeshTransformerPipeline
from quintet.families.mesh_transformer.task import MeshTransformerTask, distance_sums, size_sums
from quintet.media.mesh import Mesh, read_mesh, write_mesh
from quintet.media.mesh_measures import as_triangles
from quintet.media.points import sample_surface
from quintet.pipelines.loading import open_pipeline
from quintet.sampling.autoregressive import Sampling

POINTS = ("--condition", "points", "train.steps=2", "eval.every=2", "sample.every=2", "checkpoint.every=2")
VERTICES = np.array([[x, y, z] for z in (-0.5, 0.5) for y in (-0.5, 0.5) for x in (-0.5, 0.5)])
QUADS = np.array([[0, 2, 3, 1], [4, 5, 7, 6], [0, 1, 5, 4], [2, 6, 7, 3], [0, 4, 6, 2], [1, 3, 7, 5]])
CUBE = Mesh(VERTICES, as_triangles(QUADS))


def command(data: Path, out: Path, *more: object) -> tuple[object, ...]:
    return ("train", "mesh-transformer", data, "--out", out, *TINY_MESH_TRANSFORMER, *POINTS, *more)


@pytest.fixture(scope="session")
def run(shared: Path, meshes: Path) -> Path:
    """A finished run with text and points. Read only."""
    return made_once(shared, "mesh-transformer-points", lambda folder: succeed(*command(meshes, folder)))


@pytest.fixture(scope="session")
def only(shared: Path, meshes: Path) -> Path:
    """A finished run with points only, which were never dropped. Read only."""
    keys = ("model.text=none", "loss.point_drop_prob=0", "data.point_normal_drop_prob=0")
    return made_once(shared, "mesh-transformer-points-only", lambda folder: succeed(*command(meshes, folder, *keys)))


def refusal(*words: object) -> str:
    outcome = quintet(*words)
    assert outcome.code == 2, outcome.errors
    return error_line(outcome.errors)


def save_ply(path: Path, points: np.ndarray) -> Path:
    header = f"ply\nformat binary_little_endian 1.0\nelement vertex {len(points)}\n"
    header += "".join(f"property float {axis}\n" for axis in "xyz") + "end_header\n"
    with path.open("wb") as file:
        file.write(header.encode())
        points.astype("<f4").tofile(file)
    return path


# --- training -----------------------------------------------------------------------------------------------------


def task_of(meshes: Path, *keys: str) -> MeshTransformerTask:
    task = make_task("mesh-transformer", meshes, (*TINY_MESH_TRANSFORMER, "model.condition=points", *keys))
    assert isinstance(task, MeshTransformerTask)
    return task


def test_texts_and_points_are_dropped_independently(meshes: Path) -> None:
    task = task_of(meshes, "loss.cond_drop_prob=0.5", "loss.point_drop_prob=0.5")
    source = task.splits().train
    loaded = [source.load(item, ItemRNG(0, [0], [item])) for item in range(8)]
    batch = Batch(task.collate(loaded), tuple(map(source.name, range(8))), ItemRNG(0, [0] * 8, range(8)))
    assert batch["points"].shape == (8, 256, 6)
    kept = torch.zeros(2, 2)
    for epoch in range(40):
        each = Batch(batch.fields, batch.names, ItemRNG(0, [epoch] * 8, range(8))).prepared(task.prepare)
        for text, points in zip(each["keep_text"].long(), each["keep_points"].long(), strict=True):
            kept[text, points] += 1
    assert ((kept / kept.sum() - 0.25).abs() < 0.07).all()


def test_validation_clouds_have_no_noise_and_all_normals(meshes: Path) -> None:
    keys = ("data.point_normal_drop_prob=1", "data.point_noise=0.2", "data.point_crop=0.5")
    splits = task_of(meshes, *keys).splits()
    assert not splits.train.load(0, ItemRNG(0, [0], [0]))["points"][:, 3:].any()
    points = splits.validation.load(0, ItemRNG(0, [0], [0]))["points"]
    torch.testing.assert_close(points[:, 3:].norm(dim=1), torch.ones(len(points)))
    assert points[:, :3].abs().max() < 0.981


def test_eval_reports_the_distance_from_points_and_surface(run: Path, tmp_path: Path) -> None:
    succeed("eval", run, "--out", tmp_path / "eval.json")
    scores = json.loads((tmp_path / "eval.json").read_text())
    names = {"chamfer", "points_chamfer", "points_reconstruction_chamfer", "manifold", "self_intersecting"}
    assert names | {"components", "tokens_per_face", "normal_consistency"} <= scores.keys()
    assert scores["tokens_per_face"] == 9
    assert 0 < scores["points_reconstruction_chamfer"] < scores["points_chamfer"]
    # Without an input, validation items are reconstructed from their points.
    succeed("sample", run, "--num", 1, "--out", tmp_path / "out")
    rows = (tmp_path / "out" / "samples.jsonl").read_text().splitlines()
    assert json.loads(rows[0])["columns"] == "reconstruction, made from its points"


def test_metrics_of_known_meshes() -> None:
    cloud = sample_surface(CUBE, 1000)
    points = torch.from_numpy(np.concatenate([cloud.points, cloud.normals], axis=1))[None]
    sums = {name: float(value) for name, value in distance_sums([CUBE], [CUBE], points).items()}
    assert sums["chamfer"] == pytest.approx(0, abs=1e-6)
    assert sums["normal_consistency"] == pytest.approx(1)
    assert sums["points_chamfer"] == sums["points_reconstruction_chamfer"] < 0.03
    two = Mesh(np.concatenate([VERTICES, VERTICES + 2]), np.concatenate([CUBE.faces, CUBE.faces + 8]))
    sizes = size_sums([CUBE, two], [torch.zeros(12, 9), torch.zeros(24, 9)])
    expected = {"self_intersecting": 0, "components": 3, "generated_faces": 36, "generated_tokens": 324}
    assert {name: int(value) for name, value in sizes.items()} == expected


def test_a_python_data_set_of_meshes_has_points_and_one_of_codes_is_refused(meshes: Path) -> None:
    overrides = {"model.condition": "points", "model.num_codes": 32, "model.tokens_per_face": 9, "model.text": "none"}
    config = configs.build(MeshTransformerConfig, preset="debug", overrides=overrides)
    tokenizer: Any = open_pipeline("coordinates:32")
    paths = sorted((meshes / "meshes").iterdir())[:6]
    data: Any = [{"vertices": mesh.vertices, "faces": mesh.faces} for mesh in map(read_mesh, paths)]
    splits = python_splits(data, config, tokenizer, validation=data[:2])
    assert splits.train.load(0, ItemRNG(0, [0], [0]))["points"].shape == (256, 6)
    codes: Any = [{"codes": torch.zeros(4, 9, dtype=torch.int64)}]
    with pytest.raises(UsageError, match="needs a data set of vertices and faces"):
        python_splits(codes, config, tokenizer, validation=codes)


def test_only_the_word_points_is_taken(meshes: Path, tmp_path: Path) -> None:
    words = ("train", "mesh-transformer", meshes, "--out", tmp_path / "run", *TINY_MESH_TRANSFORMER)
    sentence = refusal(*words, "--condition", "runs/mulan")
    assert sentence.endswith("'mesh-transformer' takes --condition points, not --condition runs/mulan")
    assert "'muse' does not take --condition" in refusal("train", "muse", meshes, "--condition", "points")
    assert not (tmp_path / "run").exists()


# --- sampling -----------------------------------------------------------------------------------------------------


def test_a_mesh_lies_in_the_coordinates_of_its_scan(run: Path, tmp_path: Path) -> None:
    moved = Mesh(VERTICES * [10, 20, 40] + [1000, 0, -500], CUBE.faces)
    scan = write_mesh(moved, tmp_path / "scan.obj")
    texts = ("--text", "a table")
    succeed("sample", run, *texts, "--points", scan, "sample.guidance_scale=2", "--num", 2, "--out", tmp_path / "out")
    row = json.loads((tmp_path / "out" / "samples.jsonl").read_text().splitlines()[1])
    assert row["text"] == "a table"
    assert row["points"] == str(scan)
    assert 0 < row["chamfer"] < 1
    pipeline = MeshTransformerPipeline.from_pretrained(run).with_keys({"sample.guidance_scale": 2.0})
    made = pipeline("a table", num=2, points=scan)
    boxed = pipeline("a table", num=2, points=moved)
    for number, (mesh, other) in enumerate(zip(made, boxed, strict=True)):
        write_mesh(mesh, tmp_path / "own.obj")
        assert (tmp_path / "own.obj").read_bytes() == (tmp_path / "out" / f"{number:03d}.obj").read_bytes()
        np.testing.assert_allclose(mesh.vertices, other.vertices, rtol=1e-6)
        assert np.abs((mesh.vertices - [1000, 0, -500]) / 20.5).max() < 1
        assert mesh.vertices[:, 0].min() > 900


def test_a_cloud_without_normals_is_used_and_said(run: Path, only: Path, tmp_path: Path) -> None:
    rows = sample_surface(CUBE, 500)
    np.savetxt(tmp_path / "scan.xyz", rows.points)
    for folder, trained in ((run, False), (only, True)):
        out = succeed("sample", folder, "--points", tmp_path / "scan.xyz", "--num", 1, "--out", tmp_path / "out")
        assert out.errors.count("scan.xyz has no normals; the model gets its points without them") == 1
        assert ("data.point_normal_drop_prob=0" in out.errors) == trained
    np.savetxt(tmp_path / "full.xyz", np.concatenate([rows.points, rows.normals], axis=1))
    out = succeed("sample", run, "--points", tmp_path / "full.xyz", "--num", 1, "--out", tmp_path / "out")
    assert "normals" not in out.errors


def test_ten_million_points_are_thinned_out(only: Path, tmp_path: Path) -> None:
    points = np.random.default_rng(0).random((10_000_000, 3), np.float32)
    path = save_ply(tmp_path / "large.ply", points)
    succeed("sample", only, "--points", path, "--num", 1, "--out", tmp_path / "out")
    path.unlink()


@pytest.mark.parametrize(
    ("name", "rows", "reason"),
    [
        ("one.ply", np.zeros((1, 3)), "1 of its 1 points have finite coordinates; a cloud needs at least 16"),
        ("nan.ply", np.full((100, 3), np.nan), "0 of its 100 points have finite coordinates"),
        ("same.ply", np.ones((100, 3)), "all of its points are in one place"),
    ],
)
def test_unusable_clouds_are_refused(run: Path, tmp_path: Path, name: str, rows: np.ndarray, reason: str) -> None:
    path = save_ply(tmp_path / name, rows)
    sentence = refusal("sample", run, "--points", path, "--out", tmp_path / "out")
    assert f"--points {path}: {reason}" in sentence
    assert not (tmp_path / "out").exists()


def test_files_that_are_no_clouds_are_refused(run: Path, tmp_path: Path) -> None:
    Image.new("RGB", (64, 64)).save(tmp_path / "photo.png")
    for name, reason in (("photo.png", "neither a point cloud"), ("missing.ply", "No such file")):
        assert reason in refusal("sample", run, "--points", tmp_path / name, "--out", tmp_path / "out")


def test_points_and_texts_that_a_model_does_not_take_are_refused(only: Path, tmp_path: Path) -> None:
    scan = write_mesh(CUBE, tmp_path / "scan.obj")
    other = GOLDEN / "mesh-transformer-format-1" / "hub"
    sentence = refusal("sample", other, "--points", scan, "--out", tmp_path / "out")
    assert sentence.endswith("this model takes no points; --points needs a model trained with --condition points")
    sentence = refusal("sample", only, "--points", scan, "--text", "a table", "--out", tmp_path / "out")
    assert "this model was trained without text (model.text=none)" in sentence
    with pytest.raises(UsageError, match="trained with a point cloud for every mesh; set --points FILE"):
        MeshTransformerPipeline.from_pretrained(only)()
    with pytest.raises(UsageError, match=r"points: an array of shape \(5, 4\) is neither \(n, 3\) nor \(n, 6\)"):
        MeshTransformerPipeline.from_pretrained(only)(points=np.zeros((5, 4)))


# --- model --------------------------------------------------------------------------------------------------------


def make_model(**keys: Any) -> MeshTransformer:
    torch.manual_seed(0)
    small = {"dim": 32, "depth": 2, "heads": 2, "text_dim": 16, "text_depth": 1, "text_heads": 2, "face_buckets": 0}
    sizes = {"num_codes": 7, "tokens_per_face": 3, "max_faces": 4, "condition": "points", "point_latents": 8}
    return MeshTransformer(**{**small, **sizes, "point_depth": 1, **keys})


def clouds_of(*kinds: Mesh, count: int = 64) -> Tensor:
    sampled = [sample_surface(mesh, count) for mesh in kinds]
    return torch.tensor(np.stack([np.concatenate([each.points, each.normals], axis=1) for each in sampled])).float()


FLAT = Mesh(VERTICES * [1, 0.2, 1], CUBE.faces)


@pytest.mark.parametrize("kind", ["coarse_fine", "flat"])
def test_decoding_with_a_cache_sees_the_points(kind: str) -> None:
    model = make_model(kind=kind).double().eval()
    codes = torch.randint(7, (2, 4, 3), generator=torch.Generator().manual_seed(0))
    clouds = clouds_of(CUBE, FLAT).double()
    conditioning = {**model.texts(["a", "b"]), **model.points(clouds)}
    with torch.no_grad():
        expected = model.logits(codes, conditioning)
        rows = model.begin(conditioning, 2)
        steps = [rows.advance(codes.flatten(1)[:, :0])]
        steps += [rows.advance(codes.flatten(1)[:, at : at + 1]) for at in range(11)]
        torch.testing.assert_close(torch.stack(steps, dim=1), expected[:, :12])
        turned = {**conditioning, **model.points(clouds.flip(1))}
        torch.testing.assert_close(model.logits(codes, turned), expected)
        swapped = {**conditioning, **model.points(clouds.flip(0))}
        assert (model.logits(codes, swapped) - expected).abs().max() > 1e-4


def test_dropped_points_are_no_points() -> None:
    model = make_model().double().eval()
    codes = torch.zeros(2, 2, 3, dtype=torch.int64)
    dropped = model.points(clouds_of(CUBE, FLAT).double(), torch.tensor([False, False]))
    texts = model.texts(["a", "b"])
    with torch.no_grad():
        torch.testing.assert_close(model.logits(codes, {**texts, **dropped}), model.logits(codes, texts))


def test_a_model_learns_which_mesh_belongs_to_which_points() -> None:
    model = make_model(text="none")
    clouds, codes = clouds_of(CUBE, FLAT), torch.tensor([[[0, 1, 2]] * 2, [[5, 4, 3]] * 2])
    lengths = torch.tensor([2, 2])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(60):
        predicted = model(codes, lengths, model.points(clouds))
        loss = F.cross_entropy(predicted.logits, predicted.targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1
    made = model.eval().generate(["", ""], ItemRNG(0, [0, 0], [0, 1]), Sampling(temperature=0), points=clouds)
    assert torch.equal(made.codes, codes)
    with pytest.raises(UsageError, match="are not"):
        model(codes, lengths, model.points(clouds[..., :3]))
    with pytest.raises(UsageError, match="takes no points"):
        make_model(condition="none")(codes, lengths, model.points(clouds))
