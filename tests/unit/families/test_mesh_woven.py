"""The mesh transformer on woven meshes: its grammar, the states that it sees, and the command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from contract.cases import POINTS, TINY_MESH_TRANSFORMER
from contract.worlds import make_task
from helpers import error_line, made_once, quintet, succeed
from quintet.common.batch import Batch
from quintet.common.inference import inference_mode
from quintet.common.rng import ItemRNG
from quintet.data.splits import Splits
from quintet.errors import UnreadableItem, UsageError
from quintet.families.mesh_transformer.config import MeshTransformerModelConfig
from quintet.families.mesh_transformer.data import FaceDataset, PythonFaces, has_open_meshes
from quintet.families.mesh_transformer.model import Generated, MeshTransformer, find_targets
from quintet.families.mesh_transformer.task import MeshTransformerTask
from quintet.families.mesh_transformer.woven_decoding import WovenDecoding, window_start
from quintet.families.mesh_transformer.woven_grammar import WovenRow
from quintet.families.mesh_transformer.woven_states import FEATURES, read_row
from quintet.media.mesh import Mesh, canonical, clean, dequantise, normalise, quantise, read_mesh, write_mesh
from quintet.media.mesh_formats import read_soup
from quintet.media.mesh_measures import is_valid, is_watertight
from quintet.media.mesh_topology import is_manifold
from quintet.media.mesh_weaving import Vocabulary, merged, unweave, weave
from quintet.pipelines.loading import open_pipeline
from quintet.sampling.autoregressive import Sampling
from quintet.synthetic.solids import CLASSES, draw_solid

BINS = 32
WOVEN = (*TINY_MESH_TRANSFORMER, "tokenizer=woven:32")


def tokens_of(kind: str, seed: int = 0, bins: int = 128) -> list[int]:
    mesh = canonical(clean(normalise(draw_solid(np.random.default_rng(seed), kind).mesh), bins), bins)
    return weave(quantise(mesh.vertices, bins), mesh.faces, bins)


def random_row(row: WovenRow, rng: np.random.Generator, weights: np.ndarray) -> Mesh:
    """The mesh of a row of random legal tokens."""
    for _ in range(row.max_tokens):
        chances = weights * row.legal()
        row.push(int(rng.choice(len(chances), p=chances / chances.sum())))
        if row.ended:
            break
    positions, faces = merged(row.walk.surface)
    return Mesh(dequantise(positions, row.bins), faces)


# --- the grammar --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_faces", [4, 5, 8, 30, 100])
@pytest.mark.parametrize("bins", [4, 8, 128])
def test_every_row_of_legal_tokens_ends_as_a_closed_manifold_mesh(bins: int, max_faces: int) -> None:
    rng = np.random.default_rng(bins)
    for attempt in range(8):
        row = WovenRow(bins, max_faces, 4 * max_faces + 16, holes=False)
        weights = rng.random(bins + 6) ** 4 + 1e-9
        weights[bins:] *= (1, 5, 30, 100)[attempt % 4]
        weights[-1] *= attempt % 3  # the end token
        mesh = random_row(row, rng, weights + 1e-12)
        assert row.ended
        assert len(mesh.faces) <= max_faces
        assert is_valid(mesh)
        assert is_watertight(mesh)


def test_an_open_mesh_may_end_with_holes_where_they_are_allowed() -> None:
    rng = np.random.default_rng(0)
    weights = np.ones(BINS + 6)
    weights[Vocabulary(BINS).hole] = 20
    meshes = [random_row(WovenRow(BINS, 30, 136, holes=True), rng, weights) for _ in range(8)]
    assert all(is_valid(mesh) for mesh in meshes)
    assert not any(is_watertight(mesh) for mesh in meshes)


@pytest.mark.parametrize("kind", CLASSES)
def test_the_tokens_of_every_solid_are_legal(kind: str) -> None:
    tokens = tokens_of(kind)
    row = WovenRow(128, 256, 1040, holes=False)
    for token in [*tokens, row.end_id]:
        assert row.legal()[token]
        row.push(token)


def test_a_new_vertex_is_neither_at_another_nor_on_the_line_of_the_gate() -> None:
    row = WovenRow(8, 100, 416, holes=False)
    for token in (1, 2, 5, 1, 1, 3, 1, 3, 1):
        row.push(token)
    surface = row.walk.surface
    ends = [surface.positions[each] for each in (surface.first[surface.gate], surface.last_vertex(surface.gate))]
    assert sorted(ends) == [(1, 1, 3), (1, 3, 1)]
    row.push(1)
    row.push(2)
    assert np.flatnonzero(~row.legal()).tolist() == [2, 5, *range(8, 14)]  # on the line, and the first vertex


# --- what the model sees ------------------------------------------------------------------------------------------


def test_the_state_names_the_gate_and_what_is_around_it() -> None:
    states, faces = read_row([1, 1, 1, 1, 1, 3, 1, 3, 1, 5, 5, 5], 8)
    assert states.shape == (13, FEATURES)
    assert faces == 2
    assert states[:, 0].tolist() == [*range(10), 10, 11, 9]
    coordinates = states[9, 6:].reshape(-1)
    corners = {tuple(coordinates[3 * vertex : 3 * vertex + 3] - 1) for vertex in range(3)}
    assert corners == {(1, 1, 1), (1, 1, 3), (1, 3, 1)}


def test_cached_decoding_equals_a_full_pass() -> None:
    torch.manual_seed(0)
    model = MeshTransformer(kind="woven", num_codes=133, tokens_per_face=1, dim=16, depth=2, heads=2, text="none")
    model = model.double().eval()
    tokens = torch.tensor(tokens_of("table"))
    full = model.logits(tokens[None, :, None], {})
    with inference_mode({"model": model}):
        decoding = WovenDecoding(model, 256, holes=False, is_guided=False).begin({}, 1)
        rows = [decoding.advance(tokens[None, :0])]
        rows += [decoding.advance(token.view(1, 1)) for token in tokens]
    torch.testing.assert_close(torch.stack(rows, dim=1), full, rtol=0, atol=1e-10)


def test_generated_rows_do_not_depend_on_the_batch_and_guidance_changes_them() -> None:
    torch.manual_seed(0)
    keys = {"num_codes": 37, "tokens_per_face": 1, "dim": 16, "depth": 1, "heads": 2, "text_dim": 16, "max_faces": 20}
    model = MeshTransformer(kind="woven", **keys).double().eval()
    texts = ["a table", "a chair", "a box"]

    def rows(which: list[int], guidance: float) -> list[list[int]]:
        rng = ItemRNG(0, [0] * len(which), which)
        settings = Sampling(guidance_scale=guidance)
        made = model.generate([texts[item] for item in which], rng, settings)
        assert made.ended.all()
        return [row.flatten().tolist() for row in made.rows]

    together = rows([0, 1, 2], 2.0)
    assert together == [rows([item], 2.0)[0] for item in range(3)]
    assert together != rows([0, 1, 2], 1.0)


def test_prompts_may_have_as_many_tokens_as_the_largest_mesh() -> None:
    keys = {"num_codes": 37, "tokens_per_face": 1, "dim": 16, "depth": 1, "heads": 2, "text": "none", "max_faces": 12}
    model = MeshTransformer(kind="woven", **keys).eval()
    tokens = torch.tensor(tokens_of("box", bins=BINS))
    assert len(tokens) > 12
    (row,) = model.generate([""], ItemRNG(0, [0], [0]), prompts=[tokens]).rows
    assert row[: len(tokens), 0].tolist() == tokens.tolist()
    with pytest.raises(UsageError, match="a prompt of 120 tokens is longer than the 64 of"):
        model.generate([""], ItemRNG(0, [0], [0]), prompts=[tokens[:3].repeat(40)])


# --- long meshes --------------------------------------------------------------------------------------------------


def boxes(count: int, bins: int = 128) -> list[int]:
    """The tokens of many boxes beside each other."""
    box = draw_solid(np.random.default_rng(0), "box").mesh
    shifts = np.stack(np.unravel_index(np.arange(count), (6, 6, 6)), axis=1) * 3.0
    faces = np.concatenate([box.faces + len(box.vertices) * number for number in range(count)])
    row = Mesh((box.vertices + shifts[:, None]).reshape(-1, 3), faces)
    mesh = canonical(clean(normalise(row), bins), bins)
    return weave(quantise(mesh.vertices, bins), mesh.faces, bins)


@pytest.mark.parametrize("tokens", [tokens_of("table"), boxes(20)], ids=["table", "boxes"])
def test_the_states_of_a_window_are_those_of_the_full_row(tokens: list[int]) -> None:
    full, faces = read_row(tokens, 128)
    for start in (0, 1, 40, len(tokens) - 5):
        states, count = read_row(tokens, 128, start, start + 30)
        assert count == faces
        assert np.array_equal(states, full[start : start + 31])


def windows(meshes: Path, *keys: str) -> tuple[MeshTransformerTask, FaceDataset]:
    task = make_task("mesh-transformer", meshes, (*WOVEN, "data.augment=false", *keys))
    assert isinstance(task, MeshTransformerTask)
    source = task.splits().train
    assert isinstance(source, FaceDataset)
    return task, source


def test_windows_are_from_anywhere_and_know_where_they_are(meshes: Path) -> None:
    _, full = windows(meshes)
    _, source = windows(meshes, "loss.window_faces=8")
    size, lengths, ends = 48, set(), set()
    assert max(source.lengths()) == size
    for item in range(len(source)):
        whole = full.load(item, ItemRNG(0, [0], [item]))
        for epoch in range(12):
            part = source.load(item, ItemRNG(0, [epoch], [item]))
            count = len(part["codes"])
            starts = [
                start
                for start in range(len(whole["codes"]) - count + 1)
                if torch.equal(whole["states"][start : start + count + 1], part["states"])
                and torch.equal(whole["codes"][start : start + count], part["codes"])
            ]
            assert starts
            assert part["faces"] == whole["faces"]
            assert part["begins"] == (0 in starts)
            assert part["ends"] == (len(whole["codes"]) - count in starts)
            assert count == min(size, len(whole["codes"])) or (part["ends"] and count >= size // 2)
            ends.add((part["begins"], part["ends"]))
            lengths.add(count)
    assert ends >= {(True, False), (False, True), (False, False)}
    assert len(lengths) > 5


def test_open_edges_are_found_outside_windows() -> None:
    model = MeshTransformerModelConfig(kind="woven", num_codes=Vocabulary(128).size, tokens_per_face=1)
    for tail, expected in (([], False), ([0, 0, 0, 0, 0, 9, 0, 9, 0, *[Vocabulary(128).hole] * 3], True)):
        tokens = torch.tensor(boxes(100) + tail)
        codes = PythonFaces([{"codes": tokens[:, None], "texts": ""}], [0], model)
        source = FaceDataset(codes, [0], [len(tokens)], 24, train=True, woven_bins=128)
        assert has_open_meshes(Splits(source, source, ""), 128) is expected


def test_the_loss_of_windows_is_that_of_their_targets(meshes: Path) -> None:
    task, source = windows(meshes, "loss.window_faces=8")
    rngs = [ItemRNG(0, [3], [item]) for item in range(6)]
    fields = task.collate([source.load(item, rng) for item, rng in enumerate(rngs)])
    batch = Batch(fields, tuple(source.name(item) for item in range(6)), ItemRNG(0, [3] * 6, list(range(6))))
    output = task.forward(task.modules, batch, step=0)
    assert len(output["targets"]) == int(batch["lengths"].sum() + batch["ends"].sum() - (~batch["begins"]).sum())
    assert not batch["begins"].all()
    assert not batch["ends"].all()


def test_a_plan_takes_full_windows(meshes: Path) -> None:
    task, _ = windows(meshes, "loss.window_faces=8")
    assert len(task.example_item()["codes"]) == task.config.model.max_tokens(8)


def test_the_cache_of_a_window_is_no_longer_than_the_mesh() -> None:
    model = small_model()
    with inference_mode({"model": model}):
        decoding = WovenDecoding(model, 4, holes=False, is_guided=False, window=200).begin({}, 1)
    assert decoding.cache.max_length == model.config.max_tokens(4) + 1 < 200


def test_a_window_begins_anew_with_its_last_half() -> None:
    starts = [window_start(length, 7) for length in range(20)]
    assert starts == [*[0] * 7, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12, 16]
    assert window_start(10**6, None) == 0


def small_model(**keys: object) -> MeshTransformer:
    torch.manual_seed(0)
    sizes = {"num_codes": 133, "tokens_per_face": 1, "dim": 16, "depth": 2, "heads": 2, "text": "none"}
    return MeshTransformer(kind="woven", **{**sizes, **keys}).double().eval()


@pytest.mark.parametrize("window", [20, 33, 256])
@pytest.mark.parametrize("prompt", [0, 1, 19, 60])
def test_decoding_with_a_sliding_window_equals_a_pass_over_each_window(window: int, prompt: int) -> None:
    model = small_model()
    tokens = torch.tensor(tokens_of("table"))
    states = torch.from_numpy(read_row(tokens.tolist(), 128)[0])

    def predicted(length: int) -> torch.Tensor:
        start = window_start(length, window)
        row, begins, known = tokens[start:length, None], torch.tensor([start == 0]), states[start : length + 1]
        where = (row[None], torch.tensor([len(row)]), begins, torch.tensor([True]))
        targets = find_targets(model.config, *where, states=known[None])
        return model(*where[:2], {}, begins, targets=targets).logits[-1]

    with inference_mode({"model": model}):
        decoding = WovenDecoding(model, 256, holes=False, is_guided=False, window=window).begin({}, 1)
        found = [decoding.advance(tokens[None, :prompt])]
        found += [decoding.advance(token.view(1, 1)) for token in tokens[prompt:]]
        assert decoding.cache.max_length == window
        expected = [predicted(length) for length in range(prompt, len(tokens) + 1)]
    torch.testing.assert_close(torch.cat(found), torch.stack(expected), rtol=0, atol=1e-10)


def test_meshes_longer_than_the_model_are_manifold_and_do_not_depend_on_the_batch() -> None:
    model = small_model(max_faces=12, text="bytes", text_dim=16)
    with torch.no_grad():
        model.to_logits.bias[-1] = -100  # the end token, unless nothing else is legal
    texts = ["a table", "a chair", "a box"]
    prompts = [torch.tensor(tokens_of("table")[:50]), torch.empty(0), torch.tensor(tokens_of("chair")[:7])]

    def made(which: list[int]) -> Generated:
        settings, rng = Sampling(guidance_scale=2.0), ItemRNG(0, [0] * len(which), which)
        keys = {"prompts": [prompts[item] for item in which], "max_faces": 300, "window_faces": 4}
        return model.generate([texts[item] for item in which], rng, settings, **keys)

    together = made([0, 1, 2])
    assert together.ended.all()
    for row in together.rows:
        positions, faces = unweave(row.flatten().tolist(), 128)
        mesh = Mesh(dequantise(positions, 128), faces)
        assert 290 < len(faces) <= 300
        assert is_valid(mesh)
        assert is_watertight(mesh)
        assert is_manifold(mesh)
    for item, row in enumerate(together.rows):
        (alone,) = made([item]).rows
        assert row.tolist() == alone.tolist()
    with pytest.raises(UsageError, match=r"max_faces=300 is not between 1 and model\.max_faces=12"):
        model.generate(["a box"], ItemRNG(0, [0], [0]), max_faces=300)
    with pytest.raises(UsageError, match="window_faces=13 needs"):
        model.generate(["a box"], ItemRNG(0, [0], [0]), max_faces=300, window_faces=13)


def test_a_run_with_windows_uses_larger_meshes_and_generates_them(meshes: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    keys = ("model.max_faces=8", "loss.window_faces=8", "sample.max_faces=12", "train.steps=4")
    outcome = succeed("train", "mesh-transformer", meshes, "--out", run, *WOVEN, *keys)
    assert "are skipped" not in outcome.errors
    assert json.loads((run / "data.json").read_text())["skipped"] == {}
    succeed("sample", run, "--text", "a table", "--num", 2, "--out", tmp_path / "out", "sample.max_faces=60")
    rows = [json.loads(line) for line in (tmp_path / "out" / "samples.jsonl").read_text().splitlines()]
    assert all(row["ended"] for row in rows if "number" in row)
    outcome = quintet("sample", run, "--text", "a table", "--out", tmp_path / "no", "sample.max_faces=70000")
    assert outcome.code == 2
    assert "65536" in error_line(outcome.errors)


# --- the command --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def run(shared: Path, meshes: Path) -> Path:
    """A finished run. Read only."""
    return made_once(
        shared, "woven-run", lambda out: succeed("train", "mesh-transformer", meshes, "--out", out, *WOVEN)
    )


def test_a_run_of_closed_meshes_generates_closed_meshes(run: Path, tmp_path: Path) -> None:
    assert yaml.safe_load((run / "config.yaml").read_text())["model"]["open_meshes"] is False
    words = ("--text", "a table", "--num", 6, "sample.max_faces=24", "sample.guidance_scale=2")
    succeed("sample", run, *words, "--out", tmp_path / "out")
    rows = [json.loads(line) for line in (tmp_path / "out" / "samples.jsonl").read_text().splitlines()]
    assert all(row["ended"] for row in rows if "number" in row)
    meshes = [read_mesh(path) for path in sorted((tmp_path / "out").glob("*.obj"))]
    assert len(meshes) == 6
    succeed("eval", run, "--out", tmp_path / "eval.json", "eval.num_generated=4")
    metrics = json.loads((tmp_path / "eval.json").read_text())
    assert metrics["valid"] == metrics["watertight"] == metrics["ended"] == 1


def test_a_run_of_open_meshes_allows_holes_also_if_it_starts_from_one_of_closed_meshes(
    run: Path, tmp_path: Path
) -> None:
    for number in range(12):
        mesh = draw_solid(np.random.default_rng(number), "box").mesh
        write_mesh(Mesh(mesh.vertices, mesh.faces[:-1]), tmp_path / "data" / f"{number}.obj")
    out = tmp_path / "run"
    keys = ("train.steps=2", "model.text=none", *POINTS)
    succeed("train", "mesh-transformer", tmp_path / "data", "--init", run, "--out", out, *WOVEN, *keys)
    pipeline = open_pipeline(out)
    assert pipeline.config.model.open_meshes is True

    def are_closed(holes: str) -> bool:
        made = pipeline.with_keys({"sample.holes": holes, "sample.max_faces": 12})([""], num=8, seed=0)
        return all(is_watertight(mesh) for mesh in made)

    assert are_closed("never")
    assert not are_closed("auto")

    scan = tmp_path / "scan.ply"
    write_mesh(Mesh(10 + 5 * mesh.vertices, mesh.faces), scan)
    words = ("--points", scan, "--num", 2, "sample.max_faces=8", "sample.guidance_scale=2")
    succeed("sample", out, *words, "--out", tmp_path / "made")
    for path in sorted((tmp_path / "made").glob("*.obj")):
        vertices = read_soup(path).vertices
        assert 4 < vertices.min() < vertices.max() < 16


def test_items_hold_their_states_and_number_of_faces(meshes: Path) -> None:
    task = make_task("mesh-transformer", meshes, (*WOVEN, "data.augment=false"))
    assert isinstance(task, MeshTransformerTask)
    source = task.splits().validation
    items = [source.load(item, ItemRNG(0, [0], [item])) for item in range(len(source))]
    batch = task.collate(items)
    assert batch["states"].shape == (len(items), batch["codes"].shape[1] + 1, FEATURES)
    for item, name in zip(items, map(source.name, range(len(source))), strict=True):
        mesh = read_mesh(meshes / name, bins=BINS)
        assert item["faces"] == len(mesh.faces)
        assert item["codes"][:, 0].tolist() == weave(quantise(mesh.vertices, BINS), mesh.faces, BINS)


def test_codes_of_a_python_data_set_that_are_no_mesh_are_unreadable() -> None:
    model = MeshTransformerModelConfig(kind="woven", num_codes=Vocabulary(BINS).size, tokens_per_face=1)
    items = [{"codes": torch.full((7, 1), BINS), "texts": "a box"}]
    source = FaceDataset(PythonFaces(items, [0], model), [0], [7], None, train=True, woven_bins=BINS)
    with pytest.raises(UnreadableItem, match="no woven mesh: token 32 is not a coordinate"):
        source.load(0, ItemRNG(0, [0], [0]))


@pytest.mark.parametrize(
    ("keys", "mentions"),
    [
        (("sample.max_faces=300",), ("sample.max_faces=300 is more than model.max_faces=256", "loss.window_faces")),
        (("model.kind=flat",), ("model.kind=flat", "--tokenizer woven")),
        (("model.kind=woven", "tokenizer=coordinates:32"), ("model.kind=woven", "--tokenizer woven")),
        (("tokenizer=woven:2",), ("model.bins", "4")),
        (("sample.max_faces=3",), ("sample.max_faces=3", "set it to 4 or more")),
        (("model.max_faces=4", "sample.max_faces=4"), ("tokens", "model.max_faces=4")),
    ],
)
def test_keys_that_woven_meshes_cannot_have(
    keys: tuple[str, ...], mentions: tuple[str, ...], meshes: Path, tmp_path: Path
) -> None:
    outcome = quintet("train", "mesh-transformer", meshes, "--out", tmp_path / "run", *WOVEN, *keys)
    assert outcome.code == 2
    for mention in mentions:
        assert mention in error_line(outcome.errors)


def test_options_that_woven_meshes_do_not_have(run: Path, tmp_path: Path) -> None:
    triangle = tmp_path / "triangle.obj"
    triangle.write_text("v 0 0 0\nv 1 0 0\nv 0 1 0\nf 1 2 3\n")
    for words in (("--mesh", triangle), ("sample.grammar=strict",)):
        outcome = quintet("sample", run, "--text", "a table", "--out", tmp_path / "out", *words)
        assert outcome.code == 2
        assert "coordinates" in error_line(outcome.errors)


def test_codes_are_encoded_decoded_and_evaluated_without_loss(
    meshes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    succeed("encode", "woven:32", meshes, "--out", "codes")
    succeed("decode", "woven:32", "codes", "--out", "decoded")
    assert len(list(Path("decoded").glob("*.glb"))) == len(list((meshes / "meshes").iterdir()))
    succeed("eval", "woven:32", "--data", meshes, "--out", "eval.json")
    metrics = json.loads(Path("eval.json").read_text())
    assert metrics["coordinate_exact"] == 1
    assert metrics["watertight"] == metrics["watertight_originals"]
