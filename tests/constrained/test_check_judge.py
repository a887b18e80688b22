"""Verdicts on instances, and random texts against an independent validator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stolon.constrained.check import Case, Instance, Setup, byte_vocabulary
from stolon.constrained.check.cases import Reply, outcome_of
from stolon.constrained.check.judge import Judge
from stolon.constrained.check.suites import jsts_cases
from stolon.constrained.check.summary import Result, as_data, as_text
from stolon.constrained.check.walks import Oracle

SAMPLE = Path(__file__).parent / "conformance"


def case(schema: Any, *instances: tuple[Any, bool], name: str = "c", **fields: Any) -> Case:
    rows = [Instance(json.dumps(v), json.dumps(v, ensure_ascii=False), ok) for v, ok in instances]
    return Case(name=name, kind="json_schema", schema=schema, instances=rows, **fields)


def judge(*cases: Case, **setup: Any) -> list[Reply]:
    judge = Judge(byte_vocabulary(), Setup(**setup))
    return [judge.judge(c) for c in cases]


def test_verdicts_and_outcomes() -> None:
    # Labels that lie on purpose, so that a right answer is judged wrong.
    replies = judge(
        case({"type": "integer"}, (1, True), ("a", False)),
        case({"type": "integer"}),
        case({"type": "integer"}, (1, True), ("a", True)),
        case({"type": "integer"}, (1, False), ("a", True)),
        case({"type": 5}, (1, True)),
        Case(name="r", kind="regex", pattern="a+", instances=[Instance("", "aa", True)]),
        Case(name="r", kind="regex", pattern="a+", instances=[Instance("", "aab", False)]),
        Case(name="r", kind="regex", pattern="a+b", instances=[Instance("", "aa", False)]),
    )
    assert [r.verdicts for r in replies[:4]] == [
        ["pass", "pass"],
        [],
        ["pass", "incomplete"],
        ["unsound", "incomplete"],
    ]
    assert [outcome_of(r) for r in replies] == [
        *("exact", "untested", "incomplete", "unsound", "refused", "exact", "exact", "exact"),
    ]
    assert replies[4].where == "/type"
    assert all(r.compiling > 0 for r in replies)


def test_masks_are_timed_and_agree() -> None:
    (reply,) = judge(
        case({"properties": {"abc": {"const": 1}}, "required": ["abc"]}, ({"abc": 1}, True)),
        masks=True,
    )
    assert reply.verdicts == ["pass"]
    assert len(reply.masks) == len(reply.commits) == reply.tokens == len('{"abc": 1}')
    assert reply.runs >= 1
    assert reply.strays == 0
    assert reply.forced >= len('{"abc": ')


def test_the_draft_and_the_documents_given_are_used() -> None:
    documents = {"http://e.org/i": {"type": "integer"}}
    schema = {"items": [{"$ref": "http://e.org/i"}], "additionalItems": False}
    instances = (([1], True), ([1, 2], False), (["a"], False))
    (reply,) = judge(case(schema, *instances, draft="draft-07"), documents=documents, walks=5)
    assert outcome_of(reply) == "exact"
    assert reply.walked
    assert not reply.unjudged


def test_walks_are_validated() -> None:
    schemas = ({"type": "array", "items": {"enum": ["a", 5]}, "maxItems": 2}, {"type": "string"})
    for reply in judge(*map(case, schemas), walks=10):
        assert reply.walked >= 5
        assert reply.invalid == []
    # The grammar reads draft 7, where prefixItems says nothing; the validator is told otherwise.
    oracle = Oracle({"prefixItems": [{"type": "null"}]}, "2020-12", {})
    assert oracle.judge(b"[1]") is False
    assert oracle.judge(b"[null]") is True
    assert oracle.judge(b"[") is False
    assert Oracle({"pattern": "("}, None, {}).judge(b'"a"') is None
    numbers = Oracle({"multipleOf": 0.0001, "enum": [0.4028, 2]}, None, {})
    assert numbers.judge(b"1e99999999999999999999") is None
    assert [numbers.judge(t) for t in (b"0.4028", b"2.0", b"0.40281")] == [True, True, False]


def test_our_own_sample_has_no_wrong_verdict() -> None:
    cases = jsts_cases(SAMPLE)
    results = [Result(c, r) for c, r in zip(cases, judge(*cases, walks=5), strict=True)]
    assert {
        r.case.name: r.reply.verdicts for r in results if r.outcome in ("unsound", "error")
    } == {}
    data = as_data(results)
    assert data["walks"]["ended"] > 150
    assert data["cases"] == len(cases)
    assert sum(data["outcomes"].values()) == len(cases)


def test_the_report_counts_everything_once() -> None:
    good = case({}, (1, True), (2, False), name="good")
    results = [
        Result(good, Reply(verdicts=["pass", "pass"], compiling=1e3, masks=[1.0, 3.0], tokens=2)),
        Result(case({}, (1, True), name="bad"), Reply(verdicts=["incomplete"])),
        Result(
            case({}, (1, True), name="no"), Reply(refusal="at most 7 of 'x' and 'y'", where="/a")
        ),
        Result(case({}, (1, True), name="no 2"), Reply(refusal="at most 8 of 'x' and 'z'")),
        Result(case({}, (1, True), name="slow"), Reply(fatal="timeout")),
        Result(
            case({}, (1, False), name="none"), Reply(refusal="e", empty=True, verdicts=["pass"])
        ),
        Result(case({}, name="walk"), Reply(walked=3, invalid=["[1]"])),
    ]
    data = as_data(results)
    assert data["outcomes"] == {
        "exact": 2,
        "incomplete": 1,
        "refused": 2,
        "unsound": 1,
        "timeout": 1,
    }
    assert data["clean"] == 2
    assert (data["with both kinds"], data["exact with both kinds"]) == (1, 1)
    assert data["instances"] == {"pass": 3, "incomplete": 1, "refused": 2, "timeout": 1}
    assert data["reasons"] == {"at most N of 'x' and '…'": 2}
    assert data["times"]["mask us"]["mean"] == pytest.approx(2.0)
    text = as_text(data)
    for part in ("clean", "28.6 %", "bad: incomplete: 1", "slow", "1 invalid", "invalid: [1]"):
        assert part in text
    assert json.loads(json.dumps(data)) == data
