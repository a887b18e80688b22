"""The fastest that plain torch does on a CPU: weights packed once, few dispatches a layer."""

from stolon.kernels.torch_cpu.table import TorchCpuOps

__all__ = ["TorchCpuOps"]
