"""Every op table against the reference in float32, on one table of cases."""

from __future__ import annotations

import pytest
import torch
from support.op_cases import (
    ISAS,
    LAYOUTS,
    NATIVE_TABLES,
    PLAIN,
    QUANTISED,
    REFERENCE,
    SPECS,
    TABLES,
    as_multiplied,
    attend,
    attention_case,
    in_eight_bits,
    int64,
    random,
    random_weight,
)
from torch import Tensor
from torch.nn import functional as F

from stolon.errors import InvalidRequest
from stolon.kernels import Ops, RaggedBatch, StoredWeight, default_ops, ops_by_name

# Rows, inputs, outputs.
SIZES = [(1, 48, 80), (2, 33, 17), (7, 576, 960), (32, 64, 129), (513, 96, 64)]
BLOCK_SIZES = [(1, 256, 80), (3, 512, 17), (32, 768, 129), (513, 256, 33)]


@pytest.fixture(params=TABLES)
def ops(request: pytest.FixtureRequest) -> Ops:
    return TABLES[request.param]


@pytest.fixture(autouse=True)
def _inference() -> object:
    with torch.inference_mode():
        yield


SCALES_ROUNDED = 4e-5
"""Of the largest value: kernels keep scales and offsets of Q4_1 in 16 bits, in a unit of the column."""
PAIRS_ROUNDED = 1e-3
"""Of the largest value: in products they are rounded again for the scale of a block, and a sum of activations
is an eighth of a unit too small where the sum of the products is negative."""


def close(ops: Ops, got: Tensor, wanted: Tensor) -> None:
    """Up to rounding of the result (and of one intermediate) in the table's dtype."""
    tolerance = 1e-5 if ops.activations == torch.float32 else 2**-6
    near(got, wanted, tolerance)


