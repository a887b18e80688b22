"""Constraints for other servers: GBNF of the same texts, and answers that are checked."""

from __future__ import annotations

import itertools
import json

import pytest

from stolon.errors import GrammarError
from stolon.srt.protocol import GrammarSpec
from stolon.srt.remote_grammar import AnswerCheck, to_gbnf

CHECK = AnswerCheck()


def spec(kind: str, text: object) -> GrammarSpec:
    written = text if isinstance(text, str) and kind != "choice" else json.dumps(text)
    return GrammarSpec(kind=kind, text=written)


@pytest.mark.parametrize(
    ("kind", "text", "alphabet"),
    [
        ("regex", "a|b+c?", "abc"),
        ("regex", "(ab){1,2}|[b-c]", "abc"),
        ("regex", "(a*b)*", "ab"),
        ("regex", "a?", "ab"),
        ("regex", "[é-ü]\\]", "aéü]"),
        ("choice", ["a", "a b", 'b"'], 'ab "'),
        ("json_schema", {"enum": [1, 12, "a"]}, '12a"'),
    ],
)
def test_a_gbnf_grammar_has_the_same_texts(kind: str, text: object, alphabet: str) -> None:
    original = spec(kind, text)
    translated = GrammarSpec(kind="ebnf", text=to_gbnf(original))
    agreed = set()
    for size in range(5):
        for letters in itertools.product(alphabet, repeat=size):
            word = "".join(letters)
            if kind == "json_schema":
                valid = word in ("1", "12", '"a"')
            else:
                valid = CHECK.violation(original, word) is None
            assert (CHECK.violation(translated, word) is None) == valid, word
            agreed.add(valid)
    assert agreed == {True, False}


def test_what_has_no_such_form_is_refused() -> None:
    nested = {
        "$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}},
        "$ref": "#/$defs/a",
    }
    with pytest.raises(GrammarError, match="GBNF"):
        to_gbnf(spec("json_schema", nested))
    with pytest.raises(GrammarError, match="too large"):
        to_gbnf(spec("choice", [f"{i}" * 40 for i in range(4000)]))


@pytest.mark.parametrize(
    ("kind", "text", "answer", "wrong"),
    [
        ("json_schema", {"type": "integer"}, "5", None),
        ("json_schema", {"type": "integer"}, '"5"', "is not of type 'integer' at $"),
        ("json_schema", {"type": "integer"}, "5 5", "not JSON"),
        ("json_object", "", "{}", None),
        ("json_object", "", "[]", "not a JSON object"),
        ("choice", ["yes", "no"], "no", None),
        ("choice", ["yes", "no"], "maybe", "nothing may follow"),
        ("regex", "é+", "éé", None),
        ("regex", "é+", "", "too early"),
        ("lark", 'start: "a"+', "aa", None),
    ],
)
def test_answers_are_checked(kind: str, text: object, answer: str, wrong: str | None) -> None:
    found = CHECK.violation(spec(kind, text), answer)
    assert found is None if wrong is None else wrong in (found or "")


def test_a_text_that_a_stop_may_have_cut_can_end_early() -> None:
    assert CHECK.violation(spec("regex", "ab"), "a", cut=True) is None
    assert CHECK.violation(spec("json_object", ""), '{"a": ', cut=True) is None
    assert CHECK.violation(spec("regex", "ab"), "b", cut=True) is not None


def test_schemas_load_nothing() -> None:
    remote = spec("json_schema", {"$ref": "http://127.0.0.1:9/schema.json"})
    with pytest.raises(GrammarError, match=r"can't be checked.*9/schema"):
        CHECK.prepare(remote)
