"""The automata, in C++ and in Python: language, counted repetitions, masks, limits."""

from __future__ import annotations

import random
import re
from itertools import islice
from typing import Any

import interegular
import numpy as np
import pytest
from support import random_regexes
from support.automata import MODULES, NAMES, TRIES, VOCABULARY, automaton, takes

from stolon.constrained.fsm.build import build_program
from stolon.constrained.fsm.utf8 import class_graph
from stolon.constrained.regex import parse_regex
from stolon.constrained.regex_build import union
from stolon.constrained.vocabulary import unpack

each_module = pytest.mark.parametrize("module", MODULES, ids=NAMES)

COUNTED = [
    ("a{3,5}", [3, 4, 5], [0, 2, 6]),
    ("(?:aa){2,}", [4, 6, 100], [2, 5]),
    ("a{0,10000}", [0, 1, 9999, 10000], [10001]),
    ("a{5000,10000}", [5000, 10000], [4999, 10001]),
    ("(?:a{2}){3}", [6], [5, 7]),
    ("(?:a{1,3}){2,4}", [2, 12], [1, 13]),
    ("(?:a?){3,5}", [0, 5], [6]),
    ("(?:a*){3,5}", [0, 50], []),
    ("(?:(?:a|){2}a){2}", [2, 6], [1, 7]),
    ("a{2}a{0,2}a{1,}", [3, 9], [2]),
]


@each_module
@pytest.mark.parametrize(("pattern", "inside", "outside"), COUNTED)
def test_counts(module: Any, pattern: str, inside: list[int], outside: list[int]) -> None:
    machine = automaton(pattern, module)
    assert [n for n in inside if not takes(machine, "a" * n)] == []
    assert [n for n in outside if takes(machine, "a" * n)] == []


@each_module
def test_agreement_with_re(module: Any) -> None:
    rng = random.Random(11)
    matched = 0
    for _ in range(400):
        pattern = random_regexes.pattern(rng, 3)
        machine, reference = automaton(pattern, module), re.compile(pattern)
        for _ in range(20):
            text = random_regexes.text(rng)
            matched += (found := bool(reference.fullmatch(text)))
            assert takes(machine, text) == found, (pattern, text)
    assert matched > 500


@pytest.mark.parametrize(
    "pattern",
    [
        "(cat|category|dog)s?",
        "[ab]*a[ab]{3}",
        "(a{1,3}b|c){2,4}",
        r"-?[0-9]+(\.[0-9]+)?",
        "(a|ab)(c|bcd)",
    ],
)
def test_agreement_with_interegular(pattern: str) -> None:
    reference = interegular.parse_pattern(pattern).to_fsm()
    machines = [automaton(pattern, module) for module in MODULES]
    alphabet = sorted({c for c in pattern if c.isalnum()} | set("-.x"))
    rng = random.Random(pattern)
    seen = set()
    # Random texts, and the reference's own.
    texts = ["".join(rng.choices(alphabet, k=rng.randrange(9))) for _ in range(300)]
    texts += ["".join(map(str, text)) for text in islice(reference.strings(), 30)]
    for text in texts:
        wanted = reference.accepts(text)
        seen.add(wanted)
        assert [takes(machine, text) for machine in machines] == [wanted] * len(machines), text
    assert seen == {True, False}


