"""Closing pressure: whenever a completion fits into the budget, the text ends valid within it."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from support.grammar_walk import COMPILER, EOS, TOKENIZER, compiled, ids_of, token

from stolon.constrained import Closer, ClosingTable, Grammar, Matcher

TABLE = ClosingTable(COMPILER.vocabulary)


def draw(matcher: Matcher, rng: random.Random) -> int:
    """Any allowed token that goes on, if there is one: nothing ends by itself before it must."""
    allowed = sorted(ids_of(matcher.mask()))
    assert allowed, matcher.error
    on = [id for id in allowed if id != EOS]
    readable = [id for id in on if all(31 < byte < 127 for byte in token(id))]
    return rng.choice(readable or on or allowed)


def generate(
    grammar: Grammar, rng: random.Random, budget: int, *, closing: bool, inject: bool = True
) -> tuple[list[int], bool]:
    """Tokens of one generation as the engine makes it, and whether they are a whole text."""
    matcher, closer = grammar.start(), Closer(TABLE, inject=inject)
    ids: list[int] = []

    def take(id: int) -> bool:
        assert matcher.accept(id)
        closer.took(id)
        ids.append(id)
        return len(ids) < budget and not matcher.finished

    more = True
    while more:
        for id in matcher.forced() if inject else []:
            more = more and take(id)
        if not more or matcher.finished:
            break
        id = draw(matcher, rng)
        if closing:
            id = closer.choose(matcher, id, budget - len(ids))
        if id == EOS:
            return ids, True
        more = take(id)
    return ids, matcher.accepting


def shortest(grammar: Grammar, *, inject: bool = True) -> int:
    """The length of the shortest completion that is found from the start."""
    closer = Closer(TABLE, inject=inject)
    least, found = 1000, closer._completion(grammar.start(), 1000, None)
    while found is not None:
        least = len(found)
        found = closer._completion(grammar.start(), least - 1, None)
    return least


NESTED = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "size": {"type": "number", "minimum": 3, "maximum": 90},
        "kind": {"enum": ["a very long name of a kind", "short", "shorter"]},
        "list": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "identifier": {"type": "string", "minLength": 3},
                    "flag": {"type": "boolean"},
                    "deeper": {"$ref": "#/properties/list"},
                },
                "required": ["identifier", "flag"],
                "additionalProperties": False,
            },
            "minItems": 1,
        },
    },
    "required": ["name", "size", "kind", "list"],
    "additionalProperties": False,
}
# The fewest bytes of a text, counted by hand.
SHORTEST: dict[str, tuple[str, Any, str]] = {
    "nested": (
        "json_schema",
        NESTED,
        '{"name": "", "size": 3, "kind": "short", "list": [{"identifier": "abc", "flag": true}]}',
    ),
    "any value": ("json_schema", {}, "0"),
    "objects": ("json_schema", {"type": "object", "minProperties": 1}, '{"": 0}'),
    "choice of types": (
        "json_schema",
        {"anyOf": [{"type": "string", "minLength": 9}, {"type": "boolean"}, {"const": 12}]},
        "12",
    ),
    "tree": (
        "json_schema",
        {
            "$ref": "#/$defs/t",
            "$defs": {
                "t": {
                    "type": "object",
                    "properties": {
                        "value": {"type": "integer"},
                        "children": {"type": "array", "items": {"$ref": "#/$defs/t"}},
                    },
                    "required": ["value", "children"],
                    "additionalProperties": False,
                }
            },
        },
        '{"value": 0, "children": []}',
    ),
    "array": ("json_schema", {"type": "array", "minItems": 4}, "[0, 0, 0, 0]"),
    "free object": ("json_object", "", "{}"),
    "regex": ("regex", "[a-z]{20}|[0-9]+x|y{3}", "0x"),
    "regex with a trap": ("regex", "(a.{40}|b[0-9]{2,9};|c.*end)", "b00;"),
    "multi-byte": ("regex", "[äöü]{2,9}[漢字]", "ää漢"),
    "choice": ("choice", ["the first one", "the", "a second"], "the"),
    "ebnf": ("ebnf", 'root ::= "(" root* ")" | [0-9]+ "."', "()"),
    "left recursion": ("lark", 'start: start "+" item | item\nitem: /[0-9]+/ ";"', "0;"),
}


@pytest.mark.parametrize("name", SHORTEST)
@pytest.mark.parametrize("inject", [True, False])
def test_the_shortest_text_is_found(name: str, inject: bool) -> None:
    kind, text, best = SHORTEST[name]
    found = shortest(compiled(kind, text), inject=inject)
    assert found <= len(TOKENIZER.encode(best))


@pytest.mark.parametrize("name", SHORTEST)
def test_every_budget_from_the_shortest_on_ends_valid(name: str) -> None:
    kind, text, best = SHORTEST[name]
    grammar = compiled(kind, text)
    least = len(TOKENIZER.encode(best))
    rng = random.Random(7)
    for budget in [*range(least, least + 12), *(least + 12 + rng.randrange(80) for _ in range(6))]:
        ids, whole = generate(grammar, rng, budget, closing=True)
        assert whole, (budget, TOKENIZER.decode(ids))
        assert len(ids) <= budget
        if kind.startswith("json"):
            json.loads(TOKENIZER.decode(ids))


@pytest.mark.parametrize("name", SHORTEST)
def test_far_from_the_budget_nothing_changes(name: str) -> None:
    kind, text, _ = SHORTEST[name]
    grammar = compiled(kind, text)
    for seed in range(3):
        plain, _ = generate(grammar, random.Random(seed), 60, closing=False)
        closing, _ = generate(
            grammar, random.Random(seed), 10_000 if len(plain) < 60 else 600, closing=True
        )
        assert closing[: len(plain)] == plain


@pytest.mark.parametrize(
    ("pattern", "budget"), [("[a-z]{12}", 4), ("[a-z]{12}", 5), ("x:[a-z]{6};[a-z]{6}!", 8)]
)
def test_text_of_some_length_closes_with_long_tokens(pattern: str, budget: int) -> None:
    ids, whole = generate(compiled("regex", pattern), random.Random(1), budget, closing=True)
    assert whole, b"".join(map(token, ids))
    assert len(ids) <= budget


def test_what_does_not_fit_is_left_alone() -> None:
    grammar = compiled("json_schema", NESTED)
    plain, whole = generate(grammar, random.Random(3), 9, closing=False)
    closing, closed = generate(grammar, random.Random(3), 9, closing=True)
    assert (closing, closed) == (plain, whole)
    assert not closed


def random_schema(rng: random.Random, depth: int = 3) -> dict[str, Any]:
    kind = rng.randrange(8 if depth else 5)
    if kind == 0:
        return {"type": "string", "minLength": rng.randrange(5), "maxLength": 5 + rng.randrange(9)}
    if kind == 1:
        low = rng.randrange(-50, 50)
        return {"type": "integer", "minimum": low, "maximum": low + rng.randrange(200)}
    if kind == 2:
        return {"enum": rng.sample(["one", "two", 3, None, True, "a longer value"], 3)}
    if kind == 3:
        return {"type": ["number", "null"]}
    if kind == 4:
        return {
            "type": "string",
            "pattern": rng.choice(["^[a-f]{3,}$", "^x-[0-9]+$", "^(no|yes)$"]),
        }
    if kind == 5:
        return {
            "type": "array",
            "items": random_schema(rng, depth - 1),
            "minItems": rng.randrange(3),
        }
    if kind == 6:
        return {"anyOf": [random_schema(rng, depth - 1) for _ in range(2)]}
    names = rng.sample(["id", "name", "tags", "a_long_property_name", "x"], 3)
    return {
        "type": "object",
        "properties": {name: random_schema(rng, depth - 1) for name in names},
        "required": names[: rng.randrange(4)],
        "additionalProperties": False,
    }


def test_random_schemas_close_at_every_budget() -> None:
    rng = random.Random(11)
    for _ in range(40):
        schema = random_schema(rng)
        grammar = compiled("json_schema", schema)
        least = shortest(grammar)
        for _ in range(6):
            budget = least + rng.randrange(40)
            ids, whole = generate(grammar, rng, budget, closing=True)
            assert whole, (schema, budget, least, TOKENIZER.decode(ids))
            assert len(ids) <= budget
