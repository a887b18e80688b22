"""What the native kernels give for a row depends on the row and its context alone, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.op_cases import (
    ISAS,
    PLAIN,
    QUANTISED,
    SPECS,
    Layout,
    attend,
    attention_case,
    random,
    random_weight,
)
from torch import Tensor

from stolon.kernels import AttentionSpec, Ops, native_ops

# Every count of rows up to here is tried, and some beyond.
ROW_COUNTS = [*range(1, 65), 100, 129, 256]
THREADS = (1, 2, 4)


@pytest.fixture(scope="module", params=ISAS)
def teams(request: pytest.FixtureRequest) -> dict[int, Ops]:
    return {threads: native_ops(threads, str(request.param)) for threads in THREADS}


@pytest.fixture(autouse=True)
def _inference() -> object:
    with torch.inference_mode():
        yield


def same(got: Tensor, wanted: Tensor) -> None:
    assert torch.equal(got.view(torch.int32), wanted.view(torch.int32))


def check_rows(x: Tensor, run: Callable[[Tensor], Tensor], counts: list[int]) -> Tensor:
    """Rows of x computed together, alone and in groups; returns the result for all of them."""
    wanted = run(x)
    for count in counts:
        begin = (7 * count) % (len(x) - count + 1)
        same(run(x[begin : begin + count]), wanted[begin : begin + count])
    return wanted


@pytest.mark.parametrize("kind", QUANTISED + PLAIN)
def test_products(teams: dict[int, Ops], kind: str) -> None:
    width, outputs = 512, 100
    x = random(max(ROW_COUNTS), width)
    # Rows of unlike sizes: a scale that is shared among rows shows.
    x *= torch.logspace(-3, 3, len(x)).unsqueeze(1)
    weight, up = (random_weight(kind, outputs, width, seed=seed) for seed in (1, 2))
    results = []
    for threads, ops in teams.items():
        packed, gated = (
            ops.pack_linear([weight, up], random(2 * outputs)),
            ops.pack_gated(weight, up),
        )
        head = ops.pack_linear([weight])
        counts = ROW_COUNTS if threads == 2 else [1, 5, 64]
        results.append(
            [
                check_rows(x, lambda x, o=ops, p=packed: o.linear(x, p), counts),
                check_rows(x, lambda x, o=ops, p=gated: o.gated_linear(x, p, "silu"), counts),
                check_rows(x, lambda x, o=ops, p=head: o.logits(x, p, 30.0), counts),
            ]
        )
    for other in results[1:]:
        for got, wanted in zip(other, results[0], strict=True):
            same(got, wanted)


@pytest.mark.parametrize("kinds", [["Q4_1"], ["Q4_1", "Q8_0"]])
@pytest.mark.parametrize("width", [32, 96, 576])
def test_products_of_many_rows(teams: dict[int, Ops], kinds: list[str], width: int) -> None:
    """Rows that lie together where all weights take that, tables of scales, an odd number of groups of
    inputs, pieces of unlike sizes, and blocks of rows on several lanes."""
    x = random(2100, width) * torch.logspace(-3, 3, 2100).unsqueeze(1)
    x[300] = 0.0
    x[301, 7] = torch.nan
    weights = [random_weight(kind, 40, width, seed=seed) for seed, kind in enumerate(kinds)]
    residual = random(2100, 40 * len(weights), seed=5)
    for ops in teams.values():
        packed, gated = ops.pack_linear(weights), ops.pack_gated(weights[0], weights[-1])
        for run in (
            lambda rows, o=ops, p=packed: o.linear(x[rows], p, residual[rows]),
            lambda rows, o=ops, p=gated: o.gated_linear(x[rows], p, "silu"),
        ):
            wanted = torch.cat([run(slice(at, at + 50)) for at in range(0, 2100, 50)])
            for count in (191, 192, 193, 197, 303, 512, 1023, 1030, 2100):
                same(run(slice(2100 - count, 2100)), wanted[2100 - count :])
                same(run(slice(0, count)), wanted[:count])


@pytest.mark.parametrize("kind", ["Q4_1", "Q6_K", "BF16", "F32"])
def test_company_of_other_matrices_and_a_residual(teams: dict[int, Ops], kind: str) -> None:
    """Columns are the same whichever matrices lie beside them; the residual is added last."""
    ops = teams[2]
    x, residual = random(9, 256), random(9, 70, seed=3)
    parts = [random_weight(kind, n, 256, seed=n) for n in (32, 19, 19)]
    alone = torch.cat([ops.linear(x, ops.pack_linear([part])) for part in parts], dim=1)
    together = ops.pack_linear(parts)
    same(ops.linear(x, together), alone)
    same(ops.linear(x, together, residual), alone + residual)


@pytest.mark.parametrize("width", [48, 257, 576, 896])
def test_norms(teams: dict[int, Ops], width: int) -> None:
    x, factor = random(max(ROW_COUNTS), width), random(width, seed=1)
    first = None
    for ops in teams.values():
        packed = ops.pack_norm(factor)
        got = check_rows(x, lambda x, o=ops, p=packed: o.rms_norm(x, p, 1e-6), ROW_COUNTS)
        added = ops.rms_norm(x, packed, 1e-6, x)
        same(added, got + x)
        same(got, got if first is None else first)
        first = got


# One sequence whose last rows are attended in many ways: as one prompt, in chunks, token by token.
LENGTH = 530
ATTENTION = ["plain", "shared heads", "one kv head", "gemma", "window", "softcap", "odd heads"]


def sequence(spec: AttentionSpec) -> tuple[Tensor, Callable[..., Tensor]]:
    """All projections of a sequence, and a function that attends its rows `begin` to `end`, given the
    rest of the context in the cache."""
    whole = attention_case(spec, Layout((LENGTH,), (LENGTH,)))

    def rows(ops: Ops, begin: int, end: int) -> Tensor:
        """By a step of those rows alone."""
        chunk = whole.batch
        cached = attend_cache(ops, whole)
        batch = replace(
            chunk,
            input_ids=chunk.input_ids[begin:end],
            positions=chunk.positions[begin:end],
            write_slots=chunk.write_slots[begin:end],
            q_lens=np.array([end - begin]),
            kv_lens=np.array([end]),
            output_rows=np.arange(end - begin),
        )
        case = replace(
            whole, batch=batch, qkv=whole.qkv[begin:end], cache_k=cached[0], cache_v=cached[1]
        )
        return attend(ops, case)[0]

    caches: dict[int, tuple[Tensor, Tensor]] = {}

    def attend_cache(ops: Ops, case: object) -> tuple[Tensor, Tensor]:
        if id(ops) not in caches:
            _, k, v = attend(ops, whole)
            caches[id(ops)] = k.float(), v.float()
        return caches[id(ops)]

    return whole.qkv, rows


@pytest.mark.parametrize("name", ATTENTION)
def test_chunks_of_attention(teams: dict[int, Ops], name: str) -> None:
    _, rows = sequence(SPECS[name])
    wanted = rows(teams[1], 0, LENGTH)
    for ops in teams.values():
        same(rows(ops, 0, LENGTH), wanted)
    ops = teams[2]
    for size in (1, 2, 3, 5, 8, 16, 17, 31, 32, 33, 64, 65, 100, 128, 129, 255, 256, 257, 512):
        for begin in {0, 1, 127, 128, (13 * size) % 200, LENGTH - size}:
            if begin + size <= LENGTH:
                same(rows(ops, begin, begin + size), wanted[begin : begin + size])


@pytest.mark.parametrize("shared", [0, 5, 128, 300, 385])
@pytest.mark.parametrize("name", ATTENTION)
def test_company_in_attention(teams: dict[int, Ops], name: str, shared: int) -> None:
    """Runs of one step, with and without a prefix that all of them share, against each run alone."""
    spec = SPECS[name]
    layouts = {
        "decodes": Layout((1,) * 40, tuple(shared + 1 + 3 * i for i in range(40)), shared=shared),
        "both": Layout(
            (1, 9, 1, 30, 1, 1), tuple(shared + n for n in (40, 9, 1, 77, 130, 2)), shared=shared
        ),
    }
    for layout in layouts.values():
        case = attention_case(spec, layout)
        first = None
        for ops in teams.values():
            got, cache_k, cache_v = attend(ops, case)
            same(got, got if first is None else first)
            first = got
        ops = teams[2]
        runs, start = case.batch, 0
        got, cache_k, cache_v = attend(ops, case)
        for run, q_len in enumerate(layout.q_lens):
            end = start + q_len
            alone = replace(
                runs,
                input_ids=runs.input_ids[start:end],
                positions=runs.positions[start:end],
                write_slots=runs.write_slots[start:end],
                q_lens=runs.q_lens[run : run + 1],
                kv_lens=runs.kv_lens[run : run + 1],
                table_rows=runs.table_rows[run : run + 1],
                output_rows=np.arange(q_len),
            )
            one = replace(
                case,
                batch=alone,
                qkv=case.qkv[start:end],
                cache_k=cache_k.float(),
                cache_v=cache_v.float(),
            )
            same(attend(ops, one)[0], got[start:end])
            start = end
