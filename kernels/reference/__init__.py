"""Plain torch, slow and obviously right: what every other op table is tested against."""

from stolon.kernels.reference.table import ReferenceOps

__all__ = ["ReferenceOps"]