def near(got: Tensor, wanted: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(
        got.float(), wanted.float(), rtol=tolerance, atol=float(tolerance * wanted.abs().max())
    )


def inputs(ops: Ops, x: Tensor) -> Tensor:
    return x.to(ops.activations, copy=True)


@pytest.mark.parametrize(("rows", "width", "out"), SIZES)
@pytest.mark.parametrize("with_bias", [False, True])
def test_linear(ops: Ops, rows: int, width: int, out: int, with_bias: bool) -> None:
    x, weight = random(rows, width), random(out, width, seed=1, scale=width**-0.5)
    bias = random(out, seed=2) if with_bias else None
    residual = random(rows, out, seed=3)
    wanted = F.linear(x, weight, bias)
    packed = ops.pack_linear([StoredWeight.of(weight)], bias)
    got = ops.linear(inputs(ops, x), packed)
    assert got.dtype == ops.activations
    close(ops, got, wanted)
    close(ops, ops.linear(inputs(ops, x), packed, inputs(ops, residual)), wanted + residual)


@pytest.mark.parametrize("sizes", [(40, 24, 24), (16, 1, 3), (33,), (64, 128)])
def test_matrices_side_by_side(ops: Ops, sizes: tuple[int, ...]) -> None:
    x, bias = random(9, 64), random(sum(sizes), seed=2)
    kinds = ("F32", "BF16", "F16")
    parts = [random_weight(kinds[i], n, 64, seed=i) for i, n in enumerate(sizes)]
    wanted = torch.cat([F.linear(x, part.tensor(torch.float32)) for part in parts], dim=1)
    close(ops, ops.linear(inputs(ops, x), ops.pack_linear(parts, bias)), wanted + bias)


@pytest.mark.parametrize(("rows", "width", "inner"), SIZES)
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gated_linear(ops: Ops, rows: int, width: int, inner: int, activation: str) -> None:
    x = random(rows, width)
    gate, up = (random_weight("F32", inner, width, seed=seed) for seed in (1, 2))
    wanted = REFERENCE.gated_linear(x, REFERENCE.pack_gated(gate, up), activation)
    close(ops, ops.gated_linear(inputs(ops, x), ops.pack_gated(gate, up), activation), wanted)


def multiplied_weight(ops: Ops, weight: StoredWeight) -> Tensor:
    """A weight as a table multiplies it, in float64: what comes of the rows of the unit matrix."""
    return ops.linear(torch.eye(weight.shape[1]), ops.pack_linear([weight])).T.double()


@pytest.mark.parametrize("kind", QUANTISED)
@pytest.mark.parametrize("table", [t for t in NATIVE_TABLES if not in_eight_bits(t, "Q4_1")])
def test_weights_in_bfloat16_are_nearly_rounded(table: str, kind: str) -> None:
    weight = random_weight(kind, 48, 512)
    stored = weight.tensor(torch.float64)
    got = multiplied_weight(NATIVE_TABLES[table], weight)
    assert torch.equal(got, got.bfloat16().double())
    unit = torch.exp2(stored.abs().log2().floor() - 7)  # in the last place
    largest = stored.abs().max()
    assert ((got - stored).abs() <= 0.76 * unit + SCALES_ROUNDED * largest).all()
    # As errors of rounding are, but for scales that are rounded themselves.
    error = ((got - stored) * stored.sign() / unit)[stored.abs() > 0.05 * largest]
    assert error.square().mean().sqrt() < 1.1 * 12**-0.5
    assert error.mean().abs() < 0.03


@pytest.mark.parametrize(("rows", "width", "out"), BLOCK_SIZES)
@pytest.mark.parametrize("kind", QUANTISED)
def test_quantised_weights(ops: Ops, kind: str, rows: int, width: int, out: int) -> None:
    x = random(rows, width)
    weight, up = (random_weight(kind, out, width, seed=seed) for seed in (1, 2))
    packed, gated = ops.pack_linear([weight]), ops.pack_gated(weight, up)
    exact = REFERENCE.pack_linear([weight]), REFERENCE.pack_gated(weight, up)
    # Eight bits of activations are about as exact as the eight bits of a bfloat16.
    for got, wanted in (
        (ops.linear(inputs(ops, x), packed), REFERENCE.linear(x, exact[0])),
        (
            ops.gated_linear(inputs(ops, x), gated, "silu"),
            REFERENCE.gated_linear(x, exact[1], "silu"),
        ),
    ):
        assert (got - wanted).norm() < 0.02 * wanted.norm()


@pytest.mark.parametrize(("rows", "width", "out"), BLOCK_SIZES)
@pytest.mark.parametrize("kind", QUANTISED + PLAIN)
@pytest.mark.parametrize("table", NATIVE_TABLES)
def test_products_are_exact_but_for_the_activations(
    table: str, kind: str, rows: int, width: int, out: int
) -> None:
    ops, x = NATIVE_TABLES[table], random(rows, width, scale=3.0)
    x[:, 32:64] = 0.0
    x[:, 64:96] *= 1e-3
    residual, bias = random(rows, out, seed=5), random(out, seed=6)
    weight, up = (random_weight(kind, out, width, seed=seed) for seed in (1, 2))
    rounded = as_multiplied(x, table, kind).double()
    exact = kind in PLAIN or in_eight_bits(table, kind)
    product, product_up = (
        rounded @ (w.tensor(torch.float64) if exact else multiplied_weight(ops, w)).T
        for w in (weight, up)
    )
    tolerance = PAIRS_ROUNDED if exact and kind == "Q4_1" else 2e-5
    near(
        ops.linear(x, ops.pack_linear([weight], bias), residual),
        product + bias + residual,
        tolerance,
    )
    near(ops.logits(x, ops.pack_linear([weight]), None), product, tolerance)
    near(ops.logits(x, ops.pack_linear([weight]), 3.0), 3.0 * torch.tanh(product / 3.0), tolerance)
    gated = ops.gated_linear(x, ops.pack_gated(weight, up), "silu")
    near(gated, F.silu(product) * product_up, tolerance)
    gated = ops.gated_linear(x, ops.pack_gated(weight, up), "gelu_tanh")
    near(gated, F.gelu(product, approximate="tanh") * product_up, tolerance)


@pytest.mark.parametrize("rows", [3, 200])
@pytest.mark.parametrize("kind", QUANTISED)
@pytest.mark.parametrize("table", NATIVE_TABLES)
def test_what_is_not_a_number_stays_in_its_row(table: str, kind: str, rows: int) -> None:
    ops, x = NATIVE_TABLES[table], random(rows, 512)
    packed = ops.pack_linear([random_weight(kind, 33, 512)])
    wanted = ops.linear(x, packed).clone()
    # The last one is beyond what is multiplied in eight bits.
    for row, value in ((0, torch.nan), (1, -torch.inf), (2, 1e12)):
        x[row, 100 + row] = value
    got = ops.linear(x, packed)
    assert got[0].isnan().all()
    assert not got[1].isfinite().any()
    if in_eight_bits(table, kind):
        assert got[1:3].isnan().all()
    torch.testing.assert_close(got[3:], wanted[3:], rtol=0, atol=0)


@pytest.mark.parametrize("kind", QUANTISED)
@pytest.mark.parametrize("table", NATIVE_TABLES)
def test_activations_that_are_next_to_nothing(table: str, kind: str) -> None:
    """They count as zeros in eight bits, and as what they are in bfloat16."""
    ops, x = NATIVE_TABLES[table], random(2, 512)
    packed = ops.pack_linear([random_weight(kind, 33, 512)])
    x[:, 32:64] = 0.0
    x[1] = 0.0
    wanted = ops.linear(x, packed).clone()
    assert not wanted[1].any()
    x[:, 32:64] = 1e-19
    got = ops.linear(x, packed)
    if in_eight_bits(table, kind):
        torch.testing.assert_close(got, wanted, rtol=0, atol=0)
    else:
        near(got[0], wanted[0], 1e-6)
        near(got[1] * 1e19, ops.linear(x * 1e19, packed)[1], 1e-2)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 50.0])
