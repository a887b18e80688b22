"""Every kind of grammar: texts that must match and texts that must not."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest
from support.grammar_walk import accepts, compiled, make_vocabulary, spec, walk

from stolon.constrained import CompileLimits, GrammarCompiler
from stolon.constrained.compilation import _refusal
from stolon.constrained.regular import longest_text
from stolon.errors import GrammarError

TABLE = [
    ("choice", ["cat", "category"], ["cat", "category"], ["", "ca", "cate", "categoryx", "dog"]),
    ("choice", ["é", "漢字", "🎈"], ["é", "漢字", "🎈"], ["漢", "e", b"\xc3", b"\xf0\x9f\x8e"]),
    ("choice", ['a"b', "a\\n", "a\n", "\x7f"], ['a"b', "a\\n", "a\n", "\x7f"], ["a", "ab"]),
    ("choice", ["a.c", "a*"], ["a.c", "a*"], ["abc", "aa", ""]),
    ("regex", "a(bc)?", ["a", "abc"], ["", "ab", "abcbc"]),
    ("regex", "(cat|category)", ["cat", "category"], ["cate"]),
    ("regex", r"-?[0-9]+(\.[0-9]+)?", ["-1.5", "0", "12"], ["1.", ".5", "-"]),
    ("regex", "^abc$", ["abc"], ["ab", "abcd"]),
    ("regex", "(?P<x>a)(?<y>b)", ["ab"], ["a"]),
    ("regex", "a*?b", ["b", "aab"], ["a", "ba"]),
    ("regex", ".", ["é", "漢", "🎈", "x"], ["", "\n", b"\xc3", "ab", b"\xff"]),
    ("regex", "[^a]{2}", ["é漢", "xy"], ["ax", "é"]),
    ("regex", "", [""], ["a"]),
    ("regex", "(?i)ab", ["AB", "ab"], ["a"]),
    ("ebnf", 'root ::= "a" root "b" | "c"', ["c", "acb", "aacbb"], ["", "ac", "aacb", "ab"]),
    ("ebnf", 'root ::= [a-c]+ "!" | "é"', ["abc!", "é"], ["!", "d!", "a"]),
    ("lark", 'start: "x" (y | "z")+\ny: /[0-9]{2}/', ["x12", "xz12z"], ["x", "x1", "12"]),
    ("lark", 'start: "n=" %json {"type": "integer"}', ["n=5", "n=-12"], ["n=", "n=x"]),
    ("json_object", "", ["{}", '{"a": [1, {"b": null}]}'], ["[]", "{ }", '{"a":1}', '{"a": 1']),
]


@pytest.mark.parametrize(("kind", "text", "matching", "others"), TABLE)
def test_matches_exactly(
    kind: str, text: object, matching: list[str | bytes], others: list[str | bytes]
) -> None:
    grammar = compiled(kind, text)
    assert [t for t in matching if not accepts(grammar, t)] == []
    assert [t for t in others if accepts(grammar, t)] == []


def test_whitespace_is_what_the_spec_says() -> None:
    compact = compiled("json_object", whitespace="compact")
    assert accepts(compact, '{"a":[1,2],"b":{}}')
    assert not accepts(compact, '{"a": [1, 2]}')
    assert not accepts(compiled("json_object"), '{"a":  1}')


@pytest.mark.parametrize(
    ("pattern", "feature", "offset"),
    [
        (r"a(?=b)", "look-around", "1"),
        (r"(?<!a)b", "look-around", "0"),
        (r"(a)\1", "back-reference", "3"),
        (r"(?P<n>a)(?P=n)", "back-reference", "8"),
        (r"(?>a)", "atomic", "0"),
        (r"[+]a++", "possessive", "4"),
        (r"a\Z", "anchor", "1"),
        (r"a\01", "octal", "1"),
    ],
)
def test_regex_refusal_names_the_feature(pattern: str, feature: str, offset: str) -> None:
    with pytest.raises(GrammarError, match=feature) as caught:
        compiled("regex", pattern)
    assert caught.value.where == f"offset {offset}"


@pytest.mark.parametrize(
    "pattern", ["a^b", "(", "[b-a]", "a[b&&c]", "a{3,1}", r"a\bb", "a)", "[a", "*a", r"\y"]
)
def test_regex_is_refused(pattern: str) -> None:
    with pytest.raises(GrammarError, match="regex"):
        compiled("regex", pattern)


def test_classes_are_not_mistaken_for_features() -> None:
    assert accepts(compiled("regex", r"[(?=]+[]x]\(\?="), "(?=](?=")


@pytest.mark.parametrize("text", ["{}", "[]", '["a", 1]', '["a", ""]', '["a", "a"]', "[", '"a"'])
def test_bad_choices_are_refused(text: str) -> None:
    from support.grammar_walk import COMPILER

    from stolon.constrained import GrammarSpec

    with pytest.raises(GrammarError):
        COMPILER.compile(GrammarSpec(kind="choice", text=text))


@pytest.mark.parametrize(
    ("kind", "text", "word"),
    [
        ("lark", "start: <|im_start|>", "special"),
        ("lark", "start: <[257]>", "special"),
        ("lark", "start: @other", "@name"),
        ("lark", "start: x\nx[temperature=0.5]: /a/", "temperature"),
        ("lark", '%llguidance {"no_forcing": false}\nstart: "a"', "%llguidance"),
        ("lark", 'start: %json {"type": "array", "uniqueItems": true}', "uniqueItems"),
        ("lark", "start: start", "no text"),
        ("lark", 'foo: "a"', "start"),
        ("lark", r"start: /a\01/", "octal"),
        ("json_object", "{}", "no text"),
    ],
)
def test_grammar_refusals(kind: str, text: str, word: str) -> None:
    with pytest.raises(GrammarError, match=word):
        compiled(kind, text)


@pytest.mark.parametrize(
    ("text", "word", "where"),
    [
        ('start: x\nx: "a" )', "expecting rule", "line 2, column 8"),
        ('start: x\n\nx: "a" y', 'unknown name: "y"', "line 3, column 4"),
        ("start: /[/", "unclosed character class", "line 1, column 8"),
        ('start: %json {"type":\n\n"string"} )', "expecting rule", "line 3"),
        ('start: x\nx: %json\n{\n"type": "null"}\n\ny: )', "expecting rule", "line 6"),
        (r'start: /\0/ "b" )', "expecting rule", "line 1"),
        ('start: %regex {"foo": 1}', "foo", None),
        ("", "no start rule", None),
    ],
)
@pytest.mark.parametrize("before", [{}, {"prefix": b"\n\n", "after": "\n"}])
def test_llguidance_refuses_at_a_place_in_what_was_given(
    text: str, word: str, where: str | None, before: dict[str, Any]
) -> None:
    with pytest.raises(GrammarError, match=word) as caught:
        compiled("lark", text, **before)
    assert caught.value.where == where
    assert re.search(r"[0-9]\([0-9]|at line", caught.value.message) is None


def test_llguidance_has_no_place_in_a_text_that_was_translated() -> None:
    for kind in ("ebnf", "structural_tag"):
        refused = _refusal(spec(kind, "x"), "at 3(16): Expected value\n  3 | r1: )")
        assert str(refused) == f"the {kind} is refused: Expected value"


@pytest.mark.parametrize(
    ("kind", "text"),
    [("regex", r"\0[\0-\x01]\\0"), ("lark", r"start: /\0[\0-\x01]\\0/")],
)
def test_the_escape_of_the_null_character(kind: str, text: str) -> None:
    grammar = compiled(kind, text)
    assert accepts(grammar, "\0\1\\0")
    assert not accepts(grammar, "\0\2\\0")
    assert not accepts(grammar, "\0\1\\\0")


def test_what_only_looks_like_a_rule_is_none() -> None:
    text = 'root ::= "a ::= " [^a ::=] # root ::= b\n'
    assert compiled("ebnf", text) is not None


@pytest.mark.parametrize(
    ("kind", "text"), [("ebnf", 'root ::= "a" root'), ("lark", 'start: "a" start')]
)
def test_a_recursion_without_a_way_out_is_told(kind: str, text: str) -> None:
    matcher = compiled(kind, text).start()
    for _ in range(100):
        for token in matcher.forced():
            matcher.accept(token)
    assert isinstance(matcher.error, GrammarError)
    assert "without a way out" in (matcher.error.hint or "")


def test_a_terminal_without_end_does_not_hang() -> None:
    matcher = compiled("lark", 'start: /a+/ "ab"').start()
    for _ in range(50):
        assert matcher.mask().count
        assert matcher.accept(ord("a"))
    assert matcher.forced() == []


PATTERNS = [
    "a(bc)?", "(ab|a)(bc|c)?", "[ab]*a[ab]{2}", "(a|b)*abb", "a{2,3}b?", "(?:a|ab)(?:c|bcd)?",
    r"\d+(\.\d+)?", "[^b]+", "(a*b)*", "(|a)b", "a?b?c?", "((a|b)c){1,2}", ".a.", r"\w\s?\w",
]  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
def test_regex_agrees_with_re_fullmatch(pattern: str) -> None:
    grammar = compiled("regex", pattern)
    rng = random.Random(pattern)
    for _ in range(150):
        text = "".join(rng.choice("abcd.1 é\n") for _ in range(rng.randrange(7)))
        assert accepts(grammar, text) == bool(re.fullmatch(pattern, text)), text
    for _ in range(20):
        text = walk(grammar, rng, limit=60)
        if text is not None:
            assert re.fullmatch(pattern, text.decode()), text


@pytest.mark.parametrize(
    ("kind", "text", "longest"),
    [
        ("choice", ["a", "é漢"], 5),
        ("regex", "a{2,4}(b|é?)", 6),
        ("regex", "a(b{0})*", 1),
        ("regex", "[^a]", 4),
        ("regex", "a+", None),
        ("regex", "(", None),
        ("json_schema", {"type": "boolean"}, 5),
        ("json_schema", {"type": "string"}, None),
        ("ebnf", 'root ::= "é" x{2}\nx ::= [ab]', 4),
        ("ebnf", 'root ::= "a" root?', None),
        ("ebnf", "root", None),
        ("lark", 'start: "a"', None),
    ],
)
def test_the_longest_text(kind: str, text: object, longest: int | None) -> None:
    assert longest_text(spec(kind, text)) == longest
    assert longest_text(spec(kind, text, after="x")) is None


@pytest.mark.parametrize("limits", [{"grammar_size": 30}, {"lexer_fuel": 30}])
def test_a_schema_that_is_too_much_is_refused_in_our_words(limits: dict[str, int]) -> None:
    compiler = GrammarCompiler(make_vocabulary(), limits=CompileLimits(**limits))  # type: ignore[arg-type]
    names = {f"name {i}": {"type": "string", "pattern": f"^a.*{i}.*z"} for i in range(20)}
    with pytest.raises(GrammarError) as caught:
        compiler.compile(spec("json_schema", {"type": "object", "properties": names}))
    assert str(caught.value).startswith("the json_schema is too large or too complex")
    compiler.close()
