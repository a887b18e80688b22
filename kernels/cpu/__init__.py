"""C++ kernels for the CPU, behind the op table.

The extension `_native` is built when the package is installed. Where it is missing (a machine without a
compiler) importing this package raises ImportError, and `stolon.kernels.default_ops` falls back to torch.
"""

from stolon.kernels.cpu.table import NativeOps, instruction_sets

__all__ = ["NativeOps", "instruction_sets"]
