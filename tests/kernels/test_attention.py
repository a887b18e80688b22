"""Attention of every op table against attention written out row by row."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from stolon.kernels import AttentionSpec, Ops, RaggedBatch, reference_ops, torch_cpu_ops
from stolon.kernels.torch_cpu import TorchCpuOps
from stolon.kernels.torch_cpu.linear import PlainLinears

TABLES: dict[str, Ops] = {
    "reference": reference_ops(),
    "chosen": torch_cpu_ops(),
    "plain-float32": TorchCpuOps(PlainLinears(torch.float32)),
}


@dataclass(frozen=True)
class Layout:
    """Runs of one step. `shared` slots at the start of every context are the same for all runs."""

    q_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]
    consecutive: bool = False
    shared: int = 0


LAYOUTS = {
    "one row": Layout((1,), (1,)),
    "decode": Layout((1,), (77,)),
    "decode, consecutive": Layout((1,), (77,), consecutive=True),
    "prompt": Layout((40,), (40,)),
    "prompt, consecutive": Layout((513,), (513,), consecutive=True),
    "chunk": Layout((5,), (37,)),
    "chunk, consecutive": Layout((5,), (37,), consecutive=True),
    "long chunk": Layout((150,), (700,)),
    "equal decodes": Layout((1, 1, 1), (9, 9, 9)),
    "mixed decodes": Layout((1, 1, 1, 1), (1, 300, 12, 290)),
    "all kinds": Layout((1, 7, 1, 3, 1, 20), (30, 7, 2, 50, 400, 21)),
    "shared prefix": Layout((1, 1, 4), (30, 31, 40), shared=25),
}
SPECS = {
    "plain": AttentionSpec(4, 4, 64, 0.125),
    "shared heads": AttentionSpec(9, 3, 64, 0.125),
    "one kv head": AttentionSpec(9, 1, 96, 0.1),
    "wide": AttentionSpec(4, 2, 128, 0.09),
    "gemma": AttentionSpec(4, 1, 256, 0.0625, window=16),
    "window 1": AttentionSpec(2, 1, 64, 0.125, window=1),
    "window": AttentionSpec(4, 2, 16, 0.25, window=9),
    "softcap": AttentionSpec(4, 2, 64, 0.5, softcap=3.0),
    "softcap, window": AttentionSpec(4, 2, 64, 0.5, window=6, softcap=3.0),
}


def naive(q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> Tensor:
    """One row: q ``[heads, dim]`` over its context k, v ``[n, kv_heads, dim]``, in float64."""
    if spec.window is not None:
        k, v = k[-spec.window :], v[-spec.window :]
    out = []
    for head in range(spec.num_heads):
        shared = head // (spec.num_heads // spec.num_kv_heads)
        scores = (k[:, shared].double() @ q[head].double()) * spec.scale
        if spec.softcap is not None:
            scores = spec.softcap * torch.tanh(scores / spec.softcap)
        out.append(torch.softmax(scores, dim=0) @ v[:, shared].double())
    return torch.cat(out)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("table", TABLES)
def test_attention(table: str, name: str, layout: str) -> None:
    ops, spec, runs = TABLES[table], SPECS[name], LAYOUTS[layout]
    generator = torch.Generator().manual_seed(0)
    num_slots = sum(runs.kv_lens) + 5
    order = torch.arange(num_slots)
    if not runs.consecutive:
        order = torch.randperm(num_slots, generator=generator)
    slot_table = torch.full((len(runs.q_lens), max(runs.kv_lens) + 3), -1)
    taken = runs.shared
    for run, kv_len in enumerate(runs.kv_lens):
        slot_table[run, : runs.shared] = order[: runs.shared]
        slot_table[run, runs.shared : kv_len] = order[taken : taken + kv_len - runs.shared]
        taken += kv_len - runs.shared
    rows = sum(runs.q_lens)
    q = torch.randn(rows, spec.num_heads, spec.head_dim, generator=generator)
    # Slots that belong to no context hold NaN: nothing may be read from them.
    cache_k = torch.full((num_slots, spec.num_kv_heads, spec.head_dim), torch.nan)
    cache_v = cache_k.clone()
    for cache in (cache_k, cache_v):
        used = order[:taken]
        cache[used] = torch.randn(taken, *cache.shape[1:], generator=generator)
    q, cache_k, cache_v = (t.to(ops.dtype) for t in (q, cache_k, cache_v))

    write = torch.cat(
        [
            slot_table[i, kv - n : kv]
            for i, (n, kv) in enumerate(zip(runs.q_lens, runs.kv_lens, strict=True))
        ]
    )
    new_k, new_v = (
        torch.randn(rows, *cache_k.shape[1:], generator=generator).to(ops.dtype) for _ in "kv"
    )
    batch = RaggedBatch(
        input_ids=torch.zeros(rows, dtype=torch.int64),
        positions=torch.zeros(rows, dtype=torch.int64),
        write_slots=write,
        q_lens=list(runs.q_lens),
        kv_lens=list(runs.kv_lens),
        slot_table=slot_table,
        table_rows=list(range(len(runs.q_lens))),
        output_rows=torch.arange(rows),
    )
    with torch.inference_mode():
        plan = ops.plan(batch)
        ops.write_kv(cache_k, cache_v, plan, new_k, new_v)
        got = ops.attention(q, cache_k, cache_v, plan, spec)

    assert torch.equal(cache_k[write], new_k)
    assert torch.equal(cache_v[write], new_v)
    wanted, row = [], 0
    for run, (q_len, kv_len) in enumerate(zip(runs.q_lens, runs.kv_lens, strict=True)):
        for length in range(kv_len - q_len + 1, kv_len + 1):
            slots = slot_table[run, :length]
            wanted.append(naive(q[row], cache_k[slots], cache_v[slots], spec))
            row += 1
    tolerance = 1e-5 if ops.dtype == torch.float32 else 2e-2
    assert got.shape == (rows, spec.num_heads * spec.head_dim)
    assert got.dtype == ops.dtype
    torch.testing.assert_close(got.double(), torch.stack(wanted), rtol=tolerance, atol=tolerance)
