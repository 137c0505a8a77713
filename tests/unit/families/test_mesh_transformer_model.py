"""The mesh transformer: targets, causality, conditioning, and generation with and without the KV cache."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from quintet.common.rng import ItemRNG
from quintet.errors import UsageError
from quintet.families.mesh_transformer.grammar import CanonicalCoordinates, whole_faces
from quintet.families.mesh_transformer.model import PADDING, MeshTransformer
from quintet.nn.attention import KVCache
from quintet.nn.transformer import Transformer
from quintet.sampling import autoregressive
from quintet.sampling.autoregressive import Sampling
from quintet.sampling.guidance import Conditioning
from text_models import make_folder

KINDS = ["coarse_fine", "flat"]
CODES, SIZE, MAX_FACES = 7, 3, 5
END = CODES
EXACT = {"rtol": 1e-9, "atol": 1e-11}


@pytest.fixture(autouse=True)
def in_fp64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def make(kind: str = "coarse_fine", **keys: Any) -> MeshTransformer:
    """A small model with weights large enough that each code affects all later positions."""
    torch.manual_seed(0)
    small = {"dim": 16, "depth": 2, "heads": 2, "text_dim": 16, "text_depth": 1, "text_heads": 2, "face_buckets": 4}
    sizes = {"num_codes": CODES, "tokens_per_face": SIZE, "max_faces": MAX_FACES}
    model = MeshTransformer(**{"kind": kind, **small, **sizes, **keys})
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.mul_(2)
    return model


def random_codes(batch: int, faces: int, seed: int = 0) -> Tensor:
    return torch.randint(CODES, (batch, faces, SIZE), generator=torch.Generator().manual_seed(seed))


def items(count: int, first: int = 0) -> ItemRNG:
    return ItemRNG(1, [0] * count, range(first, first + count))


# --- training -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_targets_are_the_codes_and_one_end_token(kind: str) -> None:
    model, codes = make(kind), random_codes(4, MAX_FACES)
    lengths = [3, 5, 1, 0]
    begins, ends = [True, False, True, True], [True, False, False, True]
    logits, targets = model(
        codes, torch.tensor(lengths), model.texts([""] * 4), torch.tensor(begins), torch.tensor(ends)
    )
    expected: list[int] = []
    for row, length, first, last in zip(codes.tolist(), lengths, begins, ends, strict=True):
        expected += [code for face in row[0 if first else 1 : length] for code in face] + ([END] if last else [])
    assert targets.tolist() == expected
    assert logits.shape == (len(expected), CODES + 1)
    every = model(codes, torch.tensor(lengths), model.texts([""] * 4))
    assert (every.targets == END).sum() == 4


@pytest.mark.parametrize("kind", KINDS)
def test_padding_and_other_rows_change_nothing(kind: str) -> None:
    model, codes = make(kind), random_codes(3, 4)
    lengths, texts = torch.tensor([2, 4, 1]), ["a cup", "", "a long table"]
    valid_mask = (torch.arange(4) < lengths[:, None])[..., None]
    together = model(codes.masked_fill(~valid_mask, PADDING), lengths, model.texts(texts) | model.faces(lengths))
    other = model(codes.masked_fill(~valid_mask, CODES - 1), lengths, model.texts(texts) | model.faces(lengths))
    assert torch.equal(together.logits, other.logits)
    assert torch.equal(together.targets, other.targets)
    alone = [
        model(codes[[row], :length], lengths[[row]], model.texts([texts[row]]) | model.faces(lengths[[row]]))
        for row, length in enumerate(lengths.tolist())
    ]
    torch.testing.assert_close(together.logits, torch.cat([one.logits for one in alone]), **EXACT)
    assert torch.equal(together.targets, torch.cat([one.targets for one in alone]))


@pytest.mark.parametrize("kind", KINDS)
def test_a_code_affects_all_later_positions_and_no_earlier_ones(kind: str) -> None:
    model, codes, lengths = make(kind), random_codes(1, 4), torch.tensor([4])
    before = model(codes, lengths, {}).logits
    for position in range(4 * SIZE):
        changed = codes.flatten(1).clone()
        changed[0, position] = (changed[0, position] + 1) % CODES
        moved = (model(changed.view(1, 4, SIZE), lengths, {}).logits - before).abs().amax(-1)
        assert moved[: position + 1].max() < 1e-12
        assert moved[position + 1 :].min() > 1e-9


@pytest.mark.parametrize("kind", KINDS)
def test_every_weight_gets_a_gradient(kind: str) -> None:
    model, lengths = make(kind), torch.tensor([3, 2])
    for begins in (True, False):
        conditioning = model.texts(["a cup", ""], torch.tensor([True, False])) | model.faces(lengths)
        result = model(random_codes(2, 3), lengths, conditioning, torch.tensor([begins, True]))
        F.cross_entropy(result.logits, result.targets).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("kind", KINDS)
def test_it_learns_which_mesh_a_class_is(kind: str) -> None:
    model = make(kind, text="classes", classes=("one", "two", "three"))
    codes, lengths = random_codes(3, 4), torch.tensor([4, 2, 3])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(100):
        result = model(codes, lengths, model.texts(["one", "two", "three"]))
        loss = F.cross_entropy(result.logits, result.targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.05
    model.eval()
    generated = model.generate(["one", "two", "three"], items(3), Sampling(temperature=0))
    assert generated.lengths.tolist() == [4, 2, 3]
    assert generated.ended.all()
    for row, length in enumerate(lengths.tolist()):
        assert torch.equal(generated.codes[row, :length], codes[row, :length])
        assert (generated.codes[row, length:] == PADDING).all()


# --- conditioning -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_dropped_conditioning_has_no_effect(kind: str) -> None:
    model, codes, lengths = make(kind), random_codes(2, 3), torch.tensor([3, 3])
    dropped = torch.tensor([False, False])

    def logits(texts: list[str], counts: list[int], keep: Tensor | None) -> Tensor:
        conditioning = model.texts(texts, keep) | model.faces(torch.tensor(counts), keep)
        result: Tensor = model(codes, lengths, conditioning).logits
        return result

    unknown = model(codes, lengths, {}).logits
    torch.testing.assert_close(logits(["a cup", "b"], [1, 5], dropped), unknown, **EXACT)
    torch.testing.assert_close(logits(["a very tall cup", ""], [3, 4], dropped), unknown, **EXACT)
    known = [logits(["a cup", "b"], [0, 0], None), logits(["a cup", "c"], [0, 0], None)]
    assert not torch.allclose(known[0], unknown)
    assert not torch.allclose(known[0], known[1])
    counted = model(codes, lengths, model.faces(torch.tensor([5, 5]))).logits
    assert not torch.allclose(counted, unknown)


def test_face_counts_are_put_into_buckets_in_order() -> None:
    model = make(max_faces=800, face_buckets=32)
    buckets = model.faces(torch.arange(801))["faces"].tolist()
    assert buckets[0] == 0
    assert buckets[1] == 1
    assert buckets[800] == 32
    assert buckets == sorted(buckets)
    assert len(set(buckets)) >= 28
    assert model.faces(torch.tensor([10**6]))["faces"].tolist() == [32]
    assert make(face_buckets=0).faces(torch.tensor([3])) == {}


def test_a_frozen_encoder_conditions_generation(tmp_path: Path) -> None:
    torch.set_default_dtype(torch.float32)
    model = make(text=f"hf:{make_folder(tmp_path / 't5')}")
    model.cache_texts(None)
    result = model(random_codes(2, 2), torch.tensor([2, 1]), model.texts(["red", "blue"]))
    assert result.logits.isfinite().all()
    generated = model.eval().generate(["red"], items(1), Sampling(guidance_scale=2.0), negative="blue")
    assert generated.codes.shape[2] == SIZE


# --- generation ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("negative", "has_text"), [(None, False), ("", False), ("a flat disc", True)])
def test_an_empty_negative_text_equals_no_negative_text(
    monkeypatch: pytest.MonkeyPatch, negative: str | None, has_text: bool
) -> None:
    model = make().eval()
    begin, text_masks = model.begin, []

    def begin_and_record(conditioning: Conditioning, batch: int, **limit: Any) -> Any:
        text_masks.append(conditioning["text_mask"].any(1).tolist())
        return begin(conditioning, batch, **limit)

    monkeypatch.setattr(model, "begin", begin_and_record)
    model.generate(["a cup"], items(1), Sampling(guidance_scale=2.0), negative=negative)
    assert text_masks == [[True, has_text]]


def test_projected_guidance_changes_only_what_is_generated_with_guidance() -> None:
    model = make().eval()

    def codes(scale: float, projected: bool) -> list[Tensor]:
        settings = Sampling(guidance_scale=scale, guidance_projection=projected)
        return model.generate(["a cup", "a hat"] * 4, items(8), settings).rows

    def same(one: list[Tensor], other: list[Tensor]) -> bool:
        return all(torch.equal(left, right) for left, right in zip(one, other, strict=True))

    assert same(codes(1.0, True), codes(1.0, False))
    assert not same(codes(30.0, True), codes(30.0, False))


@pytest.mark.parametrize("kind", KINDS)
def test_logits_of_all_positions_are_those_of_the_training(kind: str) -> None:
    model = make(kind=kind).eval()
    codes = torch.randint(0, model.end_id, (2, 3, SIZE), generator=torch.Generator().manual_seed(0))
    conditioning = model.texts(["a cup", "a hat"])
    everything = model.logits(codes, conditioning)
    trained = model(codes, torch.tensor([3, 3]), conditioning)
    assert everything.shape == (2, 3 * SIZE + 1, model.end_id + 1)
    torch.testing.assert_close(everything.flatten(0, 1), trained.logits)


@pytest.mark.parametrize("kind", KINDS)
def test_text_embeddings_condition_training_and_generation(kind: str) -> None:
    model = make(kind=kind, text="vectors", vector_dim=6).eval()
    vectors, mask = torch.randn(2, 4, 6), torch.arange(4) < torch.tensor([[4], [2]])
    codes, lengths = torch.zeros(2, 2, SIZE, dtype=torch.int64), torch.tensor([2, 2])
    told = model(codes, lengths, model.text_vectors(vectors, mask)).logits
    longer = model(codes, lengths, model.text_vectors(F.pad(vectors, (0, 0, 0, 3)), F.pad(mask, (0, 3)))).logits
    untold = model(codes, lengths, model.text_vectors(vectors, mask, torch.tensor([False, False]))).logits
    torch.testing.assert_close(told, longer)
    assert not torch.allclose(told, untold)
    generated = model.generate(["", ""], items(2), Sampling(guidance_scale=2.0), embeddings=(vectors, mask))
    assert len(generated.rows) == 2
    with pytest.raises(UsageError, match="negative prompt needs texts"):
        model.generate(["", ""], items(2), negative="a hat", embeddings=(vectors, mask))


class UncachedState:
    """Decoding without a cache: every step is a full forward pass."""

    def __init__(self, model: MeshTransformer, conditioning: Conditioning, batch: int) -> None:
        self.model, self.conditioning = model, dict(conditioning)
        self.tokens = torch.empty(batch, 0, dtype=torch.int64)

    def advance(self, tokens: Tensor) -> Tensor:
        self.tokens = torch.cat([self.tokens, tokens], dim=1)
        length = self.tokens.shape[1]
        faces = min(length // SIZE + 1, MAX_FACES)
        codes = F.pad(self.tokens, (0, faces * SIZE - length)).view(-1, faces, SIZE)
        logits = self.model(codes, torch.full((len(codes),), faces), self.conditioning).logits
        last: Tensor = logits.view(len(codes), faces * SIZE + 1, -1)[:, length]
        return last

    def select(self, indices: Tensor) -> None:
        self.tokens = self.tokens[indices]
        self.conditioning = {key: value[indices] for key, value in self.conditioning.items()}


PROMPTS = [[], [1, 2], [3, 4, 5, 6], [0] * (MAX_FACES * SIZE), [1] * 7, []]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("conditioned_on", ["nothing", "texts", "guided", "negative"])
@pytest.mark.parametrize("prompted", [False, True], ids=["unprompted", "prompted"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_generation_is_the_same_with_and_without_the_cache(
    monkeypatch: pytest.MonkeyPatch, kind: str, conditioned_on: str, prompted: bool, temperature: float
) -> None:
    model = make(kind).eval()
    model.to_logits.bias.data[END] = 0.5
    prompts = [torch.tensor(prompt, dtype=torch.int64) for prompt in PROMPTS]
    texts = [""] * 6 if conditioned_on == "nothing" else ["a cup", "", "a tall lamp", "b", "stairs", "a cup"]
    options: dict[str, Any] = {
        "settings": Sampling(
            temperature=temperature, guidance_scale=3.0 if conditioned_on in ("guided", "negative") else 1.0
        ),
        "negative": "a flat disc" if conditioned_on == "negative" else None,
        "face_counts": None if conditioned_on == "nothing" else [3, 0, 5, 2, 4, 1],
        "prompts": prompts if prompted else None,
    }
    cached = model.generate(texts, items(6), **options)
    monkeypatch.setattr(model, "begin", lambda conditioning, batch, **limit: UncachedState(model, conditioning, batch))
    whole = model.generate(texts, items(6), **options)
    for one, other in zip(cached, whole, strict=True):
        assert torch.equal(one, other)
    if prompted:
        for row, prompt in zip(cached.codes.flatten(1).tolist(), PROMPTS, strict=True):
            assert row[: len(prompt)] == prompt
        assert cached.lengths[3] == MAX_FACES
        assert not cached.ended[3]


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_the_same_with_and_without_the_cache(kind: str) -> None:
    model = make(kind).eval()
    tokens = random_codes(3, MAX_FACES).flatten(1)
    conditioning = model.texts(["a cup", "", "b"], torch.tensor([True, True, False])) | model.faces(
        torch.tensor([3, 0, 5])
    )
    with torch.no_grad():
        for pieces in ([0] + [1] * (MAX_FACES * SIZE), [2, 1, 5, 1, 6], [SIZE * 2, SIZE], [7]):
            cached, whole = model.begin(conditioning, 3), UncachedState(model, conditioning, 3)
            for piece in tokens[:, : sum(pieces)].split(pieces, dim=1):
                torch.testing.assert_close(cached.advance(piece), whole.advance(piece), **EXACT)
            cached.select(torch.tensor([2, 0]))
            whole.select(torch.tensor([2, 0]))
            if sum(pieces) < MAX_FACES * SIZE:
                piece = tokens[[2, 0], :1]
                torch.testing.assert_close(cached.advance(piece), whole.advance(piece), **EXACT)


@pytest.mark.parametrize("kind", KINDS)
def test_the_cache_is_as_long_as_the_longest_mesh_that_is_generated(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    start = Transformer.start

    def noted(transformer: Transformer, batch: int, max_length: int, *context: Any) -> KVCache:
        lengths.append(max_length)
        return start(transformer, batch, max_length, *context)

    monkeypatch.setattr(Transformer, "start", noted)
    model = make(kind).eval()
    model.generate(["a"], items(1), max_faces=2)
    model.generate(["a"], items(1))
    tokens = {"coarse_fine": [2 + 1, SIZE, MAX_FACES + 1, SIZE], "flat": [2 * SIZE + 1, MAX_FACES * SIZE + 1]}
    assert lengths == tokens[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_a_mesh_is_the_same_in_any_batch(kind: str) -> None:
    model = make(kind).eval()
    texts, prompts = ["a", "bb", "", "dddd"], [torch.tensor(prompt) for prompt in ([1], [], [2, 3, 4, 5], [6] * 3)]
    settings = Sampling(top_p=0.95, guidance_scale=2.0)

    def part(rows: list[int]) -> list[list[int]]:
        result = model.generate(
            [texts[row] for row in rows],
            ItemRNG(1, [0] * len(rows), rows),
            settings,
            prompts=[prompts[row].long() for row in rows],
        )
        return [codes[:length].flatten().tolist() for codes, length in zip(result.codes, result.lengths, strict=True)]

    whole = part([0, 1, 2, 3])
    assert [part([row])[0] for row in range(4)] == whole
    assert part([3, 1]) == [whole[3], whole[1]]


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_of_any_length_and_limits_of_any_size(kind: str) -> None:
    model = make(kind, text="none").eval()
    for length in range(MAX_FACES * SIZE + 1):
        prompt = torch.arange(length) % CODES
        for limit in (None, 1, 3):
            result = model.generate([""], items(1), prompts=[prompt], max_faces=limit)
            faces = int(result.lengths[0])
            assert result.codes.shape == (1, faces, SIZE)
            assert length // SIZE <= faces <= max(limit or MAX_FACES, length // SIZE)
            retained = min(length, faces * SIZE)
            assert result.codes.flatten()[:retained].tolist() == prompt[:retained].tolist()
            assert ((result.codes >= 0) & (result.codes < CODES)).all()


def test_no_texts_give_no_meshes() -> None:
    result = make().eval().generate([], items(0))
    assert result.codes.shape == (0, 0, SIZE)


@pytest.mark.parametrize("kind", KINDS)
def test_generation_follows_the_grammar(kind: str) -> None:
    bins = 6
    model = make(kind, num_codes=bins, tokens_per_face=9, max_faces=6).eval()
    result = model.generate([""] * 8, items(8), legal=CanonicalCoordinates(bins))
    for codes, length in zip(result.codes.tolist(), result.lengths.tolist(), strict=True):
        faces = codes[:length]
        assert length > 0
        assert faces == sorted(faces)
        for face in faces:
            assert face[:3] < min(face[3:6], face[6:])
            assert face[3:6] != face[6:]


def test_the_default_grammar_gives_whole_faces(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make("flat").eval()
    model.to_logits.bias.data[END] = 4
    token_counts: list[int] = []

    def decode(*arguments: Any, **options: Any) -> autoregressive.Decoded:
        decoded = real(*arguments, **options)
        token_counts.extend(decoded.lengths.tolist())
        assert torch.equal(options["legal"](torch.zeros(1, SIZE)), whole_faces(torch.zeros(1, SIZE), SIZE, CODES))
        return decoded

    real = autoregressive.decode
    monkeypatch.setattr(autoregressive, "decode", decode)
    model.generate([""] * 8, items(8))
    assert all(length % SIZE == 0 and length for length in token_counts)


# --- other --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_bf16_autocast_does_not_fail(kind: str) -> None:
    torch.set_default_dtype(torch.float32)
    model = make(kind)
    lengths = torch.tensor([3, 1])
    with torch.autocast("cpu", torch.bfloat16):
        result = model(random_codes(2, 3), lengths, model.texts(["a", ""]) | model.faces(lengths))
        loss = F.cross_entropy(result.logits.float(), result.targets)
        generated = model.generate(["a", "b"], items(2), Sampling(guidance_scale=2.0), face_counts=[2, 3])
    loss.backward()
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in model.parameters())
    assert generated.codes.dtype == torch.int64


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_model_is_loaded_unchanged(tmp_path: Path, kind: str) -> None:
    model = make(kind).float().eval()
    model.save_pretrained(tmp_path / "out")
    torch.set_default_dtype(torch.float32)
    back = MeshTransformer.from_pretrained(tmp_path / "out")
    assert back.config == model.config
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, back.state_dict()[name]), name


def test_the_number_of_parameters_of_the_benchmark_model() -> None:
    with torch.device("meta"):
        model = MeshTransformer(
            num_codes=1024, tokens_per_face=6, max_faces=128, dim=256, depth=6, heads=8, fine_depth=2
        )
    assert sum(parameter.numel() for parameter in model.parameters()) < 10.4e6


def test_invalid_requests_are_refused() -> None:
    with pytest.raises(UsageError, match="tokens_per_face"):
        MeshTransformer(num_codes=5)
    with pytest.raises(UsageError, match="even dimension"):
        make(heads=16)
    with pytest.raises(UsageError, match="hf:PATH_OR_NAME"):
        make(text="letters")
    model, lengths = make(), torch.tensor([1])
    with pytest.raises(UsageError, match=r"not \(batch, faces, 3\)"):
        model(torch.zeros(1, 2, 4, dtype=torch.int64), lengths, {})
    with pytest.raises(UsageError, match="6 faces are more than"):
        model(random_codes(1, 6), lengths, {})
    with pytest.raises(UsageError, match="1 prompts for 2 texts"):
        model.generate(["a", "b"], items(2), prompts=[torch.tensor([1])])
    with pytest.raises(UsageError, match="16 tokens is longer"):
        model.generate(["a"], items(1), prompts=[torch.zeros(16, dtype=torch.int64)])
    for wrong in (-1, END):
        with pytest.raises(UsageError, match="tokens outside the codes"):
            model.generate(["a"], items(1), prompts=[torch.tensor([wrong])])
    for limit in (0, 6):
        with pytest.raises(UsageError, match="is not between 1 and"):
            model.generate(["a"], items(1), max_faces=limit)
    with pytest.raises(UsageError, match="face_buckets=0"):
        make(face_buckets=0).generate(["a"], items(1), face_counts=[3])
    textless = make(text="none")
    with pytest.raises(UsageError, match="takes no text"):
        textless.generate(["a"], items(1))
    with pytest.raises(UsageError, match="takes no text"):
        textless(random_codes(1, 1), lengths, model.texts(["a"]))
    with pytest.raises(UsageError, match=r"sample\.guidance_scale"):
        textless.generate([""], items(1), Sampling(guidance_scale=2.0))
