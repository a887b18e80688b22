"""EBNF means what it says: random grammars against a reading of their own, and what is refused."""

from __future__ import annotations

import itertools
import random
from functools import partial
from typing import Any

import pytest
from support.byte_tokenizer import ByteTokenizer
from support.grammar_walk import accepts, compiled, make_vocabulary, spec, walk

from stolon.constrained import CompileLimits, Grammar
from stolon.constrained.compilation import from_source
from stolon.constrained.ebnf import ebnf_tree
from stolon.constrained.ebnf_lark import ebnf_source
from stolon.constrained.ebnf_parser import Terminal, parse_ebnf
from stolon.constrained.ebnf_terminals import leaves, with_terminals
from stolon.constrained.masks import MaskPool
from stolon.errors import GrammarError, UnsatisfiableGrammar

VOCABULARY = make_vocabulary()
POOL = MaskPool(ByteTokenizer().vocab_size)
SETS = {"[ab]": "ab", "[^b]": "aéc()", "[a-c]": "abc", "[\\u00e9]": "é"}
LITERALS = ["a", "b", "ab", "é", "ba", ""]
TIMES = {"*": (0, 9), "+": (1, 9), "?": (0, 1), "{2}": (2, 2), "{1,2}": (1, 2), "{,2}": (0, 2)}
TIMES["{2,}"] = (2, 9)
TEXTS = ["".join(t) for n in range(5) for t in itertools.product("abé", repeat=n)]

BRACKETED = ["".join(t) for n in range(6) for t in itertools.product("ab()", repeat=n)]

Shape = tuple[Any, ...]


def as_lark(text: str) -> Grammar:
    """The grammar by llguidance, also where no rule comes back to itself."""
    return from_source(ebnf_source(text), spec("ebnf", text), VOCABULARY, POOL, CompileLimits())


def shape(rng: random.Random, depth: int, rules: tuple[str, ...]) -> Shape:
    draw = rng.random()
    if depth == 0 or draw < 0.25:
        if rules and rng.random() < 0.4:
            return ("rule", rng.choice(rules))
        kind, among = rng.choice([("set", sorted(SETS)), ("text", LITERALS)])
        return (kind, rng.choice(among))
    if draw < 0.55:
        return ("times", shape(rng, depth - 1, rules), rng.choice(sorted(TIMES)))
    kind = "row" if draw < 0.8 else "options"
    return (kind, *(shape(rng, depth - 1, rules) for _ in range(rng.randint(2, 3))))


def bracketed(rng: random.Random, depth: int, rules: tuple[str, ...]) -> Shape:
    """Rounds between signs, of which many tell where they end."""
    begin, end = rng.choice("(a"), rng.choice(")b(")
    inside = ("set", rng.choice(sorted(SETS)))
    if rng.random() < 0.6:
        inside = ("options", ("text", "a"), ("row", ("text", "b"), inside))
    if rng.random() < 0.3:
        inside = shape(rng, 1, rules)
    times = ("times", inside, rng.choice("*+?"))
    it: Shape = ("row", ("text", begin), times, ("text", end))
    if depth and rng.random() < 0.7:
        other = bracketed(rng, depth - 1, rules)
        it = rng.choice([("options", it, other), ("row", it, other), ("times", it, "*")])
    if rules and rng.random() < 0.5:
        it = ("row", it, ("times", ("rule", rng.choice(rules)), "?"))
    return it


def written(it: Shape) -> str:
    match it:
        case ("rule" | "set", text):
            return str(text)
        case ("text", text):
            return f'"{text}"'
        case ("times", inner, sign):
            return f"({written(inner)}){sign}"
        case ("row", *parts):
            return " ".join(f"({written(part)})" for part in parts)
    return " | ".join(f"({written(option)})" for option in it[1:])


