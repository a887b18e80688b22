"""References of every kind: what a bundled schema accepts is what the original means."""

from __future__ import annotations

from typing import Any

import pytest
from jsonschema import Draft202012Validator

from stolon.constrained.schema.bundle import bundle
from stolon.constrained.schema.uris import join
from stolon.errors import GrammarError

INT, STR = {"type": "integer"}, {"type": "string"}


def judged(schema: Any, *values: Any, **options: Any) -> list[bool]:
    """Which values the bundled form of a schema accepts. It must be self-contained."""
    document = bundle(schema, **options).document
    for node in nodes(document):
        for keyword in ("$id", "$schema", "$anchor", "$dynamicAnchor", "$dynamicRef"):
            assert not isinstance(node.get(keyword), str)
        if isinstance(node.get("$ref"), str):
            assert node["$ref"].startswith("#")
    again = bundle(document)
    verdicts = [bool(Draft202012Validator(document).is_valid(v)) for v in values]
    assert [bool(Draft202012Validator(again.document).is_valid(v)) for v in values] == verdicts
    return verdicts


def nodes(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, list):
        return [n for v in value for n in nodes(v)]
    if isinstance(value, dict):
        return [value, *(n for k, v in value.items() if k != "enum" for n in nodes(v))]
    return []


def test_a_plain_schema_is_returned_as_it_is() -> None:
    schema = {
        "properties": {"a": {"$ref": "#/$defs/x~1y"}, "b": {"$ref": "#"}},
        "$defs": {"x/y": INT, "unused": {"const": 1}},
    }
    result = bundle(schema)
    assert result.document is schema
    assert result.origin is None
    assert result.where("/properties/a") == "/properties/a"
    assert bundle(True).document is True


def test_the_roots_own_id_and_draft_are_taken_off_without_a_rewrite() -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://example.com/a",
        "items": {"$ref": "#/$defs/i"},
        "$defs": {"i": INT},
    }
    result = bundle(schema)
    assert result.origin is None
    assert set(result.document) == {"items", "$defs"}
    assert "$id" in schema


NESTED = {
    "$id": "https://example.com/root.json",
    "properties": {
        "a": {"$ref": "leaf.json"},
        "b": {"$ref": "/folder/leaf.json#num"},
        "c": {"$ref": "folder/tree.json#/$defs/leaf%25%22"},
        "d": {"$ref": "urn:example:u#/$defs/x"},
        "e": {"$ref": "#mark"},
        "f": {"$ref": "https://example.com/root.json#/$defs/leaf"},
    },
    "$defs": {
        "leaf": {"$id": "leaf.json", "type": "string"},
        "folder": {
            "$id": "folder/tree.json",
            "$defs": {
                'leaf%"': {"$ref": "leaf.json"},
                "n": {
                    "$id": "leaf.json",
                    "$defs": {"num": {"$anchor": "num", "type": "number"}},
                    "type": "boolean",
                },
            },
        },
        "u": {"$id": "urn:example:u", "$defs": {"x": {"$ref": "#/$defs/y"}, "y": INT}},
        "m": {"$anchor": "mark", "type": "null"},
    },
}


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("a", "s", 1),
        ("b", 1.5, "s"),
        ("c", True, "s"),
        ("d", 3, "s"),
        ("e", None, 1),
        ("f", "s", 1),
    ],
)
def test_ids_anchors_and_escapes(name: str, good: Any, bad: Any) -> None:
    assert judged(NESTED, {name: good}, {name: bad}) == [True, False]


def test_what_stands_in_data_is_no_name() -> None:
    schema = {
        "$defs": {
            "data": {"enum": [{"$id": "https://e.org/x", "type": "null"}, {"$anchor": "x"}]},
            "unknown": {"myOwn": {"$id": "https://e.org/x", "type": "string"}},
            "real": {"$id": "https://e.org/x", "type": "integer"},
            "ids": {"properties": {"$id": STR, "$ref": {"$ref": "#/$defs/real"}}},
        },
        "anyOf": [{"$ref": "https://e.org/x"}, {"$ref": "#/$defs/data"}, {"$ref": "#/$defs/ids"}],
    }
    values = [1, {"$anchor": "x"}, {"$anchor": "y", "$id": 5}, {"$ref": 3}]
    assert judged(schema, *values, {"$id": 1}) == [True, True, False, True, False]
    with pytest.raises(GrammarError, match="leaves the schema"):
        bundle({"myOwn": {"$id": "https://e.org/x"}, "$ref": "https://e.org/x"})


