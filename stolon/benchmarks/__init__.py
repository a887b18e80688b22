"""Measurements of an engine on this machine, side by side with its peers. See bench/README.md."""

from stolon.benchmarks.measure import Plan, measure
from stolon.benchmarks.report import TARGETS, Target, judge, table

__all__ = ["TARGETS", "Plan", "Target", "judge", "measure", "table"]
