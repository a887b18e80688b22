"""Keywords of the older drafts: rewritten to 2020-12, or annotations where they do not exist yet."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from stolon.constrained.schema.bundle import bundle
from stolon.constrained.schema.drafts import detect, named
from stolon.errors import GrammarError

INT, STR = {"type": "integer"}, {"type": "string"}
ADDRESS = {
    "draft-04": "http://json-schema.org/draft-04/schema#",
    "draft-06": "http://json-schema.org/draft-06/schema#",
    "draft-07": "http://json-schema.org/draft-07/schema",
    "2019-09": "https://json-schema.org/draft/2019-09/schema",
    "2020-12": "https://json-schema.org/draft/2020-12/schema",
}
VALIDATORS = {
    "draft-04": jsonschema.Draft4Validator,
    "draft-06": jsonschema.Draft6Validator,
    "draft-07": jsonschema.Draft7Validator,
    "2019-09": jsonschema.Draft201909Validator,
    "2020-12": jsonschema.Draft202012Validator,
}
OLD = ("draft-04", "draft-06", "draft-07", "2019-09")
SCHEMAS: list[tuple[str, Any]] = [
    ("draft-04", {"minimum": 3, "exclusiveMinimum": True, "maximum": 9, "exclusiveMaximum": False}),
    ("draft-04", {"exclusiveMinimum": True}),
    (
        "draft-04",
        {
            "id": "http://e.org/a",
            "items": {"$ref": "b"},
            "definitions": {"b": {"id": "b", "type": "string"}, "c": {"$id": "b", "type": "null"}},
        },
    ),
    ("draft-04", {"const": 3, "contains": INT, "if": {}, "else": False, "propertyNames": False}),
    ("draft-06", {"if": INT, "then": {"const": 1}, "contains": {"const": 4}}),
    *((d, {"items": [INT, STR], "additionalItems": {"type": "null"}}) for d in OLD),
    *((d, {"items": [INT, STR], "additionalItems": False}) for d in OLD),
    *((d, {"items": INT, "additionalItems": False}) for d in OLD),
    *((d, {"additionalItems": False}) for d in OLD),
    *((d, {"dependencies": {"a": ["b"], "b": {"properties": {"a": INT}}}}) for d in OLD[:3]),
    *(
        (d, {"definitions": {"i": INT}, "$ref": "#/definitions/i", "minimum": 4})
        for d in VALIDATORS
    ),
    *(
        (d, {"dependentRequired": {"a": ["b"]}, "minContains": 2, "contains": INT})
        for d in VALIDATORS
    ),
    ("draft-06", {"items": {"$ref": "#name"}, "definitions": {"x": {"$id": "#name", **STR}}}),
    (
        "draft-07",
        {
            "$id": "http://e.org/",
            "not": {"$id": "n", "$ref": "#/definitions/s"},
            "definitions": {"s": STR},
        },
    ),
    ("2019-09", {"prefixItems": [INT], "items": STR}),
    ("2019-09", {"unevaluatedItems": False, "items": [INT]}),
    ("2020-12", {"prefixItems": [INT], "items": STR}),
    ("2020-12", {"additionalItems": False, "$recursiveRef": "#", "items": INT}),
]
VALUES: list[Any] = [
    *(None, 1, 3, 4, 9, 9.5, "a", [], [1], ["a"], [1, "a"], [1, "a", None], [1, "a", 2], [4, 5]),
    *({}, {"a": 1}, {"b": 1}, {"a": 1, "b": 2}, {"a": "x", "b": 1}, {"a": "x"}),
]


@pytest.mark.parametrize(("draft", "schema"), SCHEMAS)
def test_the_bundle_means_what_the_draft_says(draft: str, schema: Any) -> None:
    expected = [VALIDATORS[draft](schema).is_valid(v) for v in VALUES]
    for result in (
        bundle(schema, draft=draft),
        bundle({"$schema": ADDRESS[draft], **schema}),
        bundle({"$schema": ADDRESS[draft], **schema}, draft="2020-12"),
    ):
        validator = VALIDATORS["2020-12"](result.document)
        assert [validator.is_valid(v) for v in VALUES] == expected
        assert "$schema" not in result.document


def test_without_a_draft_old_spellings_are_understood() -> None:
    schema = {
        "items": [INT, {"$ref": "#/definitions/t"}],
        "additionalItems": {"minimum": 1, "exclusiveMinimum": True},
        "dependencies": {"a": ["b"]},
        "dependentRequired": {"a": ["c"]},
        "definitions": {"t": {"const": 2}},
        "nullable": True,
    }
    document = bundle(schema).document
    assert document == {
        "prefixItems": [INT, {"$ref": "#/$defs/t"}],
        "items": {"exclusiveMinimum": 1},
        "dependentRequired": {"a": ["c"]},
        "nullable": True,
        "allOf": [{"dependentRequired": {"a": ["b"]}}],
        "$defs": {"t": {"const": 2}},
    }


def test_openapi_types_may_be_nullable() -> None:
    schema = {
        "properties": {
            "a": {"type": "string", "nullable": True},
            "b": {"nullable": True},
            "c": {"type": "integer", "nullable": False, "minimum": 1, "exclusiveMinimum": True},
        }
    }
    assert bundle(schema, draft="openapi-3.0").document == {
        "properties": {
            "a": {"type": ["string", "null"]},
            "b": {},
            "c": {"type": "integer", "exclusiveMinimum": 1},
        }
    }
    assert bundle(schema).document["properties"]["a"] == schema["properties"]["a"]


def test_a_dialect_may_leave_vocabularies_out() -> None:
    meta = {
        "$schema": ADDRESS["2020-12"],
        "$vocabulary": {
            "https://json-schema.org/draft/2020-12/vocab/core": True,
            "https://json-schema.org/draft/2020-12/vocab/applicator": True,
            "https://e.org/vocab/own": False,
        },
    }
    schema = {"$schema": "http://e.org/meta", "properties": {"a": {"type": "null"}, "b": False}}
    documents = {"http://e.org/meta": meta}
    assert bundle(schema, documents=documents).document == {"properties": {"a": {}, "b": False}}
    assert bundle(schema).document["properties"]["a"] == {"type": "null"}
    meta["$vocabulary"]["https://e.org/vocab/own"] = True  # type: ignore[index]
    with pytest.raises(GrammarError, match="unknown vocabulary"):
        bundle(schema, documents=documents)


def test_what_two_drafts_read_differently_is_refused() -> None:
    schema = {"allOf": [{"contains": INT}], "unevaluatedItems": False}
    bundle(schema, draft="2020-12")
    with pytest.raises(GrammarError, match="2019-09") as caught:
        bundle(schema, draft="2019-09")
    assert caught.value.where == "/unevaluatedItems"


def test_drafts_have_many_spellings() -> None:
    for name in ("draft7", "draft-07", "7", "draft07"):
        assert named(name).name == "draft-07"
    assert named("draft2019-09").name == "2019-09"
    assert named("openapi-3.0").nullable
    assert detect("http://json-schema.org/schema#") is None
    assert detect("http://json-schema.org/draft-04/hyper-schema#") is named("4")
    for wrong in ("draft3", "2021", ""):
        with pytest.raises(GrammarError, match="known are"):
            named(wrong)
    with pytest.raises(GrammarError, match="draft-03"):
        bundle({"$schema": "http://json-schema.org/draft-03/schema#"})
