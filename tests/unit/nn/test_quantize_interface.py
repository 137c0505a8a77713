"""Common properties of all quantizers, single and residual."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quintet.common.statistics import Statistics
from quintet.errors import UsageError
from quintet.nn.quantize import (
    LookupFreeQuantizer,
    ProductQuantizer,
    Quantizer,
    ResidualQuantizer,
    VectorQuantizer,
    make_quantizer,
    perplexity,
    usage,
)

DIM = 12
CASES: dict[str, dict[str, Any]] = {
    "vq": {"kind": "vq", "num_codes": 32},
    "vq-small": {"kind": "vq", "num_codes": 32, "code_dim": 4},
    "vq-cosine": {"kind": "vq", "num_codes": 32, "code_dim": 4, "cosine": True},
    "vq-residual": {"kind": "vq", "num_codes": 32, "levels": 3},
    "vq-residual-small": {"kind": "vq", "num_codes": 32, "levels": 3, "code_dim": 4},
    "vq-shared": {"kind": "vq", "num_codes": 32, "levels": 3, "shared": True},
    "vq-product": {"kind": "vq", "num_codes": 32, "levels": (2, 1)},
    "lfq": {"kind": "lfq", "num_codes": 256},
    "lfq-no-projection": {"kind": "lfq", "num_codes": 2**DIM},
    "lfq-residual": {"kind": "lfq", "num_codes": 32, "levels": 3},
    "lfq-product": {"kind": "lfq", "num_codes": 32, "levels": (1, 2)},
    "fsq": {"kind": "fsq", "num_codes": 256},
    "fsq-residual": {"kind": "fsq", "num_codes": 256, "levels": 3},
    "fsq-product": {"kind": "fsq", "num_codes": 256, "levels": (1, 2)},
}
ALL = pytest.mark.parametrize("case", CASES)


def build(case: str, dtype: torch.dtype = torch.float32) -> Quantizer:
    torch.manual_seed(0)
    return make_quantizer(dim=DIM, **CASES[case]).to(dtype)


def batch(items: int = 4, positions: int = 20, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(items, positions, DIM, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


def gradients(quantizer: Quantizer, x: Tensor, mask: Tensor | None = None, autocast: bool = False) -> dict[str, Tensor]:
    """Gradients by name of a loss over the auxiliary loss and all vectors; that of the input is `x`."""
    quantizer.zero_grad()
    x = x.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        result = quantizer(x, mask)
    weights = torch.linspace(-1, 1, x.numel(), dtype=x.dtype).view_as(x)
    ((result.vectors * weights).sum() + result.loss).backward()
    assert x.grad is not None
    return {"x": x.grad} | {name: p.grad for name, p in quantizer.named_parameters() if p.grad is not None}


def assert_same_statistics(left: Statistics, right: Statistics, tolerance: float = 1e-12) -> None:
    for one, other in ((left.sums, right.sums), (left.rows, right.rows)):
        assert one.keys() == other.keys()
        for name in one:
            torch.testing.assert_close(one[name], other[name], rtol=0, atol=tolerance)


@ALL
def test_shapes_and_types(case: str) -> None:
    quantizer, x = build(case), batch()
    result = quantizer(x)
    levels = CASES[case].get("levels", 1)
    has_levels = isinstance(quantizer, ResidualQuantizer | ProductQuantizer)
    assert quantizer.levels == (sum(levels) if isinstance(levels, tuple) else levels)
    assert result.vectors.shape == x.shape
    assert result.vectors.dtype == x.dtype
    assert result.codes.shape == ((*x.shape[:2], quantizer.levels) if has_levels else x.shape[:2])
    assert result.codes.dtype == torch.int64
    assert result.codes.min() >= 0
    assert result.codes.max() < quantizer.num_codes
    assert result.loss.shape == ()
    prefixes = [f"{level}/" for level in range(quantizer.levels)] if has_levels else [""]
    if isinstance(levels, tuple):
        prefixes = [f"{part}/{level}/" for part, own in enumerate(levels) for level in range(own)]
    for prefix in prefixes:
        count = result.statistics.sums[f"{prefix}count"]
        assert count.shape == (quantizer.num_codes,)
        assert count.sum() == x.shape[0] * x.shape[1]
    assert not result.statistics.rows


@ALL
@pytest.mark.parametrize("training", [True, False])
def test_forward_changes_no_state(case: str, training: bool) -> None:
    quantizer = build(case).train(training)
    before = {name: value.clone() for name, value in quantizer.state_dict().items()}
    random = torch.get_rng_state()
    quantizer(batch(), return_candidates=True)
    quantizer.encode(batch())
    assert torch.equal(random, torch.get_rng_state())
    assert before.keys() == quantizer.state_dict().keys()
    assert all(torch.equal(before[name], value) for name, value in quantizer.state_dict().items())


@ALL
def test_codes_decode_to_exactly_the_same_vectors(case: str) -> None:
    quantizer = build(case)
    mask = torch.rand(4, 20, generator=torch.Generator().manual_seed(2)) < 0.7
    for chosen in (None, mask):
        result = quantizer(batch(), chosen)
        assert torch.equal(quantizer.codes_to_vectors(result.codes), result.vectors)
        assert torch.equal(quantizer.encode(batch(), chosen), result.codes)


@ALL
def test_padding_changes_nothing(case: str) -> None:
    """Not even NaN reaches vectors, codes, loss, statistics or any gradient."""
    quantizer, x = build(case), batch()
    lengths = torch.tensor([20, 13, 1, 0])
    mask = torch.arange(20) < lengths[:, None]
    other = torch.where(mask[..., None], x, torch.nan)
    left, right = quantizer(x, mask, return_candidates=True), quantizer(other, mask, return_candidates=True)
    assert torch.equal(left.vectors, right.vectors)
    assert torch.equal(left.codes, right.codes)
    assert torch.equal(left.loss, right.loss)
    assert_same_statistics(left.statistics, right.statistics, 0)
    assert (left.vectors[~mask] == 0).all()
    assert (left.codes[~mask] == -1).all()
    assert torch.equal(left.codes[mask], quantizer(x).codes[mask])
    one, two = gradients(quantizer, x, mask), gradients(quantizer, other, mask)
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert (one["x"][~mask] == 0).all()


@ALL
def test_a_mask_equals_removing_the_padding(case: str) -> None:
    quantizer, x = build(case, torch.float64), batch(dtype=torch.float64)
    mask = (torch.arange(20) < 13).expand(4, -1)
    masked, short = quantizer(x, mask, return_candidates=True), quantizer(x[:, :13], return_candidates=True)
    assert torch.equal(masked.codes[:, :13], short.codes)
    torch.testing.assert_close(masked.loss, short.loss, rtol=0, atol=1e-12)
    assert_same_statistics(masked.statistics, short.statistics)


@ALL
def test_all_padding_is_finite(case: str) -> None:
    quantizer = build(case)
    result = quantizer(batch(), torch.zeros(4, 20, dtype=torch.bool))
    assert result.loss == 0
    assert all((value == 0).all() for value in result.statistics.sums.values())


@ALL
def test_statistics_of_halves_add_up(case: str) -> None:
    whole, halves = build(case, torch.float64), build(case, torch.float64)
    x = batch(dtype=torch.float64)
    together = whole(x, return_candidates=True).statistics
    added = halves(x[:2], return_candidates=True).statistics + halves(x[2:], return_candidates=True).statistics
    assert_same_statistics(together, added)
    whole.update(together, seed=3)
    halves.update(added, seed=3)
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(value, halves.state_dict()[name], rtol=0, atol=1e-12)


@ALL
def test_input_may_be_non_contiguous(case: str) -> None:
    quantizer, x = build(case), batch()
    image = x.transpose(1, 2).contiguous().transpose(1, 2)
    assert not image.is_contiguous()
    left, right = quantizer(x, return_candidates=True), quantizer(image, return_candidates=True)
    assert torch.equal(left.codes, right.codes)
    assert_same_statistics(left.statistics, right.statistics, 1e-5)
    for name, value in gradients(quantizer, x).items():
        torch.testing.assert_close(value, gradients(quantizer, image)[name])


@ALL
def test_double_and_single_precision_agree(case: str) -> None:
    single, double = build(case), build(case, torch.float64)
    x = batch()
    left, right = single(x), double(x.double())
    assert right.vectors.dtype == right.loss.dtype == torch.float64
    assert double.codes_to_vectors(right.codes).dtype == torch.float64
    assert torch.equal(left.codes, right.codes)
    torch.testing.assert_close(left.loss.double(), right.loss, rtol=1e-4, atol=1e-5)
    one, two = gradients(single, x), gradients(double, x.double())
    for name in one:
        torch.testing.assert_close(one[name].double(), two[name], rtol=1e-3, atol=1e-4)


@ALL
def test_autocast_changes_nothing(case: str) -> None:
    """The codes of the same input are the same, and all gradients, inside autocast and outside."""
    quantizer, x = build(case), batch()
    plain, plain_gradients = quantizer(x), gradients(quantizer, x)
    cast_gradients = gradients(quantizer, x, autocast=True)
    with torch.autocast("cpu", torch.bfloat16):
        cast = quantizer(x)
        assert torch.equal(quantizer.codes_to_vectors(cast.codes), plain.vectors)
    assert torch.equal(plain.codes, cast.codes)
    assert torch.equal(plain.loss, cast.loss)
    assert all(torch.equal(plain_gradients[name], cast_gradients[name]) for name in plain_gradients)


@ALL
def test_bfloat16_input_under_autocast(case: str) -> None:
    quantizer = build(case)
    encoder = nn.Linear(DIM, DIM)
    with torch.autocast("cpu", torch.bfloat16):
        x = encoder(batch())
        result = quantizer(x)
        assert x.dtype == result.vectors.dtype == torch.bfloat16
        assert result.loss.dtype == torch.float32
    (result.vectors.float().square().mean() + result.loss).backward()
    assert encoder.weight.grad is not None
    assert encoder.weight.grad.isfinite().all()


@ALL
def test_nan_is_propagated_and_not_raised(case: str) -> None:
    """The trainer skips such a step, so the quantizer must neither raise nor hide the NaN."""
    quantizer, x = build(case), batch()
    x[1, 3, :] = torch.nan
    result = quantizer(x, return_candidates=True)
    assert not result.vectors[1, 3].isfinite().any()
    assert result.vectors[0].isfinite().all()


@ALL
def test_state_round_trips(case: str) -> None:
    quantizer, other = build(case), make_quantizer(dim=DIM, **CASES[case])
    quantizer.init_from_data(batch().flatten(0, 1), seed=1)
    quantizer.update(quantizer(batch(), return_candidates=True).statistics, seed=2)
    other.load_state_dict(quantizer.state_dict())
    assert torch.equal(quantizer(batch()).vectors, other(batch()).vectors)


@ALL
def test_init_from_data_ignores_non_finite_vectors(case: str) -> None:
    quantizer, clean = build(case), build(case)
    vectors = batch().flatten(0, 1)
    spoilt = torch.cat([vectors, torch.full((1, DIM), torch.nan)])
    quantizer.init_from_data(spoilt, seed=1)
    clean.init_from_data(vectors, seed=1)
    assert all(torch.equal(value, clean.state_dict()[name]) for name, value in quantizer.state_dict().items())
    with pytest.raises(UsageError, match="without finite vectors"):
        quantizer.init_from_data(spoilt[-1:], seed=1)


@pytest.mark.parametrize("case", ["vq-residual", "lfq", "fsq"])
def test_compiles_as_one_graph(case: str) -> None:
    quantizer = build(case)
    compiled = torch.compile(quantizer, backend="eager", fullgraph=True)
    assert torch.equal(compiled(batch()).codes, quantizer(batch()).codes)


@ALL
def test_deterministic_algorithms_are_supported(case: str) -> None:
    quantizer, x = build(case), batch()
    mask = torch.arange(20) < torch.tensor([20, 13, 1, 0])[:, None]
    torch.use_deterministic_algorithms(True)
    try:
        once, again = gradients(quantizer, x, mask), gradients(quantizer, x, mask)
        quantizer.update(quantizer(x, mask, return_candidates=True).statistics, seed=0)
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(once[name], again[name]) for name in once)


def test_state_names() -> None:
    assert list(build("vq").state_dict()) == ["codebook", "cluster_size", "vector_sums"]
    assert list(build("lfq-no-projection").state_dict()) == []
    shared = list(build("vq-shared").state_dict())
    assert shared == ["quantizers.0.codebook", "quantizers.0.cluster_size", "quantizers.0.vector_sums"]


def test_usage_and_perplexity() -> None:
    assert usage(torch.tensor([5, 0, 1, 0])).item() == 0.5
    assert perplexity(torch.tensor([7, 7, 7, 7])).item() == pytest.approx(4)
    assert perplexity(torch.tensor([7, 0, 0, 0])).item() == pytest.approx(1)
    assert perplexity(torch.tensor([[1, 1], [2, 0]])).tolist() == pytest.approx([2, 1])
    assert perplexity(torch.zeros(4, dtype=torch.int64)).isfinite()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "vqq", "num_codes": 32}, "vq, lfq, fsq"),
        ({"kind": "vq", "num_codes": 1}, "at least 2"),
        ({"kind": "vq", "num_codes": 32, "levels": 0}, "at least 1"),
        ({"kind": "vq", "num_codes": 32, "decay": 1.0}, "less than 1"),
        ({"kind": "vq", "num_codes": 32, "code_dim": 0}, "at least 1"),
        ({"kind": "vq", "num_codes": 32, "code_dim": 0, "levels": 2}, "at least 1"),
        ({"kind": "vq", "num_codes": 32, "levels": 2, "cosine": True}, "levels=1"),
        ({"kind": "vq", "num_codes": 32, "entropy_weight": 1.0}, "no option 'entropy_weight'"),
        ({"kind": "vq", "num_codes": 32, "comitment_weight": 1.0}, "'commitment_weight'"),
        ({"kind": "lfq", "num_codes": 1000}, "512 or 1024"),
        ({"kind": "lfq", "num_codes": 1000, "levels": 2}, "512 or 1024"),
        ({"kind": "lfq", "num_codes": 1}, "2 or 4"),
        ({"kind": "lfq", "num_codes": -4}, "power of two"),
        ({"kind": "lfq", "num_codes": 16, "levels": 2, "shared": True}, "share"),
        ({"kind": "fsq", "num_codes": 1000}, "1024"),
        ({"kind": "fsq", "num_codes": 8, "level_sizes": [2, 4]}, "at least 3"),
        ({"kind": "fsq", "num_codes": 16, "level_sizes": [5, 5]}, "25"),
        ({"kind": "fsq", "num_codes": 1, "level_sizes": []}, "at least 3"),
    ],
)
def test_invalid_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        make_quantizer(dim=DIM, **arguments)
    assert "\n" not in str(error.value)


def test_invalid_residual_quantizers_are_refused() -> None:
    with pytest.raises(UsageError, match="share"):
        ResidualQuantizer(4, 2, lambda level: LookupFreeQuantizer(4, 16, depth=level), shared=True)
    with pytest.raises(UsageError, match="projection"):
        ResidualQuantizer(8, 2, lambda level: VectorQuantizer(8, 16, code_dim=4))
    with pytest.raises(UsageError, match="has 3"):
        build("vq-residual").codes_to_vectors(torch.zeros(1, 2, 4, dtype=torch.int64))


def test_wrong_shapes_are_refused() -> None:
    for shape in ((4, DIM), (4, 20, DIM + 1), (4, 20, 1)):
        with pytest.raises(UsageError, match="positions, 12"):
            build("fsq")(torch.zeros(shape))


def test_the_first_levels_encode_only_the_first_part() -> None:
    quantizer, x = build("vq-product"), batch()
    half = DIM // 2
    quantizer.init_from_data(x.flatten(0, 1), 0)
    other = torch.cat([x[..., :half], -x[..., half:]], -1)
    codes, of_other = quantizer.encode(x), quantizer.encode(other)
    assert torch.equal(codes[..., :2], of_other[..., :2])
    assert not torch.equal(codes[..., 2], of_other[..., 2])
    few = quantizer.codes_to_vectors(codes[..., :2])
    assert torch.equal(few[..., :half], quantizer.codes_to_vectors(codes)[..., :half])
    assert not few[..., half:].any()


def test_active_levels_count_over_the_parts() -> None:
    quantizer, x = build("vq-product"), batch(items=4)
    assert isinstance(quantizer, ProductQuantizer)
    result = quantizer(x, active_levels=torch.tensor([1, 2, 3, 3]))
    assert ((result.codes >= 0).sum(-1) == torch.tensor([1, 2, 3, 3])[:, None]).all()
    assert torch.equal(quantizer.codes_to_vectors(result.codes), result.vectors)


def test_parts_must_be_equal() -> None:
    with pytest.raises(UsageError, match="into 5 equal parts"):
        make_quantizer("vq", DIM, 32, levels=(1, 1, 1, 1, 1))


@pytest.mark.parametrize("case", ["vq-residual", "lfq-residual", "vq-product", "fsq-product"])
def test_encoding_some_levels_gives_the_first_levels(case: str) -> None:
    quantizer, x = build(case), batch()
    mask = torch.ones(x.shape[:2], dtype=torch.bool)
    mask[1, 7:] = False
    codes = quantizer.encode(x, mask)
    for levels in range(1, 5):
        assert torch.equal(quantizer.encode(x, mask, levels), codes[..., :levels])
