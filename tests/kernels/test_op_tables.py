"""Every op table against the reference in float32, on one table of cases."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from stolon.errors import InvalidRequest
from stolon.kernels import Ops, ops_by_name, reference_ops, torch_cpu_ops
from stolon.kernels.torch_cpu import TorchCpuOps
from stolon.kernels.torch_cpu.linear import PlainLinears

REFERENCE = reference_ops()
TABLES = {
    "chosen": torch_cpu_ops(),
    "plain-float32": TorchCpuOps(PlainLinears(torch.float32)),
    "plain-bfloat16": TorchCpuOps(PlainLinears(torch.bfloat16)),
}
SIZES = [(1, 48, 80), (2, 33, 17), (7, 576, 960), (32, 64, 129), (513, 96, 64)]


@pytest.fixture(params=TABLES)
def ops(request: pytest.FixtureRequest) -> Ops:
    return TABLES[request.param]


@pytest.fixture(autouse=True)
def _inference() -> object:
    with torch.inference_mode():
        yield


def random(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    """Values that bfloat16 represents, so that every table starts from the same numbers."""
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale
    return values.bfloat16().float()


def close(ops: Ops, got: Tensor, wanted: Tensor) -> None:
    """Up to rounding of the result (and of one intermediate) in the table's dtype."""
    tolerance = 1e-5 if ops.dtype == torch.float32 else 2**-6
    spread = wanted.abs().max()
    torch.testing.assert_close(
        got.float(), wanted.float(), rtol=tolerance, atol=float(tolerance * spread)
    )


@pytest.mark.parametrize(("rows", "width", "out"), SIZES)
@pytest.mark.parametrize("with_bias", [False, True])
def test_linear(ops: Ops, rows: int, width: int, out: int, with_bias: bool) -> None:
    x, weight = random(rows, width), random(out, width, seed=1, scale=width**-0.5)
    bias = random(out, seed=2) if with_bias else None
    residual = random(rows, out, seed=3)
    wanted = torch.nn.functional.linear(x, weight, bias)
    packed = ops.pack_linear(weight, bias)
    got = ops.linear(x.to(ops.dtype), packed)
    assert got.dtype == ops.dtype
    close(ops, got, wanted)
    close(ops, ops.linear_add(x.to(ops.dtype), packed, residual.to(ops.dtype)), wanted + residual)


@pytest.mark.parametrize(("rows", "width", "inner"), SIZES)
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gated_linear(ops: Ops, rows: int, width: int, inner: int, activation: str) -> None:
    x = random(rows, width)
    gate, up = (random(inner, width, seed=s, scale=width**-0.5) for s in (1, 2))
    wanted = REFERENCE.gated_linear(x, REFERENCE.pack_gated(gate, up), activation)
    close(ops, ops.gated_linear(x.to(ops.dtype), ops.pack_gated(gate, up), activation), wanted)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 50.0])
@pytest.mark.parametrize("shape", [(1, 576), (5, 33), (513, 64), (3, 4, 16), (1, 12, 64)])
def test_rms_norm(ops: Ops, shape: tuple[int, ...], scale: float) -> None:
    x = random(*shape, scale=scale) + 0.5 * scale
    weight = 1 + random(*shape[1:], seed=1, scale=0.2)
    wanted = REFERENCE.rms_norm(x.bfloat16().float(), REFERENCE.pack_norm(weight), 1e-5)
    close(ops, ops.rms_norm(x.bfloat16().to(ops.dtype), ops.pack_norm(weight), 1e-5), wanted)


@pytest.mark.parametrize("dim", [16, 64, 96, 128, 256])
@pytest.mark.parametrize("rows", [1, 5, 130])
def test_rope_keeps_products_and_rotates_by_the_angle(ops: Ops, rows: int, dim: int) -> None:
    x = random(rows, 3, dim)
    positions = torch.arange(rows) * 7
    angles = torch.outer(
        torch.arange(1000, dtype=torch.float64), torch.logspace(0, -4, dim // 2).double()
    )
    wanted = REFERENCE.rope(x, REFERENCE.rope_rows(REFERENCE.rope_table(angles), positions))
    order = ops.rotary_order(dim)
    order = torch.arange(dim) if order is None else order
    given = x[:, :, order].to(ops.dtype)
    got = ops.rope(given, ops.rope_rows(ops.rope_table(angles), positions))
    close(ops, got, wanted[:, :, order])


def test_rope_of_the_reference_is_a_rotation() -> None:
    x = random(4, 1, 8)
    angles = torch.outer(torch.arange(4).double(), torch.tensor([1.0, 0.5, 0.1, 0.01]).double())
    out = REFERENCE.rope(x, REFERENCE.rope_rows(REFERENCE.rope_table(angles), torch.arange(4)))
    turned = torch.complex(x[..., :4], x[..., 4:]) * torch.exp(1j * angles).unsqueeze(1)
    torch.testing.assert_close(out[..., :4], turned.real.float())
    torch.testing.assert_close(out[..., 4:], turned.imag.float())


@pytest.mark.parametrize("scale", [1.0, 48**0.5])
def test_embed_and_add(ops: Ops, scale: float) -> None:
    table, ids = random(50, 48), torch.tensor([3, 3, 49, 0])
    got = ops.embed(ids, table.to(ops.dtype), scale)
    close(ops, got, table[ids] * scale)
    other = random(4, 48, seed=1)
    close(ops, ops.add(got, other.to(ops.dtype, copy=True)), table[ids] * scale + other)


@pytest.mark.parametrize("softcap", [None, 2.0])
def test_logits_are_float32(ops: Ops, softcap: float | None) -> None:
    x, weight = random(3, 48), random(290, 48, seed=1, scale=48**-0.5)
    wanted = REFERENCE.logits(x, REFERENCE.pack_linear(weight), softcap)
    got = ops.logits(x.to(ops.dtype), ops.pack_linear(weight), softcap)
    assert got.dtype == torch.float32
    close(ops, got, wanted)


def test_tables_by_name() -> None:
    assert ops_by_name("reference").name == "reference"
    assert ops_by_name("torch_cpu").name == "torch_cpu"
    with pytest.raises(InvalidRequest, match="no op table named 'cuda'"):
        ops_by_name("cuda")
