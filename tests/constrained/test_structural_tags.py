"""Free text with constrained spans in it, and constraints that begin after a section of free text."""

from __future__ import annotations

from typing import Any

import pytest
from support.grammar_walk import accepts, compiled, feed

from stolon.errors import GrammarError

CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
CALL = '<call=weather>{"city": "Rome"}</call>'
TIME = "<call=time>12</call>"
OLDER = {
    "type": "structural_tag",
    "structures": [
        {"begin": "<call=weather>", "schema": CITY, "end": "</call>"},
        {"begin": "<call=time>", "schema": {"type": "integer"}, "end": "</call>"},
    ],
    "triggers": ["<call="],
}


def _tags(**options: Any) -> dict[str, Any]:
    tags = [
        {
            "type": "tag",
            "begin": "<call=weather>",
            "content": {"type": "json_schema", "json_schema": CITY},
            "end": "</call>",
        },
        {
            "type": "tag",
            "begin": "<call=time>",
            "content": {"type": "regex", "pattern": "[0-9]{2}"},
            "end": "</call>",
        },
    ]
    return {"format": {"type": "triggered_tags", "triggers": ["<call="], "tags": tags, **options}}


def _format(**part: Any) -> dict[str, Any]:
    return {"format": part}


def _const(value: str) -> dict[str, Any]:
    return {"type": "const_string", "value": value}


CALLS = ["", "I do not know.", CALL, f"Well: {CALL} and {TIME}.", f"{CALL}{TIME}", "a < b"]
NO_CALLS = [
    "<call=",
    "hm <call=nothing>",
    '<call=weather>{"city": "Bonn"}</call>',
    f"{CALL} <call=time>x</call>",
    CALL[:-1],
]


@pytest.mark.parametrize("given", [OLDER, _tags()], ids=["structures", "format"])
def test_a_trigger_begins_a_span_and_text_around_it_is_free(given: dict[str, Any]) -> None:
    grammar = compiled("structural_tag", given)
    assert [text for text in CALLS if not accepts(grammar, text)] == []
    assert [text for text in NO_CALLS if accepts(grammar, text)] == []


TABLE = [
    (_tags(at_least_one=True), [CALL, f"{CALL} so {TIME}!"], ["", f"well {CALL}"]),
    (_tags(at_least_one=True, stop_after_first=True), [CALL, TIME], ["", f"{CALL}{TIME}", "x"]),
    (_tags(stop_after_first=True), [f"so {CALL}", "none"], [f"{CALL} then", f"{CALL}{CALL}"]),
    (_format(**_const("yes!")), ["yes!"], ["", "yes", "yes!!"]),
    (_format(type="json_schema", json_schema=CITY), ['{"city": "Oslo"}'], ["{}", ""]),
    (_format(type="grammar", grammar='root ::= "a" root | "b"'), ["b", "aab"], ["", "aa"]),
    (_format(type="any_text"), ["", "x\ny"], []),
    (
        _format(type="sequence", elements=[_const("a"), {"type": "regex", "pattern": "[0-9]+"}]),
        ["a1", "a12"],
        ["a", "1"],
    ),
    (_format(type="or", elements=[_const("a"), _const("bc")]), ["a", "bc"], ["abc", "b"]),
    (_format(type="optional", content=_const("a")), ["", "a"], ["aa"]),
    (_format(type="star", content=_const("a")), ["", "aaa"], ["b"]),
    (_format(type="plus", content=_const("a")), ["a", "aaa"], [""]),
    (
        _format(type="tag", begin="<think>", content={"type": "any_text"}, end="</think>"),
        ["<think></think>", "<think>a < b</think>"],
        ["<think>", "<think></think>x", "x"],
    ),
    (
        _format(
            type="tags_with_separator",
            separator=", ",
            tags=[{"begin": "(", "content": _const("a"), "end": ")"}],
        ),
        ["", "(a)", "(a), (a)"],
        ["(a)(a)", "(a), "],
    ),
]


