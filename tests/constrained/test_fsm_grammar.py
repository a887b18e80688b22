"""The FSM tier as a grammar: protocol, hand-over to llguidance, forced tokens, endings."""

from __future__ import annotations

import queue
import random
import threading
import time
from typing import Any

import pytest
from support.automata import MODULES, NAMES, TRIES, VOCABULARY
from support.default_model import default_model_path
from support.grammar_walk import (
    COMPILER,
    EOS,
    TOKENIZER,
    accepts,
    compiled,
    ids_of,
    spec,
    token,
    walk,
)

from stolon.constrained import Grammar, GrammarCompiler, GrammarSpec, MaskPool, Vocabulary
from stolon.constrained.fsm import FsmGrammar, FsmMatcher, compile_fsm, grammar
from stolon.constrained.llg import LlgGrammar
from stolon.constrained.regex import parse_regex
from stolon.constrained.regular import regular_source
from stolon.errors import GrammarError

each_module = pytest.mark.parametrize("module", MODULES, ids=NAMES)

PATTERNS = [
    "(the|then) ?x{2,3}",
    r'\{"name": "[^"\\]{0,9}", "age": [0-9]{1,2}\}',
    r"(\w+ ){1,3}\w+[.!]",
    "(é|漢字)+🎈?",
]


def in_llguidance(pattern: str, pool: MaskPool) -> LlgGrammar:
    import llguidance

    source = regular_source(GrammarSpec(kind="regex", text=pattern))
    return LlgGrammar(VOCABULARY, pool, llguidance.LLMatcher(VOCABULARY.tokenizer, source))


def fsm(pattern: str, module: Any, pool: MaskPool | None = None) -> FsmGrammar:
    pool = MaskPool(VOCABULARY.size) if pool is None else pool
    found = compile_fsm(
        parse_regex(pattern),
        VOCABULARY,
        pool,
        lambda: in_llguidance(pattern, pool),
        tokens=TRIES[module],
    )
    assert found is not None
    return found


@each_module
@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_masks_are_llguidances(module: Any, pattern: str) -> None:
    pool = MaskPool(VOCABULARY.size)
    ours, theirs = fsm(pattern, module, pool), in_llguidance(pattern, pool)
    rng = random.Random(pattern)
    for _ in range(8):
        a, b = ours.start(), theirs.start()
        for _ in range(30):
            allowed = ids_of(a.mask())
            # Inside a forced run llguidance allows the canonical tokens alone.
            assert ids_of(b.mask()) <= allowed
            if len(ids_of(b.mask())) > 1:
                assert a.mask() is b.mask()
            assert (a.accepting, a.finished) == (b.accepting, b.finished)
            choices = sorted(ids_of(b.mask()) - {EOS})
            if not choices:
                break
            chosen = rng.choice(choices)
            assert a.accept(chosen)
            assert b.accept(chosen)


def test_regexes_and_choices_take_this_tier_and_what_is_too_large_does_not() -> None:
    assert isinstance(compiled("regex", r"\w{1,500}x"), FsmGrammar)
    assert isinstance(compiled("regex", "(.{0,10000}a){3}"), FsmGrammar)
    assert isinstance(compiled("choice", ["the", "then", "é"]), FsmGrammar)
    assert isinstance(compiled("choice", [f"choice {i}" for i in range(4096)]), FsmGrammar)
    deep = "(?:" * 6 + "a" + "{2,3}b){2,3}" * 6
    assert isinstance(compiled("regex", deep), LlgGrammar)
    assert accepts(compiled("regex", "((((((a{2}b){2}){2}){2}){2}){2}){2}"), "aab" * 64)


def test_llguidance_takes_over_in_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar, "MAX_SET", 12)
    pattern = "(?:[ab]*a[ab]{20}|c{3}|a?b)"
    for module in MODULES:
        whole = fsm(pattern, module)
        plain = in_llguidance(pattern, whole.pool)
        for text in ("ccc", "b", "ab" * 20, "a" * 40, "ba" * 30 + "x", "a" * 3 + "c"):
            assert accepts(whole, text) == accepts(plain, text), text
        matcher = whole.start()
        for byte in b"ab" * 12:
            assert matcher.accept(byte)
        before = matcher.fork()
        for _ in range(20):
            assert matcher.accept(ord("a"))
        assert matcher._other is not None
        assert matcher.shortest() is None
        twin = matcher.fork()
        assert twin.accept(ord("b"))
        assert ids_of(twin.mask()) == {ord("a"), ord("b"), EOS}
        assert ids_of(matcher.mask()) == {ord("a"), ord("b")}
        matcher.rollback(20)
        assert ids_of(matcher.mask()) == ids_of(before.mask())
        matcher.rollback(24)
        assert ids_of(matcher.mask()) == {ord("a"), ord("b"), ord("c")}
        assert matcher.error is None


