"""`stolon bench language`: it measures what it says, and its table judges it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.engines import hash_engine

from stolon.benchmarks import (
    LanguagePlan,
    judge_language,
    language_alone,
    language_beside,
    language_table,
)
from stolon.benchmarks import language as bench
from stolon.errors import InvalidRequest


def test_the_numbers_are_there_and_within_three_times_their_targets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(language_alone, "BLOCKS", 200)
    for name, value in (("PREFIX_TOKENS", 200), ("COMPILED_TOKENS", 200), ("FIELDS", 20)):
        monkeypatch.setattr(language_beside, name, value)
    plan = LanguagePlan(model=Path("tiny.gguf"), states=8, branches=20, new_tokens=2, repeats=2)
    said: list[str] = []
    with hash_engine() as engine:
        results = bench.measured_on(engine, plan, said.append)
    assert len(said) == 4
    verdicts = {v.target.name: v for v in judge_language(results)}
    for name in ("block", "async_block", "turn", "fork"):
        found = verdicts[name].found
        assert found is not None
        assert 0 < found < 3 * verdicts[name].target.value
    assert verdicts["prefix"].word == "PASS"
    assert results["language"]["compile_seconds"] > 0
    table = language_table(results)
    assert "tiny on " in table
    assert table.count("\n| ") == 9
    assert all(verdict.word in table for verdict in verdicts.values())


def test_there_is_nothing_to_compare_with() -> None:
    with pytest.raises(InvalidRequest, match="no peers"):
        LanguagePlan(model=Path("m.gguf"), peers=("vllm",))
    assert LanguagePlan.quick(model=Path("m.gguf")).repeats == 1