@pytest.mark.parametrize("shape", [(1, 576), (5, 33), (513, 64), (1, 1), (3, 2048)])
def test_rms_norm(ops: Ops, shape: tuple[int, int], scale: float) -> None:
    x = (random(*shape, scale=scale) + 0.5 * scale).bfloat16().float()
    weight = 1 + random(*shape[1:], seed=1, scale=0.2)
    add = random(*shape, seed=2)
    wanted = REFERENCE.rms_norm(x, REFERENCE.pack_norm(weight), 1e-5)
    packed = ops.pack_norm(weight)
    close(ops, ops.rms_norm(inputs(ops, x), packed, 1e-5), wanted)
    close(ops, ops.rms_norm(inputs(ops, x), packed, 1e-5, inputs(ops, add)), wanted + add)


def id_batch(ids: list[int], outputs: list[int]) -> RaggedBatch:
    zeros, ones = int64([0] * len(ids)), int64([1] * len(ids))
    table = int64([0]).reshape(1, 1)
    return RaggedBatch(int64(ids), zeros, zeros, ones, ones, table, zeros, int64(outputs))


@pytest.mark.parametrize("scale", [1.0, 48**0.5])
@pytest.mark.parametrize("kind", PLAIN + QUANTISED)
def test_embed(ops: Ops, kind: str, scale: float) -> None:
    table = random_weight(kind, 50, 256, size=1.0)
    ids = [3, 3, 49, 0]
    got = ops.embed(ops.plan(id_batch(ids, [])), ops.pack_embedding(table), scale)
    assert got.dtype == ops.activations
    wanted = table.tensor(torch.float32)[ids] * scale
    if kind == "Q4_1" and ops.name == "native":
        near(got, wanted, SCALES_ROUNDED)
    else:
        close(ops, got, wanted)