@pytest.mark.parametrize(("given", "matching", "others"), TABLE)
def test_parts_match_exactly(given: dict[str, Any], matching: list[str], others: list[str]) -> None:
    grammar = compiled("structural_tag", given)
    assert [text for text in matching if not accepts(grammar, text)] == []
    assert [text for text in others if accepts(grammar, text)] == []


def test_what_a_tag_leaves_no_choice_about_is_forced() -> None:
    matcher = feed(compiled("structural_tag", OLDER).start(), "Let me see: <call=w")
    assert matcher.forced()


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ({"structures": []}, "/structures"),
        ({"triggers": ["<"], "structures": [{"begin": "[x", "end": ""}]}, "/structures/0/begin"),
        ({**OLDER, "at_least_one": True}, "/at_least_one"),
        (_format(type="sequence"), "/format/elements"),
        (_format(type="xml"), "/format/type"),
        (_format(type="const_string", value=3), "/format/value"),
        (_format(type="or", elements=[_const("")]), "/format/elements/0/value"),
        (_tags(excludes=["no"]), "/format/excludes"),
        (_tags(triggers=["<call=", "<other"]), "/format/triggers"),
        (_format(type="json_schema", json_schema={"not": {"uniqueItems": True}}), "/format/json"),
        ([], "/"),
    ],
)
def test_what_is_wrong_is_refused_with_its_place(given: Any, where: str) -> None:
    with pytest.raises(GrammarError) as refused:
        compiled("structural_tag", given)
    assert (refused.value.where or "").startswith(where)


@pytest.mark.parametrize(
    ("part", "where"),
    [
        ({"type": "regex", "pattern": "a("}, "/format/pattern, offset 1"),
        ({"type": "json_schema", "json_schema": {"enum": 3}}, "/format/json_schema/enum"),
        ({"type": "json_schema", "json_schema": 3}, "/format/json_schema"),
    ],
)
def test_a_place_within_a_span_comes_after_the_span(part: dict[str, Any], where: str) -> None:
    with pytest.raises(GrammarError) as refused:
        compiled("structural_tag", {"format": part})
    assert refused.value.where == where


def test_best_effort_lists_what_is_left_out_of_a_span() -> None:
    schema = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
    part = _format(type="json_schema", json_schema=schema)
    with pytest.raises(GrammarError, match="uniqueItems"):
        compiled("structural_tag", part)
    relaxed = compiled("structural_tag", part, best_effort=True)
    assert relaxed.dropped == ("/format/json_schema/uniqueItems",)  # type: ignore[attr-defined]


def test_depth_and_size_are_bounded() -> None:
    deep: dict[str, Any] = _const("a")
    for _ in range(200):
        deep = {"type": "optional", "content": deep}
    with pytest.raises(GrammarError):
        compiled("structural_tag", {"format": deep})
    with pytest.raises(GrammarError):
        compiled(
            "structural_tag", _format(type="or", elements=[_const(f"a{i}") for i in range(1500)])
        )


@pytest.mark.parametrize(
    ("kind", "text", "good", "bad"),
    [
        ("json_schema", CITY, '{"city": "Rome"}', '{"city": "Bonn"}'),
        ("regex", "[0-9]{3}", "123", "12a"),
        ("choice", ["yes", "no"], "yes", "maybe"),
        ("ebnf", 'root ::= "a" root | "b"', "aab", "aa!"),
        ("structural_tag", OLDER, f"so {CALL}", "so <call=x"),
    ],
)
def test_a_constraint_begins_after_reasoning(kind: str, text: Any, good: str, bad: str) -> None:
    grammar = compiled(kind, text, after="</think>")
    assert accepts(grammar, f"Hm, {{ or </thin ... done.</think>{good}")
    assert accepts(grammar, f"</think>{good}")
    assert not accepts(grammar, good)
    assert not accepts(grammar, "no end")
    assert not accepts(grammar, f"x</think>{bad}")


def test_reasoning_follows_a_healed_literal() -> None:
    grammar = compiled("regex", "[0-9]", prefix=b"<th", after="</think>")
    assert accepts(grammar, "<think>a</think>7")
    assert not accepts(grammar, "a</think>7")
