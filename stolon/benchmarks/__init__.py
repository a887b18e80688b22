"""Measurements of an engine on this machine, side by side with its peers. See bench/README.md."""

from stolon.benchmarks.measure import Plan, measure
from stolon.benchmarks.report import TARGETS, Target, judge, table
from stolon.benchmarks.structured import measure_structured
from stolon.benchmarks.structured_report import judge_structured, structured_table

__all__ = [
    "TARGETS",
    "Plan",
    "Target",
    "judge",
    "judge_structured",
    "measure",
    "measure_structured",
    "structured_table",
    "table",
]
