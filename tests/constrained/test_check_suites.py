"""Suites are read from folders of their own formats; what can't be read is told in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stolon.constrained.check.cases import Instance
from stolon.constrained.check.suites import (
    jsts_cases,
    maskbench_cases,
    regex_cases,
    remote_documents,
)
from stolon.errors import InvalidRequest


def write(path: Path, value: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return path


def test_maskbench(tmp_path: Path) -> None:
    tests = [{"description": "d", "valid": True, "data": {"é": [1, "\ud800"]}}]
    write(tmp_path / "data" / "b.json", {"schema": {"type": "array"}})
    write(tmp_path / "data" / "a.json", {"schema": {}, "meta": {}, "tests": tests})
    one, two = maskbench_cases(tmp_path)
    assert (one.name, two.name) == ("a", "b")
    assert two.schema == {"type": "array"}
    assert two.instances == []
    # Half of a surrogate pair has no UTF-8 form; escaped it has.
    assert one.instances == [Instance("d", '{"\\u00e9": [1, "\\ud800"]}', True)]
    tests[0]["data"] = {"é": [1]}
    write(tmp_path / "data" / "a.json", {"schema": {}, "tests": tests})
    assert maskbench_cases(tmp_path)[0].instances[0].text == '{"é": [1]}'
    compact = maskbench_cases(tmp_path / "data", draft="draft7", whitespace="compact")
    assert (one.draft, compact[0].draft) == (None, "draft-07")
    assert compact[0].instances[0].text == '{"é":[1]}'


def test_json_schema_test_suite(tmp_path: Path) -> None:
    group = {"description": "g", "schema": True, "tests": []}
    write(tmp_path / "tests" / "draft7" / "x.json", [group, group])
    write(tmp_path / "tests" / "draft7" / "optional" / "format" / "y.json", [group])
    write(tmp_path / "remotes" / "a" / "b.json", {"type": "null"})
    required = jsts_cases(tmp_path, draft="draft-07")
    assert [c.name for c in required] == ["x: g", "x: g (2)"]
    assert required[0].draft == "draft-07"
    assert [c.name for c in jsts_cases(tmp_path, draft="7", optional=True)] == ["format/y: g"]
    assert jsts_cases(tmp_path / "tests" / "draft7", draft="7") == required
    assert remote_documents(tmp_path / "remotes", "http://h/") == {
        "http://h/a/b.json": {"type": "null"}
    }


def test_regexes_that_say_whether_the_whole_haystack_matches(tmp_path: Path) -> None:
    entries = {
        "whole": ('"a+"', '"aa"', "[[0, 2]]", ""),
        "none": ('"b"', '"aa"', "[]", ""),
        "bytes": ('"é"', '"é"', "[[0, 2]]", ""),
        "captures": ('"(a)"', '"a"', "[[[0, 1], [0, 1]]]", ""),
        "table": ('"a"', '"a"', "[{ id = 0, span = [0, 1] }]", ""),
        "part": ('"a"', '"aa"', "[[0, 1], [1, 2]]", ""),
        "list": ('["a"]', '"a"', "[[0, 1]]", ""),
        "folded": ('"a"', '"A"', "[[0, 1]]", "case-insensitive = true"),
        "raw": ('"a"', '"a"', "[[0, 1]]", "utf8 = false"),
        "bad": ('"a("', '"a"', "[]", "compiles = false"),
        "all": ('"a"', '"a"', "[[0, 1]]", 'match-kind = "all"'),
    }
    text = "".join(
        f"[[test]]\nname = '{name}'\nregex = {regex}\nhaystack = {hay}\nmatches = {spans}\n{more}\n"
        for name, (regex, hay, spans, more) in entries.items()
    )
    write(tmp_path / "testdata" / "sub" / "t.toml", text)
    write(tmp_path / "testdata" / "regex-lite.toml", text)
    verdicts = {c.name: c.instances[0].valid for c in regex_cases(tmp_path)}
    assert verdicts == {
        "sub/t: whole": True,
        "sub/t: none": False,
        "sub/t: bytes": True,
        "sub/t: captures": True,
        "sub/t: table": True,
    }


def test_what_can_not_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="no folder"):
        maskbench_cases(tmp_path / "none")
    with pytest.raises(InvalidRequest, match=r"no \*\.json"):
        maskbench_cases(tmp_path)
    bad = write(tmp_path / "a.json", "{")
    with pytest.raises(InvalidRequest, match="can't be read") as caught:
        maskbench_cases(tmp_path)
    assert caught.value.where == str(bad)
    write(bad, {"tests": []})
    with pytest.raises(InvalidRequest, match="no 'schema'"):
        maskbench_cases(tmp_path)
    with pytest.raises(InvalidRequest, match="JSON-Schema-Test-Suite"):
        jsts_cases(tmp_path)
    with pytest.raises(InvalidRequest, match="draft"):
        jsts_cases(tmp_path, draft="draft3")


@pytest.mark.parametrize(
    "tests", ["zz", ["zz"], [{"valid": True}], [{"data": 1}], [{"data": 1, "valid": 3}]]
)
def test_tests_of_another_form_are_named(tmp_path: Path, tests: Any) -> None:
    entry = {"schema": {}, "tests": tests}
    for value, read in ((entry, maskbench_cases), ([entry], jsts_cases), (["zz"], jsts_cases)):
        bad = write(tmp_path / "a.json", value)
        with pytest.raises(InvalidRequest) as caught:
            read(tmp_path)
        assert caught.value.where == str(bad)


@pytest.mark.parametrize(
    "text", ["test = 3", "test = [3]", "[[test]]\nregex = 'a'\nhaystack = 'a'\nname = 'n'"]
)
def test_regexes_of_another_form_are_named(tmp_path: Path, text: str) -> None:
    bad = write(tmp_path / "a.toml", text)
    with pytest.raises(InvalidRequest) as caught:
        regex_cases(tmp_path)
    assert caught.value.where == str(bad)
