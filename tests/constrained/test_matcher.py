"""One position in a grammar: masks, forced runs, forks, rollback, the end, prefixes."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from support.grammar_walk import EOS, TOKENIZER, accepts, compiled, feed, ids_of, token, walk

from stolon.errors import GrammarError

PERSON = {
    "type": "object",
    "properties": {
        "name_of_the_person": {"type": "string", "maxLength": 8},
        "kind": {"enum": ["the one", "the other"]},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "required": ["name_of_the_person", "kind"],
    "additionalProperties": False,
}


def test_mask_and_accept_agree_on_every_id() -> None:
    for kind, text in [
        ("regex", "(ab|the) ?x?"),
        ("json_schema", PERSON),
        ("choice", ["the", "th"]),
    ]:
        matcher = compiled(kind, text).start()
        rng = random.Random(3)
        for _ in range(30):
            mask = matcher.mask()
            allowed = ids_of(mask)
            assert mask.count == len(allowed)
            for id in range(TOKENIZER.vocab_size):
                taken = matcher.fork().accept(id)
                # A forced text may be spelled otherwise than canonically; the mask is the narrower.
                assert taken or id not in allowed
            assert not allowed & (TOKENIZER.special_ids - {EOS})
            assert not any(token(id) == b"" for id in allowed)
            if matcher.finished or not allowed - {EOS}:
                break
            assert matcher.accept(rng.choice(sorted(allowed - {EOS})))


def test_end_is_allowed_exactly_where_the_text_may_end() -> None:
    matcher = compiled("regex", "ab?").start()
    assert not matcher.accepting
    assert not matcher.accept(EOS)
    feed(matcher, "a")
    assert matcher.accepting
    assert not matcher.finished
    assert ids_of(matcher.mask()) == {ord("b"), EOS}
    feed(matcher, "b")
    assert matcher.finished
    assert ids_of(matcher.mask()) == {EOS}
    assert matcher.accept(EOS)
    assert matcher.finished
    assert matcher.mask().count == 0
    assert not matcher.accept(ord("b"))
    matcher.rollback(2)
    assert ids_of(matcher.mask()) == {ord("b"), EOS}


def test_what_is_not_allowed_changes_nothing() -> None:
    matcher = feed(compiled("regex", "abc").start(), "a")
    for id in (ord("x"), 256, 287, -1, 10**6, EOS):
        assert not matcher.accept(id)
    assert matcher.error is None
    assert ids_of(matcher.mask()) == {ord("b")}


def test_forks_are_independent_and_rollback_returns() -> None:
    grammar = compiled("json_schema", PERSON)
    rng = random.Random(11)
    for _ in range(10):
        matcher = grammar.start()
        masks = [matcher.mask()]
        for _ in range(40):
            options = sorted(ids_of(masks[-1]) - {EOS})
            if not options:
                break
            twin = matcher.fork()
            assert twin.accept(rng.choice(options))
            assert matcher.mask() is masks[-1]
            assert matcher.accept(rng.choice(options))
            masks.append(matcher.mask())
        while len(masks) > 1:
            n = rng.randrange(1, len(masks))
            matcher.rollback(n)
            del masks[-n:]
            assert matcher.mask() is masks[-1]
    with pytest.raises(ValueError, match="take back"):
        matcher.rollback(1)


def test_forced_tokens_are_canonical_and_the_only_way() -> None:
    grammar = compiled("json_schema", PERSON)
    rng = random.Random(5)
    runs = 0
    for _ in range(20):
        matcher, text, ids = grammar.start(), b"", list[int]()
        while not matcher.finished and len(ids) < 200:
            forced = matcher.forced()
            runs += bool(forced)
            for place, id in enumerate(forced):
                rest = b"".join(map(token, forced[place:]))
                allowed = {token(t) for t in ids_of(matcher.mask())}
                assert token(id) in allowed
                assert all(rest.startswith(t) or t.startswith(rest) for t in allowed)
                assert matcher.accept(id)
                text += token(id)
                ids.append(id)
            allowed = sorted(ids_of(matcher.mask()) - {EOS})
            if not allowed:
                break
            if not forced:
                allowed = [t for t in allowed if 31 < token(t)[0] < 127] or allowed
                id = rng.choice(allowed)
                assert matcher.accept(id)
                text += token(id)
                ids.append(id)
    assert runs > 50
    first = grammar.start().forced()
    assert TOKENIZER.decode(first).startswith('{"name_of_the_person')
    canonical = TOKENIZER.encode('{"name_of_the_person": "')
    assert first == canonical[: len(first)]
    assert len(first) >= 15


def test_a_character_may_be_split_over_tokens() -> None:
    matcher = compiled("regex", "[é漢]🎈").start()
    assert ids_of(matcher.mask()) == {0xC3, 0xE6}
    rest = [*"漢🎈".encode(), EOS]
    for byte, following in pairwise(rest):
        assert matcher.accept(byte)
        assert ids_of(matcher.mask()) == {following}


@pytest.mark.parametrize(
    ("kind", "text", "prefix", "inner"),
    [
        ("regex", "^[ a]+$", b"  ", "a "),
        ("regex", "cat|category", b" ", "category"),
        ("choice", ["the", "then"], b" ", "then"),
        ("json_schema", {"type": "integer"}, b"\n\n", "-5"),
        ("json_object", "", b'q"\\', "{}"),
        ("ebnf", 'root ::= "a" root "b" | "c"', b" ", "acb"),
        ("lark", "start: /[ x]+/", " é".encode(), " x"),
    ],
)
def test_prefix_comes_first(kind: str, text: object, prefix: bytes, inner: str) -> None:
    grammar = compiled(kind, text, prefix=prefix)
    whole = prefix + inner.encode()
    assert accepts(grammar, whole)
    assert not accepts(grammar, prefix)
    assert not accepts(grammar, whole[len(prefix) :])
    assert accepts(compiled(kind, text), inner)


def test_a_token_may_span_prefix_and_text() -> None:
    matcher = compiled("choice", ["the", "x"], prefix=b" ").start()
    spanning = TOKENIZER.token_bytes.index(b" the")
    assert spanning in ids_of(matcher.mask())
    assert matcher.accept(spanning)
    assert matcher.finished


def test_prefix_must_be_whole_characters() -> None:
    with pytest.raises(GrammarError, match="inside a character"):
        compiled("regex", "a", prefix=b"\xa9")


def test_trouble_becomes_an_error_state() -> None:
    matcher = compiled("lark", 'start: /a+/ "ab" | "c"').start()
    matcher._fail(RuntimeError("boom\nstate"))
    assert matcher.error is not None
    assert "boom" in matcher.error.message
    assert matcher.mask().count == 0
    assert not matcher.accept(ord("c"))
    assert matcher.forced() == []
    assert not matcher.accepting
    assert not matcher.finished
    assert matcher.fork().error is matcher.error


def test_walks_end_with_the_vocabulary_of_longer_tokens() -> None:
    grammar = compiled("json_schema", PERSON)
    texts = [walk(grammar, random.Random(seed)) for seed in range(10)]
    assert any(text is not None for text in texts)
