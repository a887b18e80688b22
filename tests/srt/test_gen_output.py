"""Promise P8: streamed pieces concatenate to the final text, whatever stops, and tokens match the text."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from support.byte_tokenizer import ByteTokenizer

from stolon.srt.output import GenOutput
from stolon.srt.protocol import Finish, Sampling, TokenLogprob
from stolon.srt.stop_regex import StopRegex

TOKENIZER = ByteTokenizer()


def run(
    ids: list[int], *, stop: tuple[str, ...] = (), regex: tuple[str, ...] = (), **options: object
) -> tuple[str, list[int], list[str], object]:
    sampling = Sampling(stop=stop, **options)  # type: ignore[arg-type]
    output = GenOutput(
        TOKENIZER, sampling, [StopRegex(pattern) for pattern in regex], logprobs=True
    )
    pieces: list[str] = []
    taken: list[int] = []
    finish = None
    for token in ids:
        finish = output.push(token, TokenLogprob(token, -1.0))
        if finish:
            break
        if piece := output.take():
            pieces.append(piece.text)
            taken += piece.token_ids
    finish = output.finish(finish or Finish(kind="length"))
    if piece := output.take():
        pieces.append(piece.text)
        taken += piece.token_ids
    assert "".join(pieces) == output.text
    assert taken == output.token_ids
    assert output.logprobs is not None
    assert [entry.token for entry in output.logprobs] == output.token_ids
    return output.text, output.token_ids, pieces, finish


texts = st.text(st.sampled_from("ab c.éß漢🙂\n"), max_size=40)


@settings(max_examples=200, deadline=None)
@given(
    text=texts, stop=st.lists(st.sampled_from(["a.", "b c", "漢", "\n", "ab c", "🙂a"]), max_size=3)
)
def test_text_ends_before_the_first_stop(text: str, stop: list[str]) -> None:
    # The first stop to be complete ends the text: reading is from left to right.
    ends = [(text.find(s) + len(s), text.find(s)) for s in stop if s in text]
    result, ids, _pieces, finish = run(TOKENIZER.encode(text), stop=tuple(stop))
    if not ends:
        assert result == text
        assert finish == Finish(kind="length")
    else:
        assert finish is not None
        assert text.startswith(result)
        assert not any(s in result for s in stop)
        assert any(text[len(result) :].startswith(s) for s in stop)
    assert TOKENIZER.decode(ids) == result


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=30))
def test_any_bytes(data: bytes) -> None:
    ids = list(data)
    result, kept, _, _ = run(ids)
    assert kept == ids
    assert result == data.decode("utf-8", "replace")


@settings(max_examples=100, deadline=None)
@given(data=st.binary(max_size=30), stop=st.sampled_from(["a", "\ufffd", "ab"]))
def test_any_bytes_with_a_stop(data: bytes, stop: str) -> None:
    result, _, _, _ = run(list(data), stop=(stop,))
    assert stop not in result


def test_a_stop_inside_a_token_keeps_the_rest_of_the_token() -> None:
    ids = [*TOKENIZER.encode("x"), *TOKENIZER.encode(" the")]
    assert len(ids) == 2
    result, kept, _, _ = run(ids, stop=("he",))
    assert result == "x t"
    assert TOKENIZER.decode(kept) == "x t"
    assert kept[0] == ids[0]


def test_include_stop() -> None:
    assert run(TOKENIZER.encode("one. two"), stop=(".",), include_stop=True)[0] == "one."


def test_nothing_of_a_possible_stop_is_released() -> None:
    _, _, pieces, _ = run(TOKENIZER.encode("ab STO ab STOP"), stop=("STOP",))
    assert "".join(pieces) == "ab STO ab "
    assert not any(piece.endswith(("S", "ST", "STO")) for piece in pieces)


def test_min_tokens_disarms_stops() -> None:
    assert run(TOKENIZER.encode("a.bcd.e"), stop=(".",), min_tokens=4)[0] == "a.bcd"


def test_regex_stop() -> None:
    text, _, pieces, _ = run(TOKENIZER.encode("call 12-34 now"), regex=(r"\d+-\d\d",))
    assert text == "call "
    assert all("1" not in piece for piece in pieces)


def test_special_tokens_are_left_out_of_the_text() -> None:
    ids = [*TOKENIZER.encode("a"), 257, *TOKENIZER.encode("b")]
    assert run(ids)[0] == "ab"
    assert run(ids, skip_special_tokens=False)[0] == "a<|im_start|>b"


def test_a_healed_prefix_is_not_part_of_the_text() -> None:
    output = GenOutput(TOKENIZER, Sampling(stop=("x",)), [], prefix=b" ")
    for token in TOKENIZER.encode(" the"):
        output.push(token, None)
    piece = output.take()
    assert piece is not None
    assert piece.text == "the"
    output.finish(Finish(kind="length"))
    assert output.text == "the"


def test_a_short_stop_from_before_min_tokens_stays_ignored() -> None:
    text, ids, _, finish = run(TOKENIZER.encode("abcdef"), stop=("ab", "vwxyz"), min_tokens=3)
    assert text == "abcdef"
    assert len(ids) == 6
    assert finish == Finish(kind="length")


@settings(max_examples=100, deadline=None)
@given(data=st.binary(max_size=30))
def test_text_that_nobody_follows_is_the_same(data: bytes) -> None:
    output = GenOutput(TOKENIZER, Sampling(), [], logprobs=True, streamed=False)
    for token in data:
        assert output.push(token, TokenLogprob(token, -1.0)) is None
        assert output.take() is None
    assert output.finish(Finish(kind="length")) == Finish(kind="length")
    assert output.text == data.decode("utf-8", "replace")
    piece = output.take()
    assert (piece.token_ids if piece else []) == list(data)
    assert output.take() is None


def test_a_stop_is_found_in_text_that_nobody_follows() -> None:
    output = GenOutput(TOKENIZER, Sampling(stop=("cd",)), [], streamed=False)
    finishes = [output.push(token, None) for token in TOKENIZER.encode("abcd")]
    assert finishes == [None, None, None, Finish(kind="stop", matched="cd")]
    assert output.text == "ab"
