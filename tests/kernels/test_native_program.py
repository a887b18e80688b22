"""Programs: what they compute, how memory is shared in them, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
from support.native_programs import (
    Sequences,
    TinyDecoder,
    floats,
    ints,
    packed,
    plain_step,
    rms,
    stored,
)

native = pytest.importorskip(
    "stolon.kernels.cpu._native", reason="the extension is not built", exc_type=ImportError
)


@pytest.fixture(scope="module")
def team():
    return native.Team(2)


def ids_of(seed, *counts):
    generator = np.random.default_rng(seed)
    return [generator.integers(TinyDecoder.vocab, size=n).tolist() for n in counts]


# What programs compute


@dataclass
class Value:
    """A buffer of a random program, and how numpy computes it."""

    buffer: int
    width: int
    taken: bool  # a row for each output row
    compute: Callable[[list[np.ndarray], list[int]], np.ndarray]  # of inputs, output rows


def random_program(team, seed):
    """A program, the widths of its inputs, and what it hands out."""
    generator = np.random.default_rng(seed)
    program = native.Program(team)

    def pick(values, like=None):
        fitting = [v for v in values if like is None or (v.width, v.taken) == like]
        return fitting[generator.integers(len(fitting))] if fitting else None

    widths = [32, 48, 64]
    inputs = [int(width) for width in generator.choice(widths, 2)]
    values = [
        Value(program.input(width), width, False, partial(lambda i, xs, rows: xs[i], i))
        for i, width in enumerate(inputs)
    ]
    for number in range(25):
        x = pick(values)
        kind = generator.choice(["norm", "add", "linear", "take"])
        if kind == "take" and not x.taken:
            values.append(take_value(program, x))
        elif kind == "norm":
            y = pick(values, (x.width, x.taken)) if generator.random() < 0.5 else None
            values.append(norm_value(program, x, y, floats(number, x.width)))
        elif kind == "add":
            values.append(add_value(program, x, pick(values, (x.width, x.taken))))
        elif kind == "linear":
            columns = int(generator.choice(widths))
            y = pick(values, (columns, x.taken)) if generator.random() < 0.7 else None
            weight = floats(number, columns, x.width) / np.float32(np.sqrt(x.width))
            values.append(linear_value(program, team, x, y, weight))
    handed = [pick(values) for _ in range(4)] + values[-2:]
    for value in handed:
        program.output(value.buffer)
    program.finish()
    return program, inputs, handed


def take_value(program, x):
    def compute(xs, rows):
        return x.compute(xs, rows)[rows]

    return Value(program.take_outputs(x.buffer), x.width, True, compute)


def norm_value(program, x, y, weight):
    def compute(xs, rows):
        return rms(x.compute(xs, rows), weight, 1e-3) + (y.compute(xs, rows) if y else 0)

    buffer = program.norm(x.buffer, weight, 1e-3, y.buffer if y else -1)
    return Value(buffer, x.width, x.taken, compute)


def add_value(program, x, y):
    def compute(xs, rows):
        return x.compute(xs, rows) + y.compute(xs, rows)

    return Value(program.add(x.buffer, y.buffer), x.width, x.taken, compute)


def linear_value(program, team, x, y, weight):
    def compute(xs, rows):
        return x.compute(xs, rows) @ weight.T + (y.compute(xs, rows) if y else 0)

    matrix = packed(native, team, weight)
    buffer = program.linear(x.buffer, [matrix], residual=y.buffer if y else -1)
    return Value(buffer, len(weight), x.taken, compute)


@pytest.mark.parametrize("seed", range(12))
def test_random_graphs(seed):
    """Whatever is shared, reused or kept to a lane: results are those of the plain computation."""
    for threads in (1, 3):
        program, inputs, handed = random_program(native.Team(threads), seed)
        for rows, outputs in [(3, [2, 0]), (40, [5]), (9, [*range(9), 1]), (1, []), (2, [1])]:
            xs = [floats(seed + i, rows, width) for i, width in enumerate(inputs)]
            results = [
                np.full((len(outputs) if v.taken else rows, v.width), np.nan, np.float32)
                for v in handed
            ]
            program.run(plain_step(native, rows, outputs), xs, results)
            for value, result in zip(handed, results, strict=True):
                expected = value.compute(xs, outputs)
                scale = np.abs(expected).max(initial=1)
                np.testing.assert_allclose(result / scale, expected / scale, atol=2e-4)


@pytest.mark.parametrize("kind", ["F32", "BF16", "Q8_0"])
@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_a_row_is_the_same_in_every_company(threads, kind):
    """Token by token on one thread; then together, in chunks, among others, on several."""
    tokens = ids_of(1, 30, 11)
    alone, together = (TinyDecoder(native, native.Team(n), kind) for n in (1, threads))
    places = [Sequences.new(2), Sequences.new(2)]
    expected = {}
    for i, sequence in enumerate(tokens):
        for p, token in enumerate(sequence):
            step = [[token], []] if i == 0 else [[], [token]]
            logits, hidden = alone.step(places[0].arrays(step, [0]))
            expected[i, p] = logits[0], hidden[0]
    at = [0, 0]
    for counts in [(1, 1), (13, 2), (1, 0), (0, 1), (2, 3), (12, 1), (1, 3)]:
        chunks = [tokens[i][at[i] : at[i] + n] for i, n in enumerate(counts)]
        rows = [(i, at[i] + p) for i, n in enumerate(counts) for p in range(n)]
        wanted = [r for r in range(len(rows)) if r % 2 == 0]
        logits, hidden = together.step(places[1].arrays(chunks, wanted))
        for r, key in enumerate(rows):
            np.testing.assert_array_equal(hidden[r], expected[key][1], err_msg=str(key))
        for found, r in zip(logits, wanted, strict=True):
            np.testing.assert_array_equal(found, expected[rows[r]][0])
        at = [a + n for a, n in zip(at, counts, strict=True)]


def test_no_output_rows(team):
    model, other = TinyDecoder(native, team), TinyDecoder(native, team)
    chunk, place, other_place = ids_of(2, 5), Sequences.new(1), Sequences.new(1)
    logits, hidden = model.step(place.arrays(chunk, []))
    assert logits.shape == (0, model.vocab)
    assert np.isfinite(hidden).all()
    other.step(other_place.arrays(chunk, [4]))
    after = [m.step(p.arrays([[7]], [0]))[0] for m, p in ((model, place), (other, other_place))]
    np.testing.assert_array_equal(*after)


def test_no_rows(team):
    model = TinyDecoder(native, team)
    logits, hidden = model.step(Sequences.new(1).arrays([[]], []))
    assert logits.shape[0] == hidden.shape[0] == 0


def test_empty_program(team):
    program = native.Program(team)
    program.finish()
    program.run(plain_step(native, 3))
    assert program.profile(plain_step(native, 3, [0])) == []


def test_an_input_handed_out_twice(team):
    program = native.Program(team)
    x = program.input(5)
    program.output(x)
    program.output(x)
    program.output(program.take_outputs(x))
    program.finish()
    given = floats(0, 7, 5)
    out = [np.zeros((7, 5), np.float32), np.zeros((7, 5), np.float32), np.zeros((3, 5), np.float32)]
    program.run(plain_step(native, 7, [6, 0, 6]), [given], out)
    for result, expected in zip(out, [given, given, given[[6, 0, 6]]], strict=True):
        np.testing.assert_array_equal(result, expected)


def test_input_as_residual(team):
    """The result must not go where the input still is."""
    ones, weight = np.ones(64, np.float32), floats(1, 64, 64)
    program = native.Program(team)
    x = program.norm(program.input(64), ones, 1e-6)
    y = program.linear(x, [packed(native, team, weight)], residual=x)
    program.output(program.norm(y, ones, 1e-6))
    program.finish()
    given, out = floats(2, 40, 64), np.empty((40, 64), np.float32)
    program.run(plain_step(native, 40), [given], [out])
    hidden = rms(given, ones, 1e-6)
    np.testing.assert_allclose(out, rms(hidden @ weight.T + hidden, ones, 1e-6), atol=1e-4)


def test_memory_of_large_steps_comes_back(team):
    program = native.Program(team)
    x = program.input(64)
    y = program.norm(x, np.ones(64, np.float32), 1e-6)
    program.output(program.norm(y, np.ones(64, np.float32), 1e-6))
    program.finish()
    for rows in [1, 100_000, *[2] * 300, 50]:
        given, out = floats(rows, rows, 64), np.empty((rows, 64), np.float32)
        program.run(plain_step(native, rows), [given], [out])
        np.testing.assert_allclose(out[-1:], rms(given[-1:], 1, 1e-6), atol=1e-4)


def test_a_step_that_is_resized(team):
    model = TinyDecoder(native, team)
    arrays = Sequences.new(2).arrays(ids_of(3, 4, 3), [3, 6])
    step = native.Step(**arrays)
    logits, hidden = model.step(arrays)
    step.resize(4, 1, 1)
    assert (step.rows, step.runs, step.outputs) == (4, 1, 1)
    less = np.empty((1, model.vocab), np.float32), np.empty((4, model.hidden), np.float32)
    model.program.run(step, [], less)
    np.testing.assert_array_equal(less[0], logits[:1])
    np.testing.assert_array_equal(less[1], hidden[:4])
    for sizes, name in [((8, 1, 1), "rows"), ((4, 3, 1), "runs"), ((4, 1, -1), "outputs")]:
        with pytest.raises(ValueError, match=f"Step.resize: {name}"):
            step.resize(*sizes)


@pytest.mark.parametrize("kind", ["F32", "BF16", "Q8_0"])
@pytest.mark.parametrize("lanes", [1, 3])
def test_short_lists_get_their_logits_and_little_else(kind, lanes):
    model = TinyDecoder(native, native.Team(lanes), kind)
    arrays = Sequences.new(3).arrays(ids_of(5, 6, 1, 5), [2, 0, 5, 6, 11, 10])
    whole, hidden = model.step(arrays)
    lists = [ints(49, 3, 3), ints(), ints(0, 15, 16), ints(1), ints(*range(50)), ints(17, 49)]
    for count in range(1, 7):
        logits, again = model.step({**arrays, "short_lists": lists[6 - count :]})
        np.testing.assert_array_equal(again, hidden)
        for row in range(6):
            ids = range(50) if row < 6 - count else lists[row].tolist()
            tiles = {id // 16 for id in ids}
            computed = [column for column in range(50) if column // 16 in tiles]
            np.testing.assert_array_equal(logits[row, computed], whole[row, computed])
            assert np.isnan(logits[row]).sum() == 50 - len(computed)


@pytest.mark.parametrize(
    ("lists", "error", "text"),
    [
        ([ints(3), ints(1, 50)], ValueError, "run: short_lists.1..1. is 50, outside .0, 50."),
        ([ints(-1)], ValueError, "run: short_lists.0..0. is -1"),
        ([ints(3)] * 3, ValueError, "run: there are 3 short_lists for 2 output rows"),
        ([[3]], TypeError, "Step: short_lists"),
        ([np.zeros(1, np.int32)], TypeError, "Step: short_lists"),
        ([np.zeros((1, 1), np.int64)], ValueError, "Step: short_lists"),
        (3, TypeError, "incompatible"),
    ],
)
def test_short_lists_are_checked(team, lists, error, text):
    model = TinyDecoder(native, team)
    arrays = Sequences.new(1).arrays(ids_of(3, 4), [3, 2])
    with pytest.raises(error, match=text):
        model.step({**arrays, "short_lists": lists})


def test_profile_names_the_stages(team):
    model = TinyDecoder(native, team)
    step = native.Step(**Sequences.new(1).arrays(ids_of(4, 20), [19]))
    out = np.empty((1, model.vocab), np.float32), np.empty((20, model.hidden), np.float32)
    profile = model.program.profile(step, [], out)
    names = [name for name, _ in profile]
    assert {"embed", "norm", "prepare", "rotate", "attention", "gated 64>96", "logits 64>50"} <= {
        *names
    }
    assert "take_outputs" not in names  # the norm reads its rows through the list
    assert all(seconds >= 0 for _, seconds in profile)


# Functions beside programs


def test_columns_of_a_matrix(team):
    weight = floats(1, 21, 32)
    matrix = packed(native, team, weight)
    assert (matrix.kind, matrix.columns, matrix.inputs) == ("F32", 21, 32)
    assert matrix.nbytes >= weight.nbytes
    for n in (0, 16, 20):
        np.testing.assert_array_equal(matrix.column(n), weight[n])
    for n in (-1, 21):
        with pytest.raises(ValueError, match=f"column: n is {n}"):
            matrix.column(n)


# What is refused

GOOD = stored(floats(0, 4, 32), "F32")


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (("F8", GOOD, 4, 32), ValueError, "kind is 'F8'"),
        (("F32", GOOD, 5, 32), ValueError, "data has 512 bytes"),
        (("F32", GOOD, 0, 32), ValueError, "columns is 0"),
        (("F32", GOOD, 4, -1), ValueError, "inputs -1"),
        (("F32", GOOD, 2**62, 4), ValueError, "64 bits|columns"),
        (("F32", GOOD, 2**62, 2**62), ValueError, "64 bits"),
        (("Q8_0", GOOD, 4, 33), ValueError, "not a multiple of the block"),
        (("F32", GOOD.view(np.float32), 4, 32), TypeError, "data is not of uint8"),
        (("F32", GOOD[::2], 4, 32), ValueError, "data is not contiguous"),
        (("F32", GOOD.reshape(4, -1), 4, 32), ValueError, "data has 2 dimensions"),
        (("F32", [1, 2], 4, 32), TypeError, "data is not an array"),
    ],
)
def test_pack_refuses(team, arguments, error, text):
    with pytest.raises(error, match=f"{text}"):
        native.pack(team, *arguments)


ATTEND = {
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 16,
    "scale": 0.25,
    "rotary": native.Rotary(np.ones(8), 10),
    "cache_k": np.zeros((20, 2, 16), np.uint16),
    "cache_v": np.zeros((20, 2, 16), np.uint16),
}
READ_ONLY = np.zeros((20, 2, 16), np.uint16)
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    ("changed", "error", "text"),
    [
        ({"heads": 3}, ValueError, "heads is 3"),
        ({"heads": 0}, ValueError, "heads is 0"),
        ({"kv_heads": 0, "cache_k": np.zeros((2, 0, 16), np.uint16),
          "cache_v": np.zeros((2, 0, 16), np.uint16)}, ValueError, "kv_heads is 0"),
        ({"kv_heads": 1}, ValueError, "cache_k has not the shape"),
        ({"heads": 8}, ValueError, "qkv has width 128"),
        ({"window": -1}, ValueError, "window is negative"),
        ({"softcap": -1.0}, ValueError, "softcap"),
        ({"rotary": native.Rotary(np.ones(7), 10)}, ValueError, "rotary has 7 frequencies"),
        ({"rotary": np.ones((10, 8))}, TypeError, "rotary is not a Rotary"),
        ({"cache_k": np.zeros((20, 2, 16), np.float32)}, TypeError, "cache_k is not of bfloat16"),
        ({"cache_k": READ_ONLY}, ValueError, "cache_k is read-only"),
        ({"cache_k": np.zeros((0, 2, 16), np.uint16),
          "cache_v": np.zeros((0, 2, 16), np.uint16)}, ValueError, "cache_k has no slots"),
        ({"cache_v": np.zeros((19, 2, 16), np.uint16)}, ValueError, "cache_v has not the shape"),
        ({"cache_v": np.zeros((2, 20, 16), np.uint16).transpose(1, 0, 2)}, ValueError, "cache_v is not con"),
        ({"head_norm": np.ones((5, 16), np.float32)}, ValueError, "head_norm has not the shape"),
        ({"head_norm": np.ones((6, 16), np.float32), "eps": -1.0}, ValueError, "eps"),
    ],
)  # fmt: skip
def test_attend_refuses(team, changed, error, text):
    program = native.Program(team)
    qkv = program.input(128)
    with pytest.raises(error, match=f"^attend: {text}"):
        program.attend(qkv, **(ATTEND | changed))


def test_recording_refuses(team):
    program = native.Program(team)
    x = program.input(32)
    taken = program.take_outputs(x)
    ones = np.ones(32, np.float32)
    matrix = packed(native, team, floats(0, 32, 32))
    other = packed(native, team, floats(0, 8, 48))
    small = packed(native, team, floats(0, 8, 32))
    cases = [
        (lambda: program.input(0), ValueError, "input: width is 0"),
        (lambda: program.input(2**62), ValueError, "64 bits"),
        (lambda: program.embed(3, 1.0), TypeError, "embed: table is not a Matrix"),
        (lambda: program.norm(9, ones, 1e-6), ValueError, "norm: x is 9"),
        (lambda: program.norm(-1, ones, 1e-6), ValueError, "norm: x is -1"),
        (lambda: program.norm(x, ones[:16], 1e-6), ValueError, "norm: weight has 16"),
        (lambda: program.norm(x, ones, -1.0), ValueError, "norm: eps"),
        (lambda: program.norm(x, ones, 1e-6, taken), ValueError, "norm: add has not"),
        (lambda: program.norm(x, [1.0] * 32, 1e-6), TypeError, "norm: weight is not an array"),
        (lambda: program.linear(x, []), ValueError, "linear: weights is empty"),
        (lambda: program.linear(x, [matrix, 3]), TypeError, r"linear: weights\[1\] is not a Matrix"),
        (lambda: program.linear(x, matrix), TypeError, "linear: weights is not a list"),
        (lambda: program.linear(x, [other]), ValueError, r"linear: weights\[0\] has 48 inputs"),
        (lambda: program.linear(x, [matrix], ones[:8]), ValueError, "linear: bias has 8"),
        (lambda: program.linear(x, [matrix], residual=taken), ValueError, "linear: residual"),
        (lambda: program.linear(x, [small], residual=x), ValueError, "linear: residual"),
        (lambda: program.gated(x, [matrix], [small], "silu"), ValueError, r"gated: up\[0\] has 8"),
        (lambda: program.gated(x, [matrix], [], "silu"), ValueError, "gated: up is empty"),
        (lambda: program.gated(x, [matrix], [matrix], "relu"), ValueError, "gated: activation"),
        (lambda: program.add(x, taken), ValueError, "add: y has not"),
        (lambda: program.attend(taken, **ATTEND), ValueError, "attend: qkv"),
        (lambda: program.take_outputs(taken), ValueError, "take_outputs: x"),
        (lambda: program.logits(x, [other]), ValueError, r"logits: head\[0\]"),
        (lambda: program.output(50), ValueError, "output: x is 50"),
        (lambda: program.run(plain_step(native, 1), [ones[None]]), RuntimeError, "not finished"),
        (lambda: native.Program(3), TypeError, "Program: team"),
    ]  # fmt: skip
    for call, error, text in cases:
        with pytest.raises(error, match=text):
            call()
    program.finish()
    with pytest.raises(RuntimeError, match="norm: the program is finished"):
        program.norm(x, ones, 1e-6)


HUGE = 2**63 - 1


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"input_ids": ints(0, 1, 50)}, r"run: input_ids\[2\] is 50"),
        ({"input_ids": ints(-1, 1, 2)}, r"run: input_ids\[0\] is -1"),
        ({"positions": ints(0, 64, 0)}, r"run: positions\[1\] is 64"),
        ({"write_slots": ints(0, 1, 256)}, r"run: write_slots\[2\] is 256"),
        ({"write_slots": ints(0, -(2**63), 2)}, r"run: write_slots\[1\] is -9"),
        ({"q_lens": ints(2, 0)}, r"run: q_lens\[1\] is 0"),
        ({"q_lens": ints(2, 2)}, r"run: q_lens\[1\] is 2"),
        ({"q_lens": ints(HUGE, HUGE)}, r"run: q_lens\[0\]"),
        ({"q_lens": ints(1, 1)}, "run: q_lens sum to 2, the step has 3"),
        ({"kv_lens": ints(1, 1)}, r"run: kv_lens\[0\] is 1"),
        ({"kv_lens": ints(2, 65)}, r"run: kv_lens\[1\] is 65"),
        ({"table_rows": ints(0, 2)}, r"run: table_rows\[1\] is 2"),
        ({"table_rows": ints(-1, 0)}, r"run: table_rows\[0\] is -1"),
        ({"output_rows": ints(2, 3)}, r"run: output_rows\[1\] is 3"),
        ({"output_rows": ints(0, -1)}, r"run: output_rows\[1\] is -1"),
    ],
)
def test_run_refuses_numbers(team, changed, text):
    model = TinyDecoder(native, team)
    arrays = Sequences.new(2).arrays(ids_of(5, 2, 1), [1, 2]) | changed
    with pytest.raises(ValueError, match=text):
        model.step(arrays)


@pytest.mark.parametrize("slot", [256, -1, HUGE, -HUGE])
def test_run_refuses_slots_that_would_be_read(team, slot):
    model, place = TinyDecoder(native, team), Sequences.new(2)
    model.step(place.arrays(ids_of(5, 20, 0), [0]))
    place.table[1] = slot  # not read: its sequence has no rows
    place.table[0, 30:] = slot  # not read: behind the context
    model.step(place.arrays(ids_of(6, 3, 0), [0]))
    place.table[0, 17] = slot
    with pytest.raises(ValueError, match=r"run: slot_table\[0\]\[17\] is"):
        model.step(place.arrays([[1], []], [0]))


@pytest.mark.parametrize(
    ("changed", "error", "text"),
    [
        ({"input_ids": np.zeros(3, np.int32)}, TypeError, "Step: input_ids is not of int64"),
        ({"input_ids": [0, 1, 2]}, TypeError, "Step: input_ids is not an array"),
        ({"positions": ints(0, 1)}, ValueError, "Step: positions has 2 elements"),
        ({"write_slots": ints(0, 1, 2, 3)}, ValueError, "Step: write_slots has 4"),
        ({"q_lens": ints(2, 1).reshape(1, 2)}, ValueError, "Step: q_lens has 2 dimensions"),
        ({"kv_lens": ints(2)}, ValueError, "Step: kv_lens has 1"),
        ({"table_rows": ints(0, 0, 0, 0)[::2]}, ValueError, "Step: table_rows is not contiguous"),
        ({"slot_table": ints(0, 1)}, ValueError, "Step: slot_table has 1 dimensions"),
        ({"slot_table": np.zeros((4, 8), np.int64).T}, ValueError, "Step: slot_table is not cont"),
        ({"output_rows": np.zeros(1)}, TypeError, "Step: output_rows is not of int64"),
    ],
)
def test_step_refuses(changed, error, text):
    arrays = Sequences.new(2).arrays(ids_of(5, 2, 1), [1, 2])
    with pytest.raises(error, match=text):
        native.Step(**(arrays | changed))


def test_run_refuses_arrays(team):
    program = native.Program(team)
    x = program.input(32)
    program.output(program.norm(x, np.ones(32, np.float32), 1e-6))
    program.finish()
    step, given, out = plain_step(native, 4), floats(0, 4, 32), np.zeros((4, 32), np.float32)
    locked = out.copy()
    locked.flags.writeable = False
    shifted = np.frombuffer(bytearray(4 * 32 * 4 + 1), np.uint8)[1:].view(np.float32).reshape(4, 32)
    program.run(step, (given,), (out,))
    for inputs, outputs, error, text in [
        ([], [out], ValueError, "run: inputs has 0 arrays, not 1"),
        ([given, given], [out], ValueError, "run: inputs has 2 arrays"),
        ([given], [], ValueError, "run: outputs has 0 arrays"),
        ([given[:3]], [out], ValueError, r"run: inputs\[0\] has not the shape \[4, 32\]"),
        ([given.T], [out], ValueError, r"run: inputs\[0\] is not contiguous"),
        ([given.astype(np.float64)], [out], TypeError, r"run: inputs\[0\] is not of float32"),
        ([given], [locked], ValueError, r"run: outputs\[0\] is read-only"),
        ([given], [shifted], ValueError, r"run: outputs\[0\] is not aligned"),
        ([given], [None], TypeError, r"run: outputs\[0\] is not an array"),
        ([given], [out[:, :31].copy()], ValueError, r"run: outputs\[0\] has not the shape"),
    ]:
        with pytest.raises(error, match=text):
            program.run(step, inputs, outputs)


@pytest.mark.parametrize(
    ("frequencies", "positions", "error", "text"),
    [
        (np.ones(8, np.float32), 10, TypeError, "frequencies is not of float64"),
        (np.ones((2, 8)), 10, ValueError, "frequencies has 2 dimensions"),
        (np.ones(8), 0, ValueError, "positions is 0"),
    ],
)
def test_rotary_refuses(frequencies, positions, error, text):
    with pytest.raises(error, match=f"^Rotary: {text}"):
        native.Rotary(frequencies, positions)