@pytest.mark.parametrize("look", [True, False])
def test_a_matcher_that_may_not_wait_says_when_it_has_caught_up(
    monkeypatch: pytest.MonkeyPatch, look: bool
) -> None:
    monkeypatch.setattr(grammar, "MAX_SET", 8)
    pattern = "[ab]*a[ab]{20}"
    pool, ready = MaskPool(VOCABULARY.size), threading.Event()
    compiled_in: list[threading.Thread] = []

    def compile_other() -> Grammar:
        assert ready.wait(20)
        compiled_in.append(threading.current_thread())
        return in_llguidance(pattern, pool)

    whole = compile_fsm(parse_regex(pattern), VOCABULARY, pool, compile_other)
    assert whole is not None
    matcher, text = whole.start(wait=False), b"ab" * 100
    taken = 0
    while matcher.catch_up():
        assert not look or matcher.mask().count in (0, 2, 3)
        taken += matcher.accept(text[taken])
    assert 12 < taken < len(text)
    behind = matcher.fork()
    assert (matcher.mask().count, matcher.forced()) == (0, [])
    assert not matcher.accept(text[taken])
    assert not matcher.accepting
    assert not matcher.finished
    assert matcher.error is None
    matcher.rollback(3)
    ready.set()
    waiting = fsm(pattern, MODULES[0], pool).start()
    for at in (taken - 3, taken):
        for byte in text[len(waiting._tokens) : at]:
            assert waiting.accept(byte)
        other = matcher if at < taken else behind
        deadline = time.monotonic() + 20
        while not other.catch_up():
            assert time.monotonic() < deadline
            time.sleep(0.001)
        assert other.mask() is waiting.mask()
        assert other.accept(ord("a"))
        assert other.accepting == waiting.fork().accepting
    assert compiled_in != [threading.current_thread()]
    assert len(compiled_in) == 1
    # A long text is replayed in pieces.
    late = whole.start(wait=False)
    late._tokens, late._states = list(text), [0] * len(text)
    late._leave()
    assert [late.catch_up() for _ in range(5)] == [False, False, False, True, True]


def test_if_the_other_engine_refuses_it_is_an_error_state() -> None:
    def refuse() -> Any:
        raise GrammarError("no")

    found = compile_fsm(parse_regex("ab"), VOCABULARY, MaskPool(VOCABULARY.size), refuse)
    assert found is not None
    matcher = found.start()
    matcher._leave()
    assert matcher.mask().count == 0
    assert matcher.error is not None
    assert not matcher.accept(ord("a"))
    assert not matcher.accepting
    assert matcher.forced() == []
    assert matcher.shortest() is None


def test_the_other_engine_is_made_ready_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar, "LARGE", 4_000)
    other = compiled("lark", 'start: "a"')
    threads: queue.Queue[threading.Thread] = queue.Queue()

    def compile_other() -> Grammar:
        threads.put(threading.current_thread())
        return other

    pattern = parse_regex("[ab]*a[ab]{8}")
    found = compile_fsm(pattern, VOCABULARY, MaskPool(VOCABULARY.size), compile_other)
    assert found is not None
    for text in ("ab" * 30, "aab" * 20, "abbb" * 15):
        matcher = found.start()
        for byte in text.encode():
            assert matcher.mask().allows(byte)
            assert matcher.accept(byte)
    assert threads.get(timeout=10) is not threading.current_thread()
    assert found.other() is other
    assert threads.empty()


@each_module
def test_a_full_automaton_is_renewed(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar, "MAX_MEMORY", 60_000)
    whole = fsm("[ab]*a[ab]{8}", module)
    rng = random.Random(2)
    old = whole.start()
    old.mask()
    used = set()
    for _ in range(60):
        text = "".join(rng.choice("ab") for _ in range(40))
        assert accepts(whole, text) == (text[-9] == "a")
        used.add(id(whole._walk.automaton))
    assert len(used) > 1
    assert ids_of(old.mask()) == {ord("a"), ord("b")}


@each_module
def test_a_dead_end_of_the_vocabulary_is_told(module: Any) -> None:
    # The bytes occur in tokens, but nothing spells them alone.
    vocabulary = Vocabulary(
        [b"a", b"xy", b"<end>"], frozenset([2]), frozenset([2]), lambda text: [0] * len(text)
    )
    pool = MaskPool(3)
    with pytest.raises(GrammarError, match="no text"):
        compile_fsm(parse_regex("x"), vocabulary, pool, lambda: fsm("x", module))
    found = compile_fsm(parse_regex("ax|a"), vocabulary, pool, lambda: fsm("x", module))
    assert found is not None
    matcher = found.start()
    assert matcher.mask().count == 1
    assert matcher.accept(0)
    assert matcher.mask().allows(2)
    found = compile_fsm(parse_regex("ax"), vocabulary, pool, lambda: fsm("x", module))
    assert found is not None
    for _ in range(2):
        matcher = found.start()
        assert matcher.accept(0)
        assert matcher.mask().count == 0
        assert matcher.error is not None


