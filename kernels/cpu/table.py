"""The op table over the C++ kernels.

Every call adds one operation to a `_native.Program`. In a recorded step all calls of a model go to one
program, which is then run again and again by one native call a step; what flows between the calls are
`Handle`s. A call on tensors makes a program of its own and runs it at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

import stolon.kernels.cpu._native as _native
from stolon.kernels.cores import usable_cores
from stolon.kernels.cpu.step import Floats, NativeStep, native_step
from stolon.kernels.ops import (
    Activation,
    AttentionSpec,
    RaggedBatch,
    RecordedStep,
    Step,
    StoredWeight,
)


@dataclass(frozen=True, slots=True)
class Handle:
    """A value ``[T or S, width]`` that a program will compute, by the number of its buffer."""

    program: _native.Program
    buffer: int
    width: int


@dataclass(frozen=True, slots=True)
class Recording:
    """The plan, and the batch, of a step that is being recorded."""

    program: _native.Program


@dataclass(frozen=True, slots=True)
class Linear:
    """Matrices whose columns (outputs) follow one another."""

    matrices: list[_native.Matrix]
    bias: Floats | None

    @property
    def columns(self) -> int:
        return sum(matrix.columns for matrix in self.matrices)


@dataclass(frozen=True, slots=True)
class Gated:
    gate: _native.Matrix
    up: _native.Matrix


def instruction_sets() -> list[str]:
    """Those that this processor runs, best first: of ``amx``, ``avx512``, ``avx2``, ``portable``."""
    return _native.instruction_sets()


class NativeOps:
    """`Ops` with weights as they are stored, float32 activations and a bfloat16 KV cache.

    A row's results are the same bit for bit whatever else a step computes, however long it is and
    however many threads there are. They may differ between instruction sets.

    Args:
        threads: of the team that computes; default one for each usable core.
        isa: instruction set, one of `instruction_sets()`; empty for the best. Raises ValueError for one
            that this processor lacks.
    """

    name = "native"
    dtype = torch.bfloat16
    activations = torch.float32

    def __init__(self, threads: int | None = None, isa: str = "") -> None:
        self._team = _native.Team(threads or usable_cores(), isa)
        self.weight_bytes = 0

    @property
    def team(self) -> _native.Team:
        """The threads; others may compute on them between steps."""
        return self._team

    @property
    def threads(self) -> int:
        return self._team.threads

    @property
    def isa(self) -> str:
        return self._team.isa

    # Once, at load

    def pack_linear(self, weights: Sequence[StoredWeight], bias: Tensor | None = None) -> Linear:
        return Linear(
            [self._pack(w) for w in weights], None if bias is None else self._floats(bias)
        )

    def pack_gated(self, gate: StoredWeight, up: StoredWeight) -> Gated:
        return Gated(self._pack(gate), self._pack(up))

    def pack_embedding(self, table: StoredWeight) -> Linear:
        return self.pack_linear([table])

    def tied_head(self, embedding: Linear) -> Linear:
        return embedding

    def pack_norm(self, weight: Tensor) -> Floats:
        return self._floats(weight)

    def rope_table(self, frequencies: Tensor, positions: int) -> _native.Rotary:
        return _native.Rotary(frequencies.numpy(), positions)

    def _pack(self, weight: StoredWeight) -> _native.Matrix:
        columns, inputs = weight.shape
        matrix = _native.pack(self._team, weight.kind, weight.data, columns, inputs)
        self.weight_bytes += matrix.nbytes
        return matrix

    def _floats(self, weight: Tensor) -> Floats:
        array = cast(Floats, weight.to(torch.float32, copy=True).contiguous().numpy())
        self.weight_bytes += array.nbytes
        return array

    # In a step

    def plan(self, batch: RaggedBatch) -> RaggedBatch:
        return batch

    def embed(self, plan: Any, embedding: Linear, scale: float) -> Any:
        table = embedding.matrices[0]
        return self._add(lambda p: p.embed(table, scale), table.inputs, plan=plan)

    def rms_norm(self, x: Any, packed: Floats, eps: float, add: Any = None) -> Any:
        return self._add(lambda p, x, add: p.norm(x, packed, eps, add), len(packed), x, add)

    def linear(self, x: Any, packed: Linear, residual: Any = None) -> Any:
        return self._add(
            lambda p, x, residual: p.linear(x, packed.matrices, packed.bias, residual),
            packed.columns,
            x,
            residual,
        )

    def gated_linear(self, x: Any, packed: Gated, activation: Activation) -> Any:
        return self._add(
            lambda p, x: p.gated(x, [packed.gate], [packed.up], activation), packed.gate.columns, x
        )

    def attend(
        self,
        qkv: Any,
        *,
        spec: AttentionSpec,
        head_norm: Floats | None,
        eps: float,
        rotary: _native.Rotary,
        plan: Any,
        cache_k: Tensor,
        cache_v: Tensor,
    ) -> Any:
        return self._add(
            lambda p, qkv: p.attend(
                qkv,
                heads=spec.num_heads,
                kv_heads=spec.num_kv_heads,
                head_dim=spec.head_dim,
                scale=spec.scale,
                window=spec.window or 0,
                softcap=spec.softcap or 0.0,
                head_norm=head_norm,
                eps=eps,
                rotary=rotary,
                cache_k=cache_k.view(torch.uint16).numpy(),
                cache_v=cache_v.view(torch.uint16).numpy(),
            ),
            spec.num_heads * spec.head_dim,
            qkv,
            plan=plan,
        )

    def take_outputs(self, x: Any, plan: Any) -> Any:
        if isinstance(x, Handle):
            return Handle(x.program, x.program.take_outputs(x.buffer), x.width)
        return x[torch.from_numpy(plan.output_rows)]

    def logits(self, x: Any, head: Linear, softcap: float | None) -> Any:
        return self._add(lambda p, x: p.logits(x, head.matrices, softcap or 0.0), head.columns, x)

    def record(self, step: Step) -> RecordedStep:
        program = _native.Program(self._team)
        # The model sees a recording in place of a batch, and handles in place of tensors.
        logits = cast(Handle, step(cast(RaggedBatch, Recording(program))))
        program.output(logits.buffer)
        program.finish()
        return NativeStep(program, logits.width)

    def _add(self, build: Callable[..., int], width: int, *values: Any, plan: Any = None) -> Any:
        """Add the operation that `build` makes of a program and its inputs' buffers (-1 for None)."""
        for source in (plan, *values):
            if isinstance(source, Recording | Handle):
                buffers = (-1 if v is None else v.buffer for v in values)
                return Handle(source.program, build(source.program, *buffers), width)
        return self._run(build, width, values, plan)

    def _run(
        self,
        build: Callable[..., int],
        width: int,
        values: Sequence[Tensor | None],
        plan: RaggedBatch | None,
    ) -> Tensor:
        """A program of one operation on tensors ``[T, features]``, run at once."""
        program = _native.Program(self._team)
        buffers = [-1 if v is None else program.input(v.shape[1]) for v in values]
        program.output(build(program, *buffers))
        program.finish()
        inputs = [v.contiguous().numpy() for v in values if v is not None]
        batch = _rows_only(len(inputs[0])) if plan is None else plan
        out = torch.empty(len(batch.input_ids), width)
        program.run(native_step(batch), inputs, [out.numpy()])
        return out


def _rows_only(rows: int) -> RaggedBatch:
    """A layout for operations that ask for nothing but the number of rows."""
    zeros, ones = np.zeros(rows, np.int64), np.ones(rows, np.int64)
    table = np.zeros((1, 1), np.int64)
    return RaggedBatch(zeros, zeros, zeros, ones, ones, table, zeros, np.arange(rows))