@pytest.mark.parametrize("outputs", [[], [2], [3, 0, 0, 2]])
def test_take_outputs(ops: Ops, outputs: list[int]) -> None:
    x = random(4, 48)
    got = ops.take_outputs(inputs(ops, x), ops.plan(id_batch([0] * 4, outputs)))
    assert torch.equal(got.float(), x[outputs])


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("rows", [0, 1, 3])
def test_logits_are_float32(ops: Ops, rows: int, softcap: float | None) -> None:
    x, weight = random(rows, 48), random_weight("F32", 290, 48)
    wanted = REFERENCE.logits(x, REFERENCE.pack_linear([weight]), softcap)
    for head in (ops.pack_linear([weight]), ops.tied_head(ops.pack_embedding(weight))):
        got = ops.logits(inputs(ops, x), head, softcap)
        assert got.dtype == torch.float32
        assert got.shape == (rows, 290)
        if rows:
            close(ops, got, wanted)


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("layout", ["one row", "all kinds", "prompt"])
@pytest.mark.parametrize("spec", SPECS)
def test_attend(ops: Ops, spec: str, layout: str, normed: bool) -> None:
    """With rotation and norms, which test_attention leaves out."""
    case = attention_case(SPECS[spec], LAYOUTS[layout])
    heads = case.spec.num_heads + case.spec.num_kv_heads
    norm = 1 + random(heads, case.spec.head_dim, seed=7, scale=0.3) if normed else None
    wanted, wanted_k, wanted_v = attend(REFERENCE, case, head_norm=norm)
    got, cache_k, cache_v = attend(ops, case, head_norm=norm)
    tolerance = 1e-5 if ops.dtype == torch.float32 else 3e-2
    assert got.dtype == ops.activations
    torch.testing.assert_close(got.float(), wanted, rtol=tolerance, atol=tolerance)
    tolerance = 1e-5 if ops.dtype == torch.float32 else 2**-6
    for cache, expected in ((cache_k, wanted_k), (cache_v, wanted_v)):
        torch.testing.assert_close(
            cache.float(), expected, rtol=tolerance, atol=tolerance, equal_nan=True
        )


def test_rotation_turns_pairs_by_the_angle() -> None:
    """Of the reference: keys land in the cache as complex numbers times e^(i angle)."""
    case = attention_case(SPECS["window"], LAYOUTS["prompt"])
    _, keys, _ = attend(REFERENCE, case)
    spec, positions = case.spec, case.batch.positions
    given = case.qkv.unflatten(1, (-1, spec.head_dim))[:, spec.num_heads :][:, : spec.num_kv_heads]
    half = spec.head_dim // 2
    turned = torch.complex(given[..., :half], given[..., half:]) * torch.exp(
        1j * torch.outer(torch.from_numpy(positions).double(), case.frequencies)
    ).unsqueeze(1)
    got = keys[case.batch.write_slots]
    torch.testing.assert_close(got[..., :half], turned.real.float())
    torch.testing.assert_close(got[..., half:], turned.imag.float())


def test_packed_bytes_are_counted() -> None:
    for ops in TABLES.values():
        before = ops.weight_bytes
        ops.pack_linear([random_weight("F32", 32, 64)], random(32))
        grown = ops.weight_bytes - before
        assert 32 * 64 * 2 <= grown <= 32 * 65 * 4 + 1024
    for ops in NATIVE_TABLES.values():
        embedding = ops.pack_embedding(random_weight("Q4_1", 64, 64))
        before = ops.weight_bytes
        ops.tied_head(embedding)
        assert ops.weight_bytes == before


def test_without_vector_code_torch_is_the_default(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if "portable" not in ISAS:
        pytest.skip("the native kernels were not built")
    portable = ops_by_name("native:portable", threads=1)
    monkeypatch.setattr("stolon.kernels.native_ops", lambda threads: portable)
    assert default_ops(1).name == "torch_cpu"
    assert "no vector code" in caplog.text


def test_tables_by_name() -> None:
    assert ops_by_name("reference").name == "reference"
    assert ops_by_name("torch_cpu").name == "torch_cpu"
    assert default_ops(1).name == ("native" if {*ISAS} - {"portable"} else "torch_cpu")
    for isa in ISAS:
        assert ops_by_name(f"native:{isa}", threads=1).isa == isa  # type: ignore[attr-defined]
    for wrong in ("cuda", "native:mmx", "reference:avx2"):
        with pytest.raises(InvalidRequest):
            ops_by_name(wrong)
