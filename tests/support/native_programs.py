"""Small programs for the C++ extension, with what they should compute in numpy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def ints(*values: int) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


def floats(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def packed(native: Any, team: Any, weight: Floats, kind: str = "F32") -> Any:
    """A float32 weight ``[columns, inputs]``, stored as `kind` (F32, BF16 or Q8_0)."""
    columns, inputs = weight.shape
    return native.pack(team, kind, stored(weight, kind), columns, inputs)


def stored(weight: Floats, kind: str) -> NDArray[np.uint8]:
    if kind == "F32":
        return weight.view(np.uint8).reshape(-1)
    if kind == "BF16":
        return (weight.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8).reshape(-1)
    assert kind == "Q8_0"
    blocks = weight.reshape(-1, 32)
    scale = (np.abs(blocks).max(axis=1, keepdims=True) / 127).astype(np.float16)
    values = np.round(blocks / np.maximum(scale.astype(np.float32), 1e-8)).astype(np.int8)
    return np.concatenate([scale.view(np.uint8), values.view(np.uint8)], axis=1).reshape(-1)


def rms(x: Floats, weight: Floats, eps: float) -> Floats:
    return x / np.sqrt((x * x).mean(axis=1, keepdims=True) + np.float32(eps)) * weight


def plain_step(native: Any, rows: int, outputs: Sequence[int] = ()) -> Any:
    """A step of one run for programs without attention."""
    zeros = np.zeros(rows, np.int64)
    lengths = ints(*([rows] if rows else []))
    table = np.zeros((1, max(rows, 1)), np.int64)
    rows_of = np.zeros(len(lengths), np.int64)
    return native.Step(zeros, zeros, zeros, lengths, lengths, table, rows_of, ints(*outputs))


@dataclass
class Sequences:
    """Contexts that grow by steps: slots are given out as they come."""

    slots: int
    table: NDArray[np.int64]
    lengths: list[int]
    used: int = 0

    @classmethod
    def new(cls, count: int, width: int = 64, slots: int = 256) -> Sequences:
        return cls(slots, np.zeros((count, width), np.int64), [0] * count)

    def arrays(
        self, ids: Sequence[Sequence[int]], outputs: Sequence[int]
    ) -> dict[str, NDArray[np.int64]]:
        """The arrays of a step that gives each sequence the tokens of its entry of `ids`."""
        run = [(i, tokens) for i, tokens in enumerate(ids) if tokens]
        positions: list[int] = []
        write: list[int] = []
        for i, tokens in run:
            for _ in tokens:
                self.table[i, self.lengths[i]] = self.used
                write.append(self.used)
                positions.append(self.lengths[i])
                self.used += 1
                self.lengths[i] += 1
        return {
            "input_ids": ints(*(t for _, tokens in run for t in tokens)),
            "positions": ints(*positions),
            "write_slots": ints(*write),
            "q_lens": ints(*(len(tokens) for _, tokens in run)),
            "kv_lens": ints(*(self.lengths[i] for i, _ in run)),
            "slot_table": self.table,
            "table_rows": ints(*(i for i, _ in run)),
            "output_rows": ints(*outputs),
        }


class TinyDecoder:
    """Two layers of everything: norms, biased projections, attention (one layer with a window), a gated
    MLP, residuals, and a head over the output rows."""

    hidden, heads, kv_heads, dim, inner, vocab, positions = 64, 4, 2, 16, 96, 50, 64

    def __init__(self, native: Any, team: Any, kind: str = "Q8_0", slots: int = 256) -> None:
        self.native = native
        count = iter(range(1000))

        def matrix(columns: int, inputs: int) -> Any:
            weight = floats(next(count), columns, inputs) / np.float32(np.sqrt(inputs))
            return packed(native, team, weight, kind)

        def factor() -> Floats:
            return 1 + floats(next(count), self.hidden) / 10

        rotary = native.Rotary(0.3 ** np.arange(self.dim // 2), self.positions)
        program = native.Program(team)
        table = matrix(self.vocab, self.hidden)
        x = program.embed(table, 8.0)
        self.caches = []
        for layer in range(2):
            cache = np.zeros((2, slots, self.kv_heads, self.dim), np.uint16)
            self.caches.append(cache)
            y = program.norm(x, factor(), 1e-5)
            parts = [matrix(n * self.dim, self.hidden) for n in (4, 2, 2)]
            qkv = program.linear(y, parts, floats(next(count), 8 * self.dim))
            y = program.attend(
                qkv,
                heads=self.heads,
                kv_heads=self.kv_heads,
                head_dim=self.dim,
                scale=0.25,
                window=5 * layer,
                rotary=rotary,
                cache_k=cache[0],
                cache_v=cache[1],
            )
            x = program.linear(y, [matrix(self.hidden, self.heads * self.dim)], residual=x)
            y = program.norm(x, factor(), 1e-5)
            gate, up = matrix(self.inner, self.hidden), matrix(self.inner, self.hidden)
            y = program.gated(y, [gate], [up], "silu")
            x = program.linear(y, [matrix(self.hidden, self.inner)], residual=x)
        y = program.norm(program.take_outputs(x), factor(), 1e-5)
        program.output(program.logits(y, [table], 30.0))
        program.output(x)
        program.finish()
        self.program = program

    def step(self, arrays: dict[str, Any]) -> tuple[Floats, Floats]:
        """Logits of the output rows, and the hidden state of all rows."""
        logits = np.full((len(arrays["output_rows"]), self.vocab), np.nan, np.float32)
        hidden = np.full((len(arrays["input_ids"]), self.hidden), np.nan, np.float32)
        self.program.run(self.native.Step(**arrays), [], [logits, hidden])
        return logits, hidden
