"""Attention of every op table against attention written out row by row."""

from __future__ import annotations

import pytest
import torch
from support.op_cases import LAYOUTS, REFERENCE, SPECS, TABLES, attend, attention_case
from torch import Tensor

from stolon.kernels import AttentionSpec, Ops

ALL: dict[str, Ops] = {"reference": REFERENCE} | TABLES


def naive(q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> Tensor:
    """One row: q ``[heads, dim]`` over its context k, v ``[n, kv_heads, dim]``, in float64."""
    if spec.window is not None:
        k, v = k[-spec.window :], v[-spec.window :]
    share = spec.num_heads // spec.num_kv_heads
    keys, values = (t.double().repeat_interleave(share, dim=1) for t in (k, v))
    scores = torch.einsum("hd,khd->hk", q.double(), keys) * spec.scale
    if spec.softcap is not None:
        scores = spec.softcap * torch.tanh(scores / spec.softcap)
    return torch.einsum("hk,khd->hd", torch.softmax(scores, dim=1), values).flatten()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("table", ALL)
def test_attention(table: str, name: str, layout: str) -> None:
    ops, spec, runs = ALL[table], SPECS[name], LAYOUTS[layout]
    case = attention_case(spec, runs)
    with torch.inference_mode():
        got, cache_k, cache_v = attend(ops, case, turn=False)
    heads = case.qkv.unflatten(1, (-1, spec.head_dim))
    queries, keys, values = heads.split((spec.num_heads, spec.num_kv_heads, spec.num_kv_heads), 1)
    slots = case.batch.write_slots
    assert torch.equal(cache_k[slots].float(), keys)
    assert torch.equal(cache_v[slots].float(), values)
    untouched = torch.ones(len(cache_k), dtype=torch.bool)
    untouched[slots] = False
    for cache, before in ((cache_k, case.cache_k), (cache_v, case.cache_v)):
        torch.testing.assert_close(
            cache[untouched].float(), before[untouched], rtol=0, atol=0, equal_nan=True
        )

    wanted, row = [], 0
    for run, (q_len, kv_len) in enumerate(zip(runs.q_lens, runs.kv_lens, strict=True)):
        context = case.batch.slot_table[run]
        for length in range(kv_len - q_len + 1, kv_len + 1):
            seen = context[:length]
            wanted.append(naive(queries[row], cache_k[seen], cache_v[seen], spec))
            row += 1
    tolerance = 1e-5 if ops.dtype == torch.float32 else 2e-2
    assert got.shape == (row, spec.num_heads * spec.head_dim)
    assert got.dtype == ops.activations
    torch.testing.assert_close(got.double(), torch.stack(wanted), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("layout", ["decode", "long chunk", "long shared prefix"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("table", TABLES)
def test_a_key_that_is_no_number_is_not_passed_over(table: str, value: float, layout: str) -> None:
    """Every row that sees it shows it, in the heads that it belongs to, and in no other."""
    ops, spec, runs = TABLES[table], SPECS["shared heads"], LAYOUTS[layout]
    case = attention_case(spec, runs)
    first = case.batch.slot_table[0, 3]
    case.cache_k[first, 1, :] = value * case.cache_k[first, 1, :].sign()
    with torch.inference_mode():
        got, *_ = attend(ops, case)
    shown = ~got.unflatten(1, (spec.num_kv_heads, -1)).isfinite().all(dim=2)
    sees = [first in case.batch.slot_table[run, :4] for run in range(len(runs.q_lens))]
    rows = torch.tensor(sees).repeat_interleave(torch.tensor(runs.q_lens))
    assert not shown[:, [0, 2]].any()
    assert not shown[~rows].any()
    assert shown[rows, 1].all()
