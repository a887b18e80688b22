"""EBNF and Lark grammars force what they leave no choice about, unless that might never end."""

from __future__ import annotations

import random

import pytest
from support.grammar_walk import EOS, TOKENIZER, compiled, ids_of, token

from stolon.constrained.lark_forcing import forces_safely

# llguidance computes the forced run of each of these for ever.
ENDLESS = [
    'start: /a+/ "ab"',
    'start: "x" /a+/ "ab"',
    'start: A "ab"\nA: "a"+',
    'start: /(aa|a)+/ "ab"',
    'start: /(ab)+/ "a"',
    'start: /(ab)*abab/ "abc"',
    'start: /é+/ "é"',
    'start: /\\x20+/ " a"',
    'start: /(a|[xy][^\\s\\S])+/ "ab"',
]
UNCLEAR = [
    'start: /a{1,100000}/ "ab"',
    "start: T\nT: /[ab]+/ & /a+b*/",
    'start: T "a"\nT: ("a" | "b")*',
    'start: "a"*\n%ignore / +/',
    'start: T "a"\nT: /a/* "b"',
    'start: /a+(?=b)/ "b"',
    'start: %json {"type": "integer"}',
]
SAFE = [
    'start: "a"+ "ab"',
    'start: "ab" start | "c"',
    'start: /[0-9]+/ ("," /[0-9]+/)* ";"',
    'start: item+ // A: "a"+\nitem: /x[a-z]*/ "A: /a+/"',
    'start: T "a"\nT: /[a-z]{2,}/ | "word"\n%ignore /[ \\t]+/',
    "start: /a+/i",
    'start: T\nT: /[^a]/{2,3} | /x[0-9]/+ "b"?',
]


@pytest.mark.parametrize("lark", [*ENDLESS, *UNCLEAR])
def test_what_may_be_forced_for_ever_is_not_forced(lark: str) -> None:
    assert not forces_safely(lark)


@pytest.mark.parametrize("lark", SAFE)
def test_what_has_a_way_out_is_forced(lark: str) -> None:
    assert forces_safely(lark)


@pytest.mark.parametrize("lark", ENDLESS)
def test_endless_runs_are_walked_all_the_same(lark: str) -> None:
    matcher = compiled("lark", lark).start()
    for _ in range(20):
        assert matcher.forced() == []
        allowed = ids_of(matcher.mask())
        assert allowed, matcher.error
        if EOS in allowed:
            return
        assert matcher.accept(min(allowed))


@pytest.mark.parametrize(
    ("kind", "text", "beginning"),
    [
        ("ebnf", 'root ::= "select " [a-z]+ " from " [a-z]+', "select "),
        ("ebnf", 'root ::= "(" x ")"\nx ::= "value=" [0-9]+ | "value+" root', "(value"),
        ("lark", 'start: "if (" cond ") {" /[^}]*/ "}"\ncond: /[a-z]+/ " == " /[0-9]+/', "if ("),
    ],
)
def test_forced_runs_are_canonical_and_the_only_way(kind: str, text: str, beginning: str) -> None:
    grammar = compiled(kind, text)
    first = grammar.start().forced()
    assert beginning.startswith(TOKENIZER.decode(first))
    assert len(TOKENIZER.decode(first)) >= len(beginning) - 1
    rng = random.Random(2)
    for _ in range(10):
        matcher, ids = grammar.start(), list[int]()
        for _ in range(60):
            forced = matcher.forced()
            for id in forced:
                assert ids_of(matcher.mask()) == {id}
                assert matcher.accept(id)
            ids += forced
            allowed = sorted(ids_of(matcher.mask()))
            id = rng.choice([i for i in allowed if i == EOS or 31 < token(i)[0] < 127])
            if id == EOS:
                break
            assert matcher.accept(id)
            ids.append(id)
