"""What the tests of the op tables share: the tables, random weights of every stored kind, step layouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stolon.kernels import (
    AttentionSpec,
    Ops,
    RaggedBatch,
    StoredWeight,
    native_ops,
    reference_ops,
    torch_cpu_ops,
)
from stolon.kernels.torch_cpu import TorchCpuOps
from stolon.kernels.torch_cpu.linear import PlainLinears
from stolon.srt.loaders.dequant import dequantise
from stolon.srt.loaders.ggml import GGMLType


def native_instruction_sets() -> list[str]:
    """Those that were built and that this processor runs; none where there was no compiler."""
    try:
        from stolon.kernels.cpu import instruction_sets
    except ModuleNotFoundError:
        return []
    return instruction_sets()


ISAS = native_instruction_sets()
REFERENCE = reference_ops()
TORCH_TABLES: dict[str, Ops] = {
    "torch_cpu": torch_cpu_ops(),
    "torch_cpu-float32": TorchCpuOps(PlainLinears(torch.float32)),
    "torch_cpu-bfloat16": TorchCpuOps(PlainLinears(torch.bfloat16)),
}
# One thread: that more of them change nothing is tested apart, in test_native_invariance.
NATIVE_TABLES: dict[str, Ops] = {f"native-{isa}": native_ops(1, isa) for isa in ISAS}
TABLES = TORCH_TABLES | NATIVE_TABLES


def random(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    """Values that bfloat16 represents, so that every table starts from the same numbers."""
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale
    return values.bfloat16().float()


QUANTISED = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
PLAIN = ("F32", "F16", "BF16")
# Where a block has its float16 scales, and how large codes times integer scales are in it, about.
_HALVES = {
    "Q4_0": ([0], 4.6),
    "Q4_1": ([0, 2], 9.0),
    "Q5_0": ([0], 9.2),
    "Q5_1": ([0, 2], 18.0),
    "Q8_0": ([0], 74.0),
    "Q4_K": ([0, 2], 330.0),
    "Q5_K": ([0, 2], 660.0),
    "Q6_K": ([208], 1370.0),
}


def random_weight(
    kind: str, rows: int, inputs: int, *, seed: int = 0, size: float | None = None
) -> StoredWeight:
    """A matrix of any kind: random floats, or random blocks with any codes and scales in them.

    `size` is the root mean square of its values, about; by default products are as large as inputs.
    """
    size = inputs**-0.5 if size is None else size
    if kind in PLAIN:
        dtype = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[kind]
        return StoredWeight.of(random(rows, inputs, seed=seed + 77, scale=size).to(dtype))
    generator = np.random.default_rng(seed)
    stored = GGMLType[kind]
    blocks = rows * inputs // stored.block_size
    data = generator.integers(0, 256, (blocks, stored.block_bytes), dtype=np.uint8)
    halves, spread = _HALVES[kind]
    for at in halves:
        sign = generator.choice([-1.0, 1.0], blocks)
        values = (generator.uniform(0.5, 1.5, blocks) * sign * size / spread).astype(np.float16)
        data[:, at : at + 2] = values[:, None].view(np.uint8)
    flat = data.ravel()
    return StoredWeight(
        kind, flat, (rows, inputs), partial(dequantise, flat, stored, (rows, inputs))
    )


def in_eight_bits(table: str, kind: str) -> bool:
    """Whether a native table multiplies weights of a kind with activations in eight bits. Where a matrix
    unit multiplies, it takes both in bfloat16."""
    return kind in QUANTISED and table != "native-amx"


def as_multiplied(x: Tensor, table: str, kind: str) -> Tensor:
    """Activations as a native table multiplies them with weights of a kind, in float32: in eight bits
    with a scale for 32 inputs, in bfloat16, or as they are."""
    if not in_eight_bits(table, kind):
        return x if kind in ("F32", "F16") else x.bfloat16().float()
    blocks = x.unflatten(1, (-1, 32))
    largest = blocks.abs().amax(dim=2, keepdim=True)
    # Scales are floats of six bits behind the leading one: the least that fits, and the next.
    step = 1 << 17
    # Not largest / 127.49, which torch computes as a product with a reciprocal.
    bits = (largest / torch.full_like(largest, 127.49)).view(torch.int32) + (step - 1) & ~(step - 1)
    best = least = None
    for candidate in (bits, bits + step):  # whichever rounds the block with the smaller error
        scale = candidate.view(torch.float32)
        scaled = (blocks * (1.0 / scale)).nan_to_num(0.0)
        codes = torch.round(scaled)
        error = scale.square() * (scaled - codes).square().sum(dim=2, keepdim=True)
        if least is None:
            best, least = codes * scale, error
        else:
            best = torch.where(error < least, codes * scale, best)
    return best.flatten(1)


def int64(values: Sequence[int] | range) -> Any:
    return np.array(values, np.int64)


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
    "long shared prefix": Layout((1, 1, 4, 1, 1), (301, 302, 310, 290, 299), shared=280),
}
SPECS = {
    "plain": AttentionSpec(4, 4, 64, 0.125),
    "shared heads": AttentionSpec(9, 3, 64, 0.125),
    "one kv head": AttentionSpec(9, 1, 96, 0.1),
    "seven to one": AttentionSpec(14, 2, 64, 0.125),
    "wide": AttentionSpec(4, 2, 128, 0.09),
    "gemma": AttentionSpec(4, 1, 256, 0.0625, window=16),
    "window 1": AttentionSpec(2, 1, 64, 0.125, window=1),
    "window": AttentionSpec(4, 2, 16, 0.25, window=9),
    "odd heads": AttentionSpec(5, 5, 80, 0.11),
    "softcap": AttentionSpec(4, 2, 64, 0.5, softcap=3.0),
    "softcap, window": AttentionSpec(4, 2, 64, 0.5, window=6, softcap=3.0),
}


@dataclass(frozen=True)
class Case:
    """A step of one attention layer.

    Attributes:
        qkv: float32 ``[T, (heads + 2 * kv_heads) * head_dim]``.
        cache_k, cache_v: float32 ``[slots, kv_heads, head_dim]`` before the step. Slots that belong to no
            context hold NaN: nothing may be read from them.
        frequencies: float64 ``[head_dim // 2]``, of the rotation.
    """

    batch: RaggedBatch
    spec: AttentionSpec
    qkv: Tensor
    cache_k: Tensor
    cache_v: Tensor
    frequencies: Tensor


def attention_case(spec: AttentionSpec, runs: Layout, *, seed: int = 0) -> Case:
    generator = torch.Generator().manual_seed(seed)
    num_slots = sum(runs.kv_lens) + 5
    order = torch.arange(num_slots)
    if not runs.consecutive:
        order = torch.randperm(num_slots, generator=generator)
    table = torch.full((len(runs.q_lens), max(runs.kv_lens) + 3), num_slots - 1)
    taken = runs.shared
    for run, kv_len in enumerate(runs.kv_lens):
        table[run, : runs.shared] = order[: runs.shared]
        table[run, runs.shared : kv_len] = order[taken : taken + kv_len - runs.shared]
        taken += kv_len - runs.shared
    positions = [
        p for q, kv in zip(runs.q_lens, runs.kv_lens, strict=True) for p in range(kv - q, kv)
    ]
    write = torch.cat(
        [
            table[i, kv - q : kv]
            for i, (q, kv) in enumerate(zip(runs.q_lens, runs.kv_lens, strict=True))
        ]
    )
    caches = []
    for _ in "kv":
        cache = torch.full((num_slots, spec.num_kv_heads, spec.head_dim), torch.nan)
        cache[order[:taken]] = torch.randn(taken, *cache.shape[1:], generator=generator)
        caches.append(cache.bfloat16().float())
    rows = len(positions)
    width = (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
    frequencies = torch.logspace(0, -4, spec.head_dim // 2, dtype=torch.float64)
    return Case(
        RaggedBatch(
            input_ids=int64([0] * rows),
            positions=int64(positions),
            write_slots=write.numpy(),
            q_lens=int64(runs.q_lens),
            kv_lens=int64(runs.kv_lens),
            slot_table=table.numpy(),
            table_rows=int64(range(len(runs.q_lens))),
            output_rows=int64(range(rows)),
        ),
        spec,
        random(rows, width, seed=seed + 1),
        caches[0],
        caches[1],
        frequencies,
    )


def attend(
    ops: Ops, case: Case, *, head_norm: Tensor | None = None, turn: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """A table's result of a case, and the caches after it. Without `turn` nothing is rotated."""
    caches = [cache.to(ops.dtype, copy=True) for cache in (case.cache_k, case.cache_v)]
    out = ops.attend(
        case.qkv.to(ops.activations),
        spec=case.spec,
        head_norm=None if head_norm is None else ops.pack_norm(head_norm),
        eps=1e-5,
        rotary=ops.rope_table(case.frequencies * turn, int(case.batch.kv_lens.max()) + 1),
        plan=ops.plan(case.batch),
        cache_k=caches[0],
        cache_v=caches[1],
    )
    return out, caches[0], caches[1]