def test_other_documents_are_only_those_given() -> None:
    documents = {
        "http://e.org/list.json": {"items": {"$ref": "item.json#/$defs/i"}},
        "http://e.org/item.json": {
            "$id": "http://elsewhere.org/there.json",
            "$defs": {"i": {"$ref": "#/$defs/j"}, "j": {"$ref": "http://e.org/list.json#/k"}},
        },
    }
    documents["http://e.org/list.json"]["k"] = {"type": ["integer", "array"], "$ref": "#"}
    schema = {"$ref": "http://e.org/list.json"}
    assert judged(schema, [1, [2]], ["a"], documents=documents) == [True, False]
    with pytest.raises(GrammarError) as caught:
        bundle({"properties": {"p": schema}})
    assert caught.value.where == "/properties/p/$ref"
    assert "http://e.org/list.json" in caught.value.message
    with pytest.raises(GrammarError) as caught:
        bundle(schema, documents={"http://e.org/list.json": {"not": {"$ref": "#nothing"}}})
    assert caught.value.where == "http://e.org/list.json#/not/$ref"


def test_a_dynamic_reference_means_what_the_way_to_it_says() -> None:
    list_of = {
        "$id": "list",
        "type": "array",
        "items": {"$dynamicRef": "#item"},
        "$defs": {"any": {"$dynamicAnchor": "item"}},
    }
    numbers = {"$id": "numbers", "$ref": "list", "$defs": {"i": {"$dynamicAnchor": "item", **INT}}}
    texts = {"$id": "texts", "$ref": "list", "$defs": {"i": {"$dynamicAnchor": "item", **STR}}}
    schema = {
        "$id": "https://e.org/root",
        "properties": {n: {"$ref": n} for n in ("list", "numbers", "texts")},
        "$defs": {"l": list_of, "n": numbers, "t": texts},
    }
    values = [{"list": [1, "a"]}, {"numbers": [1]}, {"numbers": ["a"]}, {"texts": [1]}]
    assert judged(schema, *values) == [True, True, False, False]


def test_trees_are_closed_at_every_depth_by_the_schema_that_extends_them() -> None:
    tree = {
        "$id": "tree",
        "$dynamicAnchor": "node",
        "properties": {"data": True, "kids": {"items": {"$dynamicRef": "#node"}}},
    }
    strict = {
        "$id": "https://e.org/strict",
        "$dynamicAnchor": "node",
        "$ref": "tree",
        "unevaluatedProperties": False,
        "$defs": {"t": tree},
    }
    values = [{"kids": [{"kids": []}]}, {"kids": [{"kid": []}]}]
    assert judged(strict, *values) == [True, False]
    assert judged(tree, *values) == [True, True]
    old_tree = {
        "$id": "tree",
        "$recursiveAnchor": True,
        "properties": {"data": True, "kids": {"items": {"$recursiveRef": "#"}}},
    }
    old = strict | {"$recursiveAnchor": True, "$defs": {"t": old_tree}}
    old["$schema"] = "https://json-schema.org/draft/2019-09/schema"
    assert judged(old, *values) == [True, False]
    assert judged(old_tree, *values) == [True, True]


def test_many_meanings_end() -> None:
    """Every resource rebinds an anchor of its own, in any order: finitely many meanings."""
    names = "abcde"
    schema = {
        "$id": "https://e.org/r",
        "anyOf": [{"$ref": n} for n in names],
        "$defs": {
            n: {
                "$id": n,
                "$dynamicAnchor": n,
                "properties": {m: {"$dynamicRef": f"{m}#{m}"} for m in names},
                "required": [n],
            }
            for n in names
        },
    }
    assert judged(schema, {"a": {"a": {"a": 1}}}, {}) == [True, False]


