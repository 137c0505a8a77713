"""Text conditioning by bytes, words, classes and a frozen encoder: common properties, and errors of each."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from test_pretrained_text import no_network  # noqa: F401

from quintet.config import validate
from quintet.config.masked import MaskGitConfig
from quintet.errors import UsageError
from quintet.nn.conditioning import ClassTable, FrozenText, make_text_conditioning
from quintet.nn.maskgit import MaskGit, TokenCritic
from quintet.nn.pretrained_text import PretrainedText
from quintet.nn.text import TABLE_ROWS, ByteTextEncoder, WordTextEncoder, words_of
from text_models import make_folder

SMALL: dict[str, Any] = {
    "grid": (2, 3), "num_codes": 5, "dim": 16, "depth": 1, "heads": 2,
    "text_dim": 16, "text_depth": 1, "text_heads": 2, "text_length": 24,
}  # fmt: skip
TEXTS = ["a red circle", "blue", "a blue square left"]
STAR = [2681, 716, 1698, 3667, 5083, 0, 0, 0, 0, 0, 0, 0]
KINDS = ["bytes", "words", "classes", "hf"]


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("models") / "t5")


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "quintet"


def keys_of(kind: str, t5: Path, **keys: Any) -> dict[str, Any]:
    own: dict[str, dict[str, Any]] = {
        "bytes": {},
        "words": {"text": "words"},
        "classes": {"text": "classes", "classes": TEXTS},
        "hf": {"text": f"hf:{t5}"},
    }
    return {**SMALL, **own[kind], **keys}


def make(kind: str, t5: Path, **keys: Any) -> MaskGit:
    torch.manual_seed(0)
    return MaskGit(**keys_of(kind, t5, **keys)).double().eval()


def tokens(rows: int = len(TEXTS)) -> torch.Tensor:
    return torch.randint(0, 6, (rows, 6), generator=torch.Generator().manual_seed(1))


# --- what every kind promises -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_texts_are_encoded_to_vectors_of_text_dim(kind: str, t5: Path) -> None:
    encoder = make_text_conditioning(validate(MaskGitConfig, keys_of(kind, t5)))
    assert encoder is not None
    result = {"bytes": ByteTextEncoder, "words": WordTextEncoder, "classes": ClassTable, "hf": FrozenText}
    assert isinstance(encoder, result[kind])
    prepared = encoder.prepare(TEXTS)
    assert prepared.keys() == {"text", "text_mask"}
    assert all(len(part) == 3 and part.device.type == "cpu" for part in prepared.values())
    vectors, mask = encoder(prepared["text"], prepared["text_mask"])
    assert vectors.shape == (*mask.shape, 16)
    assert vectors.requires_grad
    assert mask.any(1).all()
    assert 0.2 < vectors[mask].std() < 2, "the scale of what the transformer attends to does not depend on the kind"
    assert len({tuple(row[valid_mask].flatten().tolist()) for row, valid_mask in zip(vectors, mask, strict=True)}) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_no_texts(kind: str, t5: Path) -> None:
    prepared = make(kind, t5).texts([])
    assert [len(part) for part in prepared.values()] == [0, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_does_not_depend_on_the_batch(kind: str, t5: Path) -> None:
    model = make(kind, t5)
    together = model(tokens(), model.texts(TEXTS))
    for row, text in enumerate(TEXTS):
        single = model(tokens()[row : row + 1], model.texts([text]))
        torch.testing.assert_close(single[0], together[row], rtol=1e-11, atol=1e-11)
    assert (model(tokens(), model.texts(TEXTS[1:] + TEXTS[:1])) - together).abs().max() > 1e-6


@pytest.mark.parametrize("kind", KINDS)
def test_a_dropped_text_does_not_matter(kind: str, t5: Path) -> None:
    model = make(kind, t5)
    dropped = torch.tensor([True, False, False])
    first = model(tokens(), model.texts(TEXTS, dropped))
    other = model(tokens(), model.texts([TEXTS[0], "something else", ""], dropped))
    torch.testing.assert_close(other, first, rtol=1e-11, atol=1e-11)
    none = model(tokens(), {})
    torch.testing.assert_close(first[1:], none[1:], rtol=1e-11, atol=1e-11)
    assert (first[0] - none[0]).abs().max() > 1e-6
    if kind != "classes":
        empty = model(tokens(), model.texts(["", "", ""]))
        assert (empty - none).abs().max() > 1e-6, "an empty text is a text"


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_model_encodes_the_same_texts(kind: str, t5: Path, tmp_path: Path) -> None:
    for model in (make(kind, t5).float(), TokenCritic(**keys_of(kind, t5)).eval()):
        folder = tmp_path / type(model).__name__
        model.save_pretrained(folder)
        again = type(model).from_pretrained(folder)
        assert again.config == model.config
        assert torch.equal(again(tokens(), again.texts(TEXTS)), model(tokens(), model.texts(TEXTS)))


@pytest.mark.parametrize("kind", KINDS)
def test_every_weight_is_trained(kind: str, t5: Path) -> None:
    model = make(kind, t5).train()
    model(tokens(), model.texts(TEXTS)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_a_model_without_text_has_no_text_conditioning() -> None:
    assert make_text_conditioning(validate(MaskGitConfig, {**SMALL, "text": "none"})) is None
    assert MaskGit(**SMALL, text="none").texts(TEXTS) == {}


# --- bytes --------------------------------------------------------------------------------------------------------


def test_weight_names_of_the_byte_encoder_never_change(t5: Path) -> None:
    """Runs of earlier versions contain them."""
    names = {name for name in make("bytes", t5).state_dict() if name.startswith("text_encoder.")}
    assert "text_encoder.embedding.weight" in names
    assert "text_encoder.transformer.blocks.0.attention.to_out.weight" in names
    assert names == {f"text_encoder.{name}" for name in ByteTextEncoder(16, 1, 2, 24).state_dict()}


# --- words --------------------------------------------------------------------------------------------------------


def test_words_ignore_case_and_spaces() -> None:
    assert words_of("A  Red\ncircle: it's ÉTÉ 2") == ["a", "red", "circle", ":", "it", "'", "s", "été", "2"]
    encoder = WordTextEncoder(16, 1, 2, 24)
    one, other = (encoder.prepare([text])["text"] for text in ("A red  Circle", "a red circle"))
    assert torch.equal(one, other)


def test_accents_and_invalid_unicode() -> None:
    composed, apart = "\u00e9t\u00e9", "e\u0301te\u0301"
    assert words_of(apart) == words_of(composed) == [composed]
    assert words_of("\u0939\u093f\u0928\u094d\u0926\u0940 x") == ["\u0939\u093f\u0928\u094d\u0926\u0940", "x"]
    assert words_of("a\udcffb") == ["a", "?", "b"]
    assert WordTextEncoder(16, 1, 2, 24).prepare(["\udcff"])["text_mask"].sum() == 2


def test_table_rows_of_words_never_change() -> None:
    """Runs contain a table whose rows are selected by these hashes."""
    rows = WordTextEncoder(16, 1, 2, 24).prepare(["star"])["text"]
    assert rows[0, 0].tolist() == STAR
    assert rows.max() < TABLE_ROWS


def test_words_with_a_common_stem_start_similar() -> None:
    torch.manual_seed(0)
    encoder = WordTextEncoder(256, 1, 2, 24)
    words = encoder.look_up(encoder.prepare(["triangle triangles circle"])["text"])[0]
    codebook_smoothing, other = (torch.cosine_similarity(words[0], words[number], dim=0) for number in (1, 2))
    assert codebook_smoothing > other + 0.1
    assert encoder.prepare(["qzx"])["text"][0, 0, 0] > 0


def test_long_texts_and_long_words_are_truncated() -> None:
    encoder = WordTextEncoder(16, 1, 2, 8)
    prepared = encoder.prepare(["a b c d e f g h i j", "a b c d e f g", "x" * 10_000])
    assert prepared["text"].shape[1] == 8
    assert prepared["text_mask"].sum(1).tolist() == [8, 8, 2]
    assert torch.equal(prepared["text"][0], prepared["text"][1])


# --- classes ------------------------------------------------------------------------------------------------------


def test_an_unknown_class_names_the_nearest(t5: Path) -> None:
    model = make("classes", t5)
    with pytest.raises(UsageError, match=r"'a red circel' is not one of the 3 classes .* did you mean 'a red circle'"):
        model.texts(["blue", "a red circel"])
    with pytest.raises(UsageError, match="did you mean"):
        model.texts([""])


def test_classes_must_be_known(t5: Path) -> None:
    with pytest.raises(UsageError, match=r"model\.text=classes needs model\.classes"):
        MaskGit(**SMALL, text="classes")


# --- a frozen encoder ---------------------------------------------------------------------------------------------


def test_only_the_projection_of_a_frozen_encoder_is_in_the_state_dict(t5: Path) -> None:
    model = make("hf", t5)
    model.texts(TEXTS)
    names = {name: tensor.shape for name, tensor in model.state_dict().items() if name.startswith("text_encoder.")}
    assert names == {"text_encoder.project.weight": (16, 16), "text_encoder.project.bias": (16,)}
    assert not any("encoder.encoder" in name for name, _ in model.named_parameters())


def test_embeddings_are_cached_in_the_user_cache_by_default(
    t5: Path, own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def entries(folder: Path) -> int:
        return len(list(folder.rglob("*.safetensors")))

    make("hf", t5).texts(TEXTS)
    assert entries(own_cache / "text") == 3
    cond = make("hf", t5)
    cond.cache_texts(tmp_path / "mine")
    cond.texts(TEXTS)
    assert entries(tmp_path / "mine" / "text") == 3
    nowhere = make("hf", t5)
    nowhere.cache_texts(None)
    nowhere.texts(["left"])
    assert (entries(own_cache), entries(tmp_path / "mine")) == (3, 3)
    make("bytes", t5).cache_texts(tmp_path / "mine")

    monkeypatch.setattr(PretrainedText, "_encode", None)  # what is cached needs no model
    make("hf", t5).texts(TEXTS)


def test_copies_of_a_model_share_the_frozen_encoder(t5: Path) -> None:
    model = make("hf", t5)
    twin = copy.deepcopy(model)
    assert isinstance(model.text_encoder, FrozenText)
    assert isinstance(twin.text_encoder, FrozenText)
    assert twin.text_encoder.encoder is model.text_encoder.encoder
    assert twin.text_encoder.project.weight is not model.text_encoder.project.weight


def test_a_missing_encoder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="neither a folder nor in the local Hugging Face cache"):
        MaskGit(**SMALL, text="hf:nobody/has-this")


# --- keys ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["byte", "", "hf:", "hf: ", "t5", "None"])
def test_an_unknown_text_encoder_names_the_choices(text: str) -> None:
    with pytest.raises(
        UsageError, match=r"text: choose bytes, words, classes, vectors, none, or hf:PATH_OR_NAME \(got "
    ):
        validate(MaskGitConfig, {"text": text})


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"text": "classes", "classes": []}, "name at least one class"),
        ({"text": "classes", "classes": ["a", "b", "a"]}, "'a' is listed twice"),
        ({"classes": ["a"]}, "model.classes needs model.text=classes, not model.text=bytes"),
        ({"low_res_grid": (2, 2)}, "or neither"),
        ({"low_res_num_codes": 8}, "or neither"),
        ({"low_res_grid": (2, 2), "low_res_num_codes": 1}, "low_res_num_codes: "),
        ({"low_res_grid": (4,), "low_res_num_codes": 8}, "low_res_grid: give rows and columns"),
        ({"low_res_grid": (2, 0), "low_res_num_codes": 8}, "low_res_grid: give rows and columns"),
        ({"low_res_grid": (2, 2), "low_res_num_codes": 8, "grid": (2, 2, 2, 2)}, "needs a model.grid"),
    ],
)
def test_invalid_keys_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        validate(MaskGitConfig, keys)
    assert message in str(caught.value)


def test_precomputed_text_embeddings() -> None:
    config = MaskGitConfig(
        grid=(2, 2), num_codes=5, dim=16, depth=1, heads=2, text="vectors", vector_dim=6, text_dim=16
    )
    model = MaskGit(config)
    vectors, mask = torch.randn(2, 3, 6), torch.tensor([[True, True, False], [True, True, True]])
    cond = model.text_vectors(vectors, mask, torch.tensor([True, False]))
    assert cond["text_mask"].tolist() == [[True, True, False], [False] * 3]
    tokens = torch.full((2, 4), model.mask_id)
    # Padding, dropped rows and the scale of the embeddings do not matter.
    other = vectors.clone()
    other[0, 2], other[1] = 9.0, 9.0
    for same in (other, 5 * vectors):
        result = model(tokens, model.text_vectors(same, mask, torch.tensor([True, False])))
        torch.testing.assert_close(result, model(tokens, cond), atol=1e-5, rtol=1e-4)
    assert not model.texts(["", ""])["text_mask"].any()
    with pytest.raises(UsageError, match="cannot encode texts"):
        model.texts(["a red circle"])
    with pytest.raises(UsageError, match=r"text embeddings need model\.text=vectors"):
        MaskGit(config.model_copy(update={"text": "none", "vector_dim": None})).text_vectors(vectors, mask)
    for keys in ({"text": "vectors"}, {"vector_dim": 6}):
        with pytest.raises(UsageError, match="must be set together"):
            MaskGit(grid=(2, 2), num_codes=5, **keys)