@each_module
def test_utf8_is_exact(module: Any) -> None:
    rng = random.Random(5)
    edges = [0, 0x7F, 0x80, 0x7FF, 0x800, 0xFFF, 0x1000, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x10FFFF]
    for _ in range(15):
        ends = sorted(
            rng.choice(edges) if rng.random() < 0.4 else rng.randrange(0x110000) for _ in range(6)
        )
        ranges = union(zip(ends[::2], ends[1::2], strict=True))
        if not ranges:
            continue
        body = "".join(f"\\x{{{a:X}}}-\\x{{{b:X}}}" for a, b in ranges)
        machine = automaton(f"[{body}]", module)
        for code in {c + d for e in (ends, edges) for c in e for d in (-1, 0, 1)}:
            if 0 <= code < 0xD800 or 0xE000 <= code < 0x110000:
                inside = any(a <= code <= b for a, b in ranges)
                assert takes(machine, chr(code)) == inside, hex(code)
        for bad in (b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\x80", b"\xe2\x82"):
            assert not takes(machine, bad)


def test_graphs_are_small() -> None:
    assert len(class_graph(((0, 0xD7FF), (0xE000, 0x10FFFF)))) < 10
    assert len(class_graph(((97, 97), (99, 99)))) == 2


def mask(machine: Any, state: int) -> set[int]:
    row = np.zeros(len(VOCABULARY.ordinary_row), np.int32)
    assert machine.fill(machine.coarse(state), row)
    return set(np.flatnonzero(unpack(row, VOCABULARY.size)).tolist())


MASKED = [
    "(the|then|x) ?y*",
    "[a-z ]{3,60}",
    "(the ){2,90}",
    r"\w{1,200}( \w{30})?",
    "(é|漢){1,9}🎈",
    "((the|a){1,40} ){2,50}",
]


@each_module
@pytest.mark.parametrize("pattern", MASKED)
def test_masks_are_what_advance_allows(module: Any, pattern: str) -> None:
    machine = automaton(pattern, module)
    use = TRIES[module].trie
    rng = random.Random(pattern)
    for _ in range(4):
        state = machine.start()
        for _ in range(70):
            allowed = mask(machine, state)
            one_by_one = {t for t in range(VOCABULARY.size) if machine.advance(state, t) >= 0}
            assert allowed == one_by_one, (use.longest, state)
            if not allowed:
                break
            state = machine.advance(state, rng.choice(sorted(allowed)))


@each_module
def test_long_repetitions_share_masks(module: Any) -> None:
    machine = automaton("[^x]{0,10000}", module)
    state, coarse = machine.start(), set()
    for _ in range(300):
        coarse.add(machine.coarse(state))
        state = machine.advance_bytes(state, b"a")
    assert len(coarse) < 5


@each_module
def test_forced_bytes_and_ends(module: Any) -> None:
    machine = automaton("(?:ab){2}(?:c|cd)[é]{3}", module)
    text, state = machine.forced(machine.start(), 100)
    assert text == b"ababc"
    state = machine.advance_bytes(state, b"d")
    text, state = machine.forced(state, 100)
    assert text == "ééé".encode()
    assert machine.accepting(state)
    assert machine.closed(state)
    text, _ = machine.forced(machine.start(), 3)
    assert text == b"aba"


SHORTEST = [
    ("a{3}b{2,}", 5),
    ("(?:ab|c){4,9}", 4),
    ("(?:(?:ab){2}|cdefg){3}x?", 12),
    ('"[^"]*"', 2),
    ("é{2}|abcde", 4),
    ("", 0),
]


@each_module
@pytest.mark.parametrize(("pattern", "size"), SHORTEST)
def test_shortest_completions(module: Any, pattern: str, size: int) -> None:
    machine = automaton(pattern, module)
    texts = VOCABULARY.token_bytes
    state = machine.start()
    tokens = machine.shortest(state, 1000)
    assert len(b"".join(texts[t] for t in tokens)) == size
    for token in tokens:
        state = machine.advance(state, token)
    assert machine.accepting(state)
    if size:
        assert machine.shortest(machine.start(), size - 1) is None


@each_module
def test_shortest_from_everywhere(module: Any) -> None:
    rng = random.Random(3)
    for pattern in ("(?:a{2,5}b|c{3}){2,4}d", r"[0-9]{1,3}(?:,[0-9]{3}){0,4}", "(?:the |x){3,8}!"):
        machine = automaton(pattern, module)
        state = machine.start()
        for _ in range(30):
            tokens = machine.shortest(state, 1000)
            at = state
            for token in tokens:
                at = machine.advance(at, token)
                assert at >= 0
            assert machine.accepting(at)
            allowed = sorted(mask(machine, state))
            if not allowed:
                break
            state = machine.advance(state, rng.choice(allowed))


@each_module
def test_limits_are_reported_and_nothing_is_wrong_after_them(module: Any) -> None:
    machine = automaton("(?:a{1,200}){1,200}", module, set_size=50)
    state, taken = machine.start(), 0
    while (to := machine.advance_bytes(state, b"a")) >= 0:
        state, taken = to, taken + 1
    assert to == -2
    assert 5 < taken < 200
    assert machine.advance_bytes(state, b"b") == -1
    machine = automaton("(?:a|b*c)*x", module, work=1)
    assert machine.start() == -2
    machine.work = 1 << 20
    assert takes(machine, "abcx")


@each_module
def test_bytes_that_no_token_has_are_left_out(module: Any) -> None:
    tokens = TRIES[module]
    some = build_program(parse_regex("a|bé|[c-f]"), frozenset(b"acd\xc3"))
    machine = module.Automaton(
        *(tokens.trie, some.start, some.code, some.targets, some.nodes, some.edges),
        memory=1 << 20,
        set_size=100,
        work=10_000,
    )
    assert [takes(machine, t) for t in ("a", "c", "d", "e", "bé")] == [True] * 3 + [False] * 2
    assert build_program(parse_regex("b|é+|[xy]{2}"), frozenset(b"acd\xc3")).start is None


@pytest.mark.skipif(len(MODULES) < 2, reason="the C++ module is not built")
def test_tables_that_make_no_sense_are_refused() -> None:
    native = MODULES[1]
    program = build_program(parse_regex("(?:ab|c*d){2,3}"), frozenset(range(256)))
    tables: dict[str, Any] = {
        name: getattr(program, name) for name in ("start", "code", "targets", "nodes", "edges")
    }
    limits = {"memory": 1 << 20, "set_size": 100, "work": 1000}
    rng = random.Random(1)
    refused = 0
    for _ in range(300):
        name = rng.choice(("code", "targets", "nodes", "edges"))
        broken = tables[name].copy()
        broken.flat[rng.randrange(broken.size)] = rng.choice((-7, 999, 1 << 40))
        try:
            machine = native.Automaton(TRIES[native].trie, **{**tables, name: broken}, **limits)
        except ValueError:
            refused += 1
            continue
        state = machine.start()
        if state >= 0:
            machine.advance_bytes(state, b"abc")
    assert refused > 100
    machine = native.Automaton(TRIES[native].trie, **tables, **limits)
    for state in (-1, 10**6):
        with pytest.raises(ValueError, match="state"):
            machine.advance(state, 97)
    assert machine.advance(machine.start(), 10**9) == -1
