"""What llguidance is given of a schema that has to be rewritten."""

from __future__ import annotations

import json
import re

import pytest
from support.grammar_walk import accepts, compiled

from stolon.constrained.schema.budget import Budget
from stolon.constrained.schema.grammar import schema_to_lark

TWO_SHAPES = {
    "type": "object",
    "not": {"required": ["z"]},
    "anyOf": [
        {"properties": {"k": {"const": 1}}, "required": ["k"]},
        {"properties": {"j": {"const": 2}}, "required": ["j"]},
    ],
}


def test_each_lexeme_is_spelled_out_once() -> None:
    names = {name: {"type": "integer"} for name in ("a", "b", "c")}
    lark = schema_to_lark({"properties": names, "not": {"required": ["d"]}})
    rules = re.sub(r"^T\d+: .*$", "", lark, flags=re.MULTILINE)
    for text in (r'"\"a\": "', r'"\"b\": "', '", "', '"{"'):
        assert rules.count(text) == 1, lark
    assert lark.count("bfnrt") <= 2, lark  # any string, as a value and as a key


@pytest.mark.parametrize("whitespace", ["pep", "compact"])
def test_a_name_may_be_known_in_one_alternative_and_any_other_in_the_next(whitespace: str) -> None:
    grammar = compiled("json_schema", json.dumps(TWO_SHAPES), whitespace=whitespace)
    separators = (", ", ": ") if whitespace == "pep" else (",", ":")

    def fits(value: object) -> bool:
        return accepts(grammar, json.dumps(value, ensure_ascii=False, separators=separators))

    assert fits({"k": 1, "j": 5})
    assert fits({"j": 2, "k": 5})
    assert fits({"j": 2, "x": {"k": "j"}, "é": []})
    assert not fits({"j": 3, "k": 5})
    assert not fits({"k": 2, "j": 5})
    assert not fits({"k": 1, "z": 5})


def test_members_cost_what_they_are_many() -> None:
    """Neither their values nor which of them are required are looked at once for each other member."""
    names = [f"k{i}" for i in range(2_000)]
    schema = {
        "type": "object",
        "properties": {name: {"type": "integer", "minimum": i} for i, name in enumerate(names)},
        "required": names[::2],
        "not": {"required": ["z"]},
    }
    lark = schema_to_lark(schema, budget=Budget(seconds=0.5))
    assert len(set(re.findall(r'"\\"(k\d+)\\": "', lark))) == len(names)


def test_what_one_name_asks_settles_what_depends_on_it() -> None:
    both = {
        "required": ["a"],
        "dependentRequired": {"a": ["b"], "c": ["d"]},
        "not": {"required": ["e"]},
    }
    members = {name: {"const": 1} for name in "abcde"}
    schema = {"type": "object", "properties": members, "additionalProperties": False, **both}
    grammar = compiled("json_schema", json.dumps(schema), whitespace="pep")
    for names, fine in (("ab", True), ("a", False), ("abc", False), ("abcd", True), ("abe", False)):
        assert accepts(grammar, json.dumps(dict.fromkeys(names, 1))) is fine, names