class Reading:
    """Which texts a grammar has: ends by beginning, until no more are found."""

    def __init__(self, rules: dict[str, Shape], text: str) -> None:
        self.rules, self.text = rules, text
        self.found: dict[tuple[str, int], set[int]] = {}

    def matches(self) -> bool:
        before = -1
        while before != (before := self._count()):
            for name, at in itertools.product(self.rules, range(len(self.text) + 1)):
                self.found.setdefault((name, at), set()).update(self.ends(self.rules[name], at))
        return len(self.text) in self.found["root", 0]

    def _count(self) -> int:
        return sum(map(len, self.found.values()))

    def ends(self, it: Shape, at: int) -> set[int]:
        match it:
            case ("rule", name):
                return set(self.found.get((name, at), ()))
            case ("set", name):
                return {at + 1} if self.text[at : at + 1] and self.text[at] in SETS[name] else set()
            case ("text", text):
                return {at + len(text)} if self.text.startswith(text, at) else set()
            case ("times", inner, sign):
                low, high = TIMES[sign]
                out, reached = set(), {at}
                for done in range(high + 1):
                    out |= reached if done >= low else set()
                    reached = {end for here in reached for end in self.ends(inner, here)}
                return out
            case ("row", *parts):
                reached = {at}
                for part in parts:
                    reached = {end for here in reached for end in self.ends(part, here)}
                return reached
        return {end for option in it[1:] for end in self.ends(option, at)}


@pytest.mark.parametrize("recursive", [False, True])
@pytest.mark.parametrize("seed", range(25))
def test_a_random_grammar_has_the_texts_of_another_reading(seed: int, recursive: bool) -> None:
    rng = random.Random(seed)
    names = ("root", "x", "start-1")
    rules = {
        name: shape(rng, 3, names if recursive else names[i + 1 :]) for i, name in enumerate(names)
    }
    check(rules, TEXTS)


@pytest.mark.parametrize("recursive", [False, True])
@pytest.mark.parametrize("seed", range(25))
def test_what_becomes_one_terminal_has_the_texts_of_another_reading(
    seed: int, recursive: bool
) -> None:
    rng = random.Random(seed)
    names = ("root", "x")
    rules = {
        name: bracketed(rng, 2, names if recursive else names[i + 1 :])
        for i, name in enumerate(names)
    }
    check(rules, BRACKETED)


def check(rules: dict[str, Shape], texts: list[str]) -> None:
    text = "".join(f"{name} ::= {written(it)} # {name}\n" for name, it in rules.items())
    expected = [t for t in texts if Reading(rules, t).matches()]
    for compiler in (partial(compiled, "ebnf"), as_lark):
        try:
            grammar = compiler(text)
        except UnsatisfiableGrammar:
            assert expected == []
        else:
            assert [t for t in texts if accepts(grammar, t)] == expected, text


STRING = r'"\"" ([^"\\] | "\\" ["\\n])* "\""'


@pytest.mark.parametrize(
    ("it", "made"),
    [
        (STRING, True),
        ('"<" [a-z]+ ">"', True),
        # Where one may be taken for another, none is made.
        (STRING + r' | "\"x"', False),
        (STRING + " | [^a]", False),
        (STRING + r' | "\"" [a]* "!"', False),
        # The end of these is not told by a character.
        ('"<" [a-z]* "x"', False),
        ('"<" ("a" | "a" "b")* "b"', False),
        ('"<" ("a"?)* ">"', False),
        ('"<" "a"*', False),
        ('"<" root* ">"', False),
    ],
)
def test_what_tells_where_it_ends_is_one_terminal(it: str, made: bool) -> None:
    rules = with_terminals(parse_ebnf(f'root ::= {it} | "[" root "]"'))
    found = [leaf for rule in rules.values() for leaf in leaves(rule) if isinstance(leaf, Terminal)]
    assert len(found) == made


