"""Measurements of an engine on this machine, side by side with its peers. See bench/README.md."""

from stolon.benchmarks.language import LanguagePlan, measure_language
from stolon.benchmarks.language_report import judge_language, language_table
from stolon.benchmarks.measure import Plan, measure
from stolon.benchmarks.programs import (
    ProgramsPlan,
    judge_programs,
    measure_programs,
    programs_table,
)
from stolon.benchmarks.report import TARGETS, Target, judge, table
from stolon.benchmarks.structured import measure_structured
from stolon.benchmarks.structured_report import judge_structured, structured_table

__all__ = [
    "TARGETS",
    "LanguagePlan",
    "Plan",
    "ProgramsPlan",
    "Target",
    "judge",
    "judge_language",
    "judge_programs",
    "judge_structured",
    "language_table",
    "measure",
    "measure_language",
    "measure_programs",
    "measure_structured",
    "programs_table",
    "structured_table",
    "table",
]
