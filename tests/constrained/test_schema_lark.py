"""What llguidance is given of a schema that has to be rewritten."""

from __future__ import annotations

import json
import re

import pytest
from support.grammar_walk import accepts, compiled

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