@pytest.mark.parametrize(
    ("text", "matching", "others"),
    [
        ("root ::= ([0-9]+)?", ["", "12"], ["a"]),
        ('root ::= ("a"*)*', ["", "aaa"], ["b"]),
        ('root ::= (x*)*\nx ::= "a"', ["", "aa"], ["x"]),
        ('root ::= (("a" "b")*)?', ["", "abab"], ["a", "aba"]),
        ('root ::= ("a"{2}){3}', ["aaaaaa"], ["aaaaa", "aaaaaaa"]),
        ('root ::= "a"{0} "b"{,1}', ["", "b"], ["a", "bb"]),
        # The longest terminal is not always the right one.
        ('root ::= ("a" | "ab") ("b" | "c") root?', ["ab", "abb", "abab", "acabc"], ["a", "abba"]),
        ('root ::= x "b" root?\nx ::= [a-c]+', ["ab", "cbb", "abcb"], ["b", "a"]),
        ('root ::= ("do" | [a-z]+) "x" root?', ["dox", "dx", "doorx", "xxax"], ["do"]),
        ('root ::= "<" [a-z]* "x" ("y" root)?', ["<xy<x", "<axyx", "<xxy<ax"], ["<", "<xy", "<a"]),
        # Characters, and what is a sign elsewhere.
        (r'root ::= "\u00e9\U0001F388\x41\xe9\n\"" [\u00e9\]]', ['é🎈Aé\n"]'], ["é"]),
        ("root ::= [a&&b] [a~~b] [--/] [a-]", ["&~.-", "ab/a"], ["a"]),
        ('root ::= . "/" [/] "//" # "x" | y', ["a////", "\n////"], ["/"]),
        ("root ::= [^a^-] [ ^]", ["b^", "c "], ["^^", "a "]),
        # Names, and rules on several lines.
        ('root ::= a-B a_b start 1x\na-B ::= "a"\na_b ::= "b"\nstart ::= "c"\n1x ::= "d"', ["abcd"], []),
        ('root ::=\n  "a"\n  | "b"\n  | (\n "c"\n "d" )\n\n', ["a", "b", "cd"], ["c"]),
        ('root ::= | "a" root', ["", "aa"], ["b"]),
        ('root ::= "" | ("a" | ) "b"', ["", "b", "ab"], ["a"]),
        ('root ::= "x\nstart: y"', ["x\nstart: y"], ["x"]),
    ],
)  # fmt: skip
def test_has_these_texts(text: str, matching: list[str], others: list[str]) -> None:
    for grammar in (compiled("ebnf", text), as_lark(text)):
        assert [t for t in matching if not accepts(grammar, t)] == []
        assert [t for t in others if accepts(grammar, t)] == []


@pytest.mark.parametrize("tail", ["", ' | "(" root ")"', " root?"])
def test_thousands_of_literals(tail: str) -> None:
    nested = 200 if tail != " root?" else 20  # each of these may be read in many ways
    words = ["w0", *(f"w{i}z" for i in range(3_000)), *("a" * i for i in range(1, nested))]
    grammar = compiled(
        "ebnf", "root ::= (" + " | ".join(f'"{word}"' for word in words) + ")" + tail
    )
    assert [w for w in words[::97] if not accepts(grammar, w)] == []
    assert [w for w in ("w", "w3000z", "w1", "b") if accepts(grammar, w)] == []
    assert accepts(grammar, "(w17z)") == ("(" in tail)
    assert accepts(grammar, "w0w17zaa") == ("root?" in tail)


def test_more_alternatives_than_can_be_followed_are_refused_when_it_is_compiled() -> None:
    ways = " | ".join(f'[a-{chr(0x100 + i)}] "{i}" root' for i in range(2_000))
    with pytest.raises(GrammarError, match="choice of 2,001 alternatives"):
        compiled("ebnf", f'root ::= "" | {ways}')


def test_what_can_go_on_in_too_many_ways_says_so() -> None:
    ways = " | ".join(f'"a" "w{i}z" start' for i in range(2_500))
    matcher = compiled("lark", f'start: "" | {ways}').start()
    assert not matcher.accept(ord("a")) or not matcher.mask().count
    assert "in more than 2,000 ways" in str(matcher.error)
    assert "row" not in str(matcher.error)


