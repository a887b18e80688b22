"""Whole-string conformance checks on public suites: what is enforced, refused, or wrong.

``stolon check`` (also ``python -m stolon.constrained.check``) is the command over this package.
"""

from stolon.constrained.check.cases import Case, Instance, Reply, Setup
from stolon.constrained.check.command import Request, check
from stolon.constrained.check.vocabularies import byte_vocabulary
from stolon.constrained.check.worker import serve

__all__ = ["Case", "Instance", "Reply", "Request", "Setup", "byte_vocabulary", "check", "serve"]
