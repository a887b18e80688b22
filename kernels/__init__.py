"""The arithmetic: one op table, several implementations.

`native_ops` are C++ kernels for the CPU, `torch_cpu_ops` the fastest that plain torch does on one, and
`reference_ops` plain torch that is obviously right. `default_ops` chooses.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

from stolon.errors import InvalidRequest
from stolon.kernels.cores import usable_cores
from stolon.kernels.ops import (
    Activation,
    AttentionSpec,
    Ops,
    RaggedBatch,
    RecordedStep,
    Step,
    StoredWeight,
)
from stolon.kernels.pages import mapped_zeros
from stolon.kernels.reference import ReferenceOps
from stolon.kernels.torch_cpu import TorchCpuOps

if TYPE_CHECKING:
    from stolon.kernels.cpu import NativeOps

__all__ = [
    "Activation",
    "AttentionSpec",
    "Ops",
    "RaggedBatch",
    "RecordedStep",
    "Step",
    "StoredWeight",
    "default_ops",
    "mapped_zeros",
    "native_ops",
    "ops_by_name",
    "reference_ops",
    "torch_cpu_ops",
    "usable_cores",
]

log = logging.getLogger("stolon.kernels")

TABLES = ("native", "native:ISA", "reference", "torch_cpu")


def reference_ops(dtype: torch.dtype = torch.float32) -> Ops:
    """The reference table, exact in float32."""
    return ReferenceOps(dtype)


def torch_cpu_ops() -> Ops:
    """The fast table in plain torch. Asks once, here, what the machine can do."""
    return TorchCpuOps()


def native_ops(threads: int | None = None, isa: str = "") -> NativeOps:
    """The C++ kernels, with a team of threads of its own (default one for each usable core).

    Raises InvalidRequest if they were not built (a machine without a compiler), or not for `isa`
    (``amx``, ``avx512``, ``avx2`` or ``portable``; empty for the best) on this processor.
    """
    try:
        from stolon.kernels.cpu import NativeOps
    except ImportError as error:
        raise InvalidRequest(
            f"the native kernels can't be loaded: {error}",
            param="kernels",
            hint="install stolon where there is a C++ compiler, or choose torch_cpu",
        ) from error
    try:
        return NativeOps(threads, isa)
    except ValueError as error:
        raise InvalidRequest(str(error), param="kernels") from error


def default_ops(threads: int | None = None) -> Ops:
    """The native table where it was built and the processor has vector instructions for it; else the torch
    table, which is logged."""
    try:
        ops = native_ops(threads)
    except InvalidRequest as error:
        log.warning("computing with torch, which is slower: %s", error)
        return torch_cpu_ops()
    if ops.isa == "portable":
        log.warning(
            "computing with torch: the native kernels have no vector code for this processor"
        )
        return torch_cpu_ops()
    return ops


def ops_by_name(name: str, threads: int | None = None) -> Ops:
    """A table by its name: ``native``, ``native:`` and an instruction set, ``reference`` (float32) or
    ``torch_cpu``. `threads` is for the native one. Raises InvalidRequest for another name."""
    table, _, isa = name.partition(":")
    if table == "native":
        return native_ops(threads, isa)
    if name == "reference":
        return reference_ops()
    if name == "torch_cpu":
        return torch_cpu_ops()
    raise InvalidRequest(
        f"there is no op table named {name!r}",
        param="kernels",
        hint="known: " + ", ".join(TABLES),
    )