@pytest.mark.parametrize(
    ("text", "word", "where"),
    [
        ('root ::= "a"\n  x ::= "a', "literal that is not closed", "line 2, column 9"),
        ("root ::= [a", "set that is not closed", "line 1, column 10"),
        ("root ::= []", "empty set", "line 1, column 10"),
        (r"root ::= [^\U00000000-\U0010FFFF]", "empty set", "line 1, column 10"),
        ("root ::= [b-a]", "reversed", "line 1, column 11"),
        ('root ::=\n("a"', "parenthesis that is not closed", "line 2, column 1"),
        ('root ::= "a")', "not open", "line 1, column 13"),
        ("root ::= *", "repeats nothing", "line 1, column 10"),
        ('root ::= "a" | *', "repeats nothing", "line 1, column 16"),
        ('root ::= "a"+?', "repeats twice", "line 1, column 14"),
        ('root ::= "a"{}', "can't be read", "line 1, column 13"),
        ('root ::= "a"{2 3}', "can't be read", "line 1, column 13"),
        ('root ::= "a"{x}', "can't be read", "line 1, column 13"),
        ('root ::= "a"{3,2}', "before its beginning", "line 1, column 13"),
        ('root ::= "a"{100001}', "100,000", "line 1, column 13"),
        ('root ::= "a"{' + "9" * 5_000 + "}", "100,000", "line 1, column 13"),
        (r'root ::= "a\q"', r"\\q", "line 1, column 12"),
        (r'root ::= "\ud83d"', "no character", "line 1, column 11"),
        (r"root ::= [\U00110000]", "no character", "line 1, column 11"),
        ('# one\nroot ::= "a"\n\n  b $', "'\\$'", "line 4, column 5"),
        ('root ::= "a" x | x', "no rule 'x'", "line 1, column 14"),
        ('root ::= "a"\nx ::= "b"\nroot ::= "c"', "'root' twice", "line 3, column 1"),
        ('start: "a"', "does not begin with a rule", "line 1, column 1"),
        ("root ::= " + "(" * 100, "nests", "line 1, column 74"),
        ('x ::= "a"', "'root'", None),
        ("", "'root'", None),
    ],
)
def test_what_is_wrong_is_told_with_its_place(text: str, word: str, where: str | None) -> None:
    with pytest.raises(GrammarError, match=word) as caught:
        compiled("ebnf", text)
    assert caught.value.where == where


def test_a_lark_grammar_is_told_where_it_belongs() -> None:
    with pytest.raises(GrammarError, match="lark=") as caught:
        compiled("ebnf", 'start: "a"')
    assert caught.value.hint is not None


def test_what_would_be_too_large_written_out_is_no_tree() -> None:
    doubled = "".join(f"r{i} ::= r{i + 1} r{i + 1}\n" for i in range(30)) + 'r30 ::= "a"?'
    assert ebnf_tree("root ::= r0\n" + doubled) is None
    long = "".join(f'r{i} ::= "a" r{i + 1}\n' for i in range(900)) + 'r900 ::= "b"'
    assert ebnf_tree("root ::= r0\n" + long) is None
    assert accepts(compiled("ebnf", "root ::= r0\n" + long), "a" * 900 + "b")
    assert ebnf_tree('root ::= "a"\nx ::= x') is not None


def test_what_follows_a_span_may_begin_as_the_span_goes_on() -> None:
    tag = {
        "type": "structural_tag",
        "format": {
            "type": "sequence",
            "elements": [
                {"type": "grammar", "grammar": 'root ::= "v" | "v" [a-z]+'},
                {"type": "const_string", "value": "end"},
            ],
        },
    }
    grammar = compiled("structural_tag", tag)
    assert [t for t in ("vend", "vxend") if not accepts(grammar, t)] == []
    assert not accepts(grammar, "ven")


def test_walks_end_in_texts_of_the_grammar() -> None:
    grammar = compiled("ebnf", 'root ::= "(" (root | [a-c]+ | "b!")* ")"')
    rng = random.Random(1)
    for _ in range(10):
        text = walk(grammar, rng, limit=200)
        assert text is None or accepts(grammar, text)