@each_module
def test_shortest_is_accepted_from_everywhere(module: Any) -> None:
    rng = random.Random(4)
    for pattern in [*PATTERNS, "the(a{3,9}b|c{2}){2,5}"]:
        matcher = fsm(pattern, module).start()
        for _ in range(25):
            tokens = matcher.shortest()
            assert tokens is not None
            twin = matcher.fork()
            for id in tokens:
                assert twin.accept(id)
            assert twin.accept(EOS)
            assert twin.shortest() == []
            choices = sorted(ids_of(matcher.mask()) - {EOS})
            if not choices:
                break
            assert matcher.accept(rng.choice(choices))


@each_module
def test_forced_tokens_are_what_any_text_is_tokenized_to(module: Any) -> None:
    rng = random.Random(9)
    runs = 0
    for pattern in (
        *PATTERNS,
        '\\{"a": (\\{\\}|the), "the":  +\n\n[ab]{2}\\}',
        "th(e|x) the(n|  )",
    ):
        whole = fsm(pattern, module)
        for _ in range(25):
            text = walk(whole, rng, limit=80)
            if text is None:
                continue
            ids = TOKENIZER.encode(text.decode())
            matcher, at = whole.start(), 0
            while at < len(ids):
                forced = matcher.forced()
                runs += bool(forced)
                assert forced == ids[at : at + len(forced)], text
                for id in forced or ids[at : at + 1]:
                    assert matcher.accept(id)
                    at += 1
    assert runs > 100


def test_forced_tokens_with_a_real_tokenizer() -> None:
    from stolon.srt.load_tokenizer import load_tokenizer

    tokenizer, _ = load_tokenizer(default_model_path())
    vocabulary = Vocabulary(
        tokenizer.token_bytes, tokenizer.eos_ids, tokenizer.special_ids, tokenizer.encode
    )
    pattern = (
        r'\{"name": "[^"\\]{0,12}", "temperature_unit": "(celsius|fahrenheit)", "married": '
        r'(true|false),  "n": \[[0-9]{1,4}(, [0-9]{1,4})*\], "ein Größenmaß": "(東京都|🎈)"\}\n'
    )
    whole = GrammarCompiler(vocabulary).compile(GrammarSpec(kind="regex", text=pattern))
    assert isinstance(whole, FsmGrammar)
    rng = random.Random(1)
    forced_tokens = 0
    for _ in range(40):
        name = "".join(rng.choice("abc XYZ,.é1-") for _ in range(rng.randrange(12)))
        numbers = ", ".join(str(rng.randrange(10000)) for _ in range(rng.randrange(1, 5)))
        text = (
            f'{{"name": "{name}", "temperature_unit": "{rng.choice(("celsius", "fahrenheit"))}", '
            f'"married": {rng.choice(("true", "false"))},  "n": [{numbers}], '
            f'"ein Größenmaß": "{rng.choice(("東京都", "🎈"))}"}}\n'
        )
        ids = tokenizer.encode(text)
        matcher, at = whole.start(), 0
        while at < len(ids):
            forced = matcher.forced()
            forced_tokens += len(forced)
            assert forced == ids[at : at + len(forced)], text
            for id in forced or ids[at : at + 1]:
                assert matcher.accept(id)
                at += 1
        assert matcher.finished
    assert forced_tokens > 40 * 20
    # What follows changes tokens that it doesn't touch: "xabca" is "x ab ca", "xabcabc" is "x abc abc".
    whole = GrammarCompiler(vocabulary).compile(GrammarSpec(kind="regex", text="(?:.abc)?a+b+c"))
    matcher = whole.start()
    assert matcher.accept(tokenizer.encode("x")[0])
    assert matcher.forced() == []


def test_choices_are_exact_among_prefixes() -> None:
    choices = ["a", "ab", "abc", "the", "then", " the", "é", "éé", "\n\n", "\x00"]
    whole = compiled("choice", choices)
    assert isinstance(whole, FsmGrammar)
    for text in [*choices, "", "abcd", "th", "ééé", "\n", "aab"]:
        assert accepts(whole, text) == (text in choices)
    matcher = compiled("choice", choices, prefix=b" x").start()
    assert matcher.forced() == [ord(" "), ord("x")]
    for _ in range(2):
        assert matcher.accept(matcher.forced()[0])
    assert ids_of(matcher.mask()) >= {ord("a"), token_id(" the")}


def token_id(text: str) -> int:
    return next(i for i in range(TOKENIZER.vocab_size) if token(i) == text.encode())


@each_module
def test_matchers_of_many_threads_agree(module: Any) -> None:
    whole = fsm(r"(\w{1,9} ){1,20}[.]", module)
    texts: list[list[bytes | None]] = [[] for _ in range(4)]

    def work(into: list[bytes | None]) -> None:
        rng = random.Random(8)
        into.extend(walk(whole, rng, limit=60) for _ in range(6))

    threads = [threading.Thread(target=work, args=(into,)) for into in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(texts[0]) == 6
    assert texts[1:] == texts[:1] * 3


def test_a_hot_mask_is_a_lookup() -> None:
    matcher = COMPILER.compile(spec("regex", "[a-z]{1,500}")).start()
    assert isinstance(matcher, FsmMatcher)
    for _ in range(100):
        assert matcher.accept(ord("a"))
        first = matcher.mask()
        assert matcher.mask() is first
        assert matcher._masks[matcher._state] is first