@pytest.mark.parametrize(
    ("schema", "where", "word"),
    [
        ({"not": {"$ref": "#/$defs/none"}, "$defs": {}}, "/not/$ref", "points at nothing"),
        ({"items": {"$ref": "#none"}}, "/items/$ref", "points at nothing"),
        ({"items": {"$ref": "#/%ff"}}, "/items/$ref", "points at nothing"),
        ({"$ref": "#/anyOf/2", "anyOf": [{}]}, "/$ref", "points at nothing"),
        ({"$ref": "http://[/"}, "/$ref", "points at nothing"),
        ({"$ref": "other.json"}, "/$ref", "leaves the schema"),
        ({"$ref": "file:///etc/passwd"}, "/$ref", "leaves the schema"),
        ({"$ref": "#"}, "/$ref", "circle"),
        (
            {
                "not": {"$ref": "#/$defs/a"},
                "$defs": {
                    "a": {"$ref": "#x"},
                    "b": {"$anchor": "x", "minimum": 1, "$ref": "#/$defs/a"},
                },
            },
            "/$defs/a/$ref",
            "circle",
        ),
        (
            {"$defs": {k: {"$id": "http://e.org/x"} for k in "ab"}, "$ref": "http://e.org/x"},
            "/$ref",
            "ambiguous",
        ),
        ({"properties": {"a": {"$id": "http://["}}}, "/properties/a/$id", "no URI"),
    ],
)
def test_refusals_point_at_the_reference(schema: Any, where: str, word: str) -> None:
    with pytest.raises(GrammarError, match=word) as caught:
        bundle(schema)
    assert caught.value.where == where


def test_what_nothing_refers_to_may_be_broken() -> None:
    schema = {"$defs": {"broken": {"$ref": "http://e.org/gone"}}, "type": "integer"}
    assert judged(schema, 1, "a") == [True, False]


def test_copies_are_bounded() -> None:
    schema: dict[str, Any] = {"$anchor": "x", "items": [INT]}
    for _ in range(40):
        schema = {"properties": {"a": schema}}
    assert judged(schema, 1) == [True]
    for _ in range(200):
        schema = {"not": schema}
    with pytest.raises(GrammarError, match="too deep"):
        bundle(schema)


def test_pointers_are_led_back() -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "items": [{"$ref": "#/definitions/x~1y"}, {"dependencies": {"a": ["b"], "c": STR}}],
        "additionalItems": {"type": "null"},
        "definitions": {"x/y": {"properties": {"p": {"minimum": 3}}}},
    }
    result = bundle(schema)
    assert result.document["$defs"].keys() == {"schema"}
    for new, old in {
        "/": "/",
        "/prefixItems": "/items",
        "/prefixItems/0/$ref": "/items/0/$ref",
        "/prefixItems/1/dependentSchemas/c/type": "/items/1/dependencies/c/type",
        "/prefixItems/1/dependentRequired/a": "/items/1/dependencies/a",
        "/items/type": "/additionalItems/type",
        "/$defs/schema/properties/p/minimum": "/definitions/x~1y/properties/p/minimum",
    }.items():
        assert result.where(new) == old


@pytest.mark.parametrize(
    ("base", "reference", "joined"),
    [
        ("http://a/b/c/d;p?q", "g", "http://a/b/c/g"),
        ("http://a/b/c/d;p?q", "./g", "http://a/b/c/g"),
        ("http://a/b/c/d;p?q", "g/", "http://a/b/c/g/"),
        ("http://a/b/c/d;p?q", "/g", "http://a/g"),
        ("http://a/b/c/d;p?q", "//g", "http://g"),
        ("http://a/b/c/d;p?q", "?y", "http://a/b/c/d;p?y"),
        ("http://a/b/c/d;p?q", "..", "http://a/b/"),
        ("http://a/b/c/d;p?q", "../../../g", "http://a/g"),
        ("http://a/b/c/d;p?q", "mid/content=5/../6", "http://a/b/c/mid/6"),
        ("http://a", "g", "http://a/g"),
        ("urn:example:a", "urn:example:b", "urn:example:b"),
        ("tag:e.org,2026:x/y", "z", "tag:e.org,2026:x/z"),
    ],
)
def test_uris_are_joined_as_rfc_3986_says(base: str, reference: str, joined: str) -> None:
    assert join(base, reference) == joined
