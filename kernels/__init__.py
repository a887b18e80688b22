"""The arithmetic: one op table, several implementations.

`reference_ops` is plain torch and obviously right; `torch_cpu_ops` is the fastest that plain torch
does on a CPU.
"""

from __future__ import annotations

import torch

from stolon.errors import InvalidRequest
from stolon.kernels.ops import Activation, AttentionSpec, Ops, RaggedBatch
from stolon.kernels.reference import ReferenceOps
from stolon.kernels.torch_cpu import TorchCpuOps

__all__ = [
    "Activation",
    "AttentionSpec",
    "Ops",
    "RaggedBatch",
    "ops_by_name",
    "reference_ops",
    "torch_cpu_ops",
]


def reference_ops(dtype: torch.dtype = torch.float32) -> Ops:
    """The reference table, exact in float32."""
    return ReferenceOps(dtype)


def torch_cpu_ops() -> Ops:
    """The fast CPU table. Asks once, here, what the machine can do."""
    return TorchCpuOps()


def ops_by_name(name: str) -> Ops:
    """``reference`` (float32) or ``torch_cpu``. Raises InvalidRequest for another name."""
    tables = {"reference": reference_ops, "torch_cpu": torch_cpu_ops}
    if name not in tables:
        raise InvalidRequest(
            f"there is no op table named {name!r}",
            param="kernels",
            hint="known: " + ", ".join(sorted(tables)),
        )
    return tables[name]()
