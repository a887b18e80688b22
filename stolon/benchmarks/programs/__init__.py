"""Eight programs, in the language and as separate calls of other engines. See bench/README.md."""

from stolon.benchmarks.programs.measure import ProgramsPlan, measure_programs
from stolon.benchmarks.programs.report import judge_programs, programs_table

__all__ = ["ProgramsPlan", "judge_programs", "measure_programs", "programs_table"]
