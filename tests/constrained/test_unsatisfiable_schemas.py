"""A schema without any value is refused with the place of the contradiction and the keywords in it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.engines import hash_engine

from stolon.errors import UnsatisfiableGrammar

SHORT = {"type": "string", "minLength": 5, "maxLength": 2, "title": "t"}
CASES: list[tuple[Any, str, list[str]]] = [
    ({"type": "string", "enum": [1]}, "/", ["type", "enum"]),
    ({"const": 1, "type": "string"}, "/", ["const", "type"]),
    ({"enum": []}, "/", ["enum"]),
    (SHORT, "/", ["minLength", "maxLength"]),
    ({"type": "integer", "minimum": 5, "maximum": 2}, "/", ["minimum", "maximum"]),
    ({"type": "array", "minItems": 3, "maxItems": 1}, "/", ["minItems", "maxItems"]),
    (
        {"type": "object", "properties": {"a": SHORT}, "required": ["a"]},
        "/properties/a",
        ["minLength", "maxLength"],
    ),
    (
        {"type": "integer", "multipleOf": 7, "minimum": 1, "maximum": 3},
        "/",
        ["multipleOf", "minimum", "maximum"],
    ),
]


@pytest.mark.parametrize(("schema", "where", "keywords"), CASES)
def test_the_place_and_the_keywords(schema: Any, where: str, keywords: list[str]) -> None:
    with hash_engine() as engine, pytest.raises(UnsatisfiableGrammar) as caught:
        engine.generate("a", json_schema=json.dumps(schema))
    assert caught.value.where == where
    for keyword in keywords:
        assert f"'{keyword}'" in caught.value.message
    assert "title" not in caught.value.message
