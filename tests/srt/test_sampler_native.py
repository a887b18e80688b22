"""The sampler in C++ gives what the numpy sampler gives, for random rows of every kind; and bad input."""

import math

import numpy as np
import pytest

from stolon.errors import InternalError, StolonError
from stolon.srt.protocol import LogprobSpec, Sampling
from stolon.srt.sampling import Sampled, SamplerRow, sample, token_logprobs

_native = pytest.importorskip(
    "stolon.kernels.cpu._native", reason="the extension is not built", exc_type=ImportError
)
VOCABS = (1, 2, 7, 16, 33, 255, 1003, 1024, 1025, 5000, 49_152, 151_936)
LOGITS = {
    "model": lambda z: z * 3,
    "flat": lambda z: z * 0.2,
    "peaked": lambda z: z * 12,
    "ties": lambda z: np.round(z * 2),
    "equal": lambda z: z * 0 + 1.5,
}


@pytest.fixture(scope="module", params=_native.instruction_sets())
def team(request):
    return _native.Team(2, request.param)


class Mask:
    def __init__(self, form, allowed, vocab):
        bits = np.zeros(vocab, dtype=np.bool_)
        bits[allowed] = True
        self.allow = np.array(allowed) if form == "allow" else None
        self.deny = np.flatnonzero(~bits) if form == "deny" else None
        self.bits = bits if form == "bits" else None
        self.count = len(allowed)


def random_row(rng, vocab, index):
    def some(count):
        return rng.integers(0, vocab, count)

    sampling = {
        "temperature": float(rng.choice([0, 0.3, 1, 1, 2.5])),
        "top_k": int(rng.choice([0, 0, 1, 5, 50, 400, 3000, 40000])),
        "top_p": float(rng.choice([1, 1, 0.3, 0.9, 0.99, 0.9999])),
        "min_p": float(rng.choice([0, 0, 0.05, 0.5, 1])),
    }
    extra = {}
    if rng.random() < 0.3:
        sampling |= {
            "presence_penalty": 0.7,
            "frequency_penalty": -0.4,
            "repetition_penalty": 1.3,
            "logit_bias": {int(token): float(rng.normal() * 5) for token in some(3)},
        }
        extra["output_counts"] = {int(token): int(rng.integers(1, 5)) for token in some(5)}
        extra["seen"] = some(9) if rng.random() < 0.5 else set(some(9).tolist())
    if rng.random() < 0.5:
        allowed = rng.choice(vocab, rng.integers(1, vocab + 1), replace=False)
        form = rng.choice(["allow", "deny", "bits"])
        extra["mask"] = Mask(form, allowed[:3] if rng.random() < 0.3 else allowed, vocab)
    if rng.random() < 0.3:
        extra["banned"] = tuple(some(4).tolist())
    if rng.random() < 0.6:
        mode = str(rng.choice(["raw", "tempered", "processed"]))
        extra["logprobs"] = LogprobSpec(mode=mode, top=int(rng.choice([0, 1, 5, 20])))
    return SamplerRow(
        sampling=Sampling(**sampling),
        seed=int(rng.integers(2**62)),
        sample=index,
        position=index * 7,
        **extra,
    )


def random_batch(vocab, kind, *, rows=12, seed=0):
    rng = np.random.default_rng((seed, vocab, len(kind)))
    logits = LOGITS[kind](rng.standard_normal((rows, vocab))).astype(np.float32)
    logits[6:9, rng.choice(vocab, vocab // 2, replace=False)] = -np.inf
    logits[9, rng.integers(vocab)] = np.nan
    logits[10, rng.integers(vocab)] = np.inf
    logits[11] = -np.inf
    return logits, [random_row(rng, vocab, i) for i in range(rows)]


def assert_same(got, want, row):
    assert type(got) is type(want), (got, want, row)
    if isinstance(want, StolonError):
        assert str(got) == str(want), row
        return
    assert got.token == want.token, row
    if want.logprob is None:
        assert got.logprob is None
        return
    pairs = [(got.token, got.logprob.logprob), *got.logprob.top]
    expected = [(want.token, want.logprob.logprob), *want.logprob.top]
    assert [token for token, _ in pairs] == [token for token, _ in expected], row
    for (_, value), (_, right) in zip(pairs, expected, strict=True):
        assert (value is None) == (right is None)
        assert value is None or value == pytest.approx(right, abs=1e-5), row


@pytest.mark.parametrize("kind", LOGITS)
@pytest.mark.parametrize("vocab", VOCABS)
def test_native_and_numpy_agree(team, vocab, kind):
    logits, rows = random_batch(vocab, kind)
    before = logits.copy()
    for got, want, row in zip(
        sample(logits, rows, team=team), sample(logits, rows), rows, strict=True
    ):
        assert_same(got, want, row)
    assert np.array_equal(logits.view(np.int32), before.view(np.int32))


def test_a_row_is_bitwise_independent_of_its_company_and_the_number_of_lanes(team):
    logits, rows = random_batch(5000, "model", rows=12, seed=1)
    together = [repr(result) for result in sample(logits, rows, team=team)]
    for lanes in (1, 3):
        other = _native.Team(lanes, team.isa)
        order = np.random.default_rng(lanes).permutation(len(rows)).tolist()
        mixed = sample(logits, [rows[i] for i in order], team=other, places=order)
        assert [repr(result) for result in mixed] == [together[i] for i in order]
    for i, row in enumerate(rows):
        alone = sample(logits[i : i + 1].copy(), [row], team=team)
        assert repr(alone[0]) == together[i]


@pytest.mark.parametrize("vocab", [33, 1025, 5000])
def test_denying_leaves_no_trace(team, vocab):
    """Rows that only deny are not copied: they must come out as before, and as from a copy."""
    rng = np.random.default_rng(vocab)
    logits = np.round(rng.standard_normal((12, vocab)) * 2).astype(np.float32)
    logits[8, 3] = np.nan
    logits[9, 3] = np.inf
    logits[10] = -np.inf
    ids = [np.array([3, *rng.integers(0, vocab, vocab // 4), 3]) for _ in range(12)]
    ids[4] = np.arange(vocab)
    masks = [Mask("deny", [], 0) for _ in range(12)]
    rows = []
    for index, mask in enumerate(masks):
        mask.deny = ids[index]
        rows.append(SamplerRow(sampling=Sampling(temperature=index % 3 / 2), seed=index, mask=mask))
    before = logits.copy()
    want = sample(logits, rows)
    for places in (None, list(range(12)), [0, 0, 1, 1, *range(2, 10)]):
        chosen = logits if places is None else logits[places]
        got = sample(logits, rows, team=team, places=places)
        for one, other, row in zip(got, sample(chosen, rows), rows, strict=True):
            assert_same(one, other, row)
        assert logits.tobytes() == before.tobytes()
    logits.flags.writeable = False
    assert [str(one) for one in sample(logits, rows, team=team)] == [str(one) for one in want]


@pytest.mark.parametrize("numpy", [False, True])
def test_of_a_listed_row_nothing_else_is_read(team, numpy):
    vocab, rng = 5000, np.random.default_rng(8)
    logits = rng.standard_normal((300, vocab)).astype(np.float32) * 4
    rows = []
    for index in range(len(logits)):
        row = random_row(rng, vocab, index)
        ids = rng.choice(vocab, [1, 2, 63, 64, 65, 900][index % 6], replace=False)
        row.mask = Mask("allow", np.sort(ids) if index % 4 else ids, vocab)
        if index % 5 == 0:
            row.banned = (*row.banned, *ids[: len(ids) // 2].tolist())
        if row.logprobs is not None:
            row.logprobs = LogprobSpec(mode="processed", top=row.logprobs.top)
        rows.append(row)
    with_team = None if numpy else team
    want = [repr(result) for result in sample(logits, rows, team=with_team)]
    part = np.full_like(logits, np.nan)
    for place, row in enumerate(rows):
        part[place, row.mask.allow] = logits[place, row.mask.allow]
    got = sample(part, rows, team=with_team, whole=0)
    assert [repr(result) for result in got] == want
    part[7, rows[7].mask.allow[0]] = np.nan
    assert isinstance(sample(part, rows, team=with_team, whole=0)[7], InternalError)
    few = sample(part, [rows[0], rows[8]], team=with_team, places=[0, 8], whole=1)
    assert [isinstance(result, InternalError) for result in few] == [True, False]
    rows[8].logprobs = LogprobSpec(mode="raw")
    rows[9].mask = Mask("deny", [0], vocab)
    for place in (8, 9):
        [result] = sample(logits, [rows[place]], team=with_team, places=[place], whole=0)
        assert isinstance(result, InternalError)


def test_known_tokens_score_the_same(team):
    logits, _ = random_batch(5000, "model")
    tokens = list(range(6))
    for top in (0, 4):
        want = token_logprobs(logits[:6], tokens, top=top)
        for got, right in zip(
            token_logprobs(logits[:6], tokens, top=top, team=team), want, strict=True
        ):
            assert got.logprob == pytest.approx(right.logprob, abs=1e-5)
            assert [token for token, _ in got.top] == [token for token, _ in right.top]


def allowing(ids):
    mask = Mask("allow", [0], 8)
    mask.allow = ids
    return mask


BAD_ROWS = {
    "an id of the mask beyond the vocabulary": {"mask": allowing(np.array([3, 1003]))},
    "a negative id": {"mask": allowing(np.array([-1]))},
    "ids of another type": {"mask": allowing(np.array([1.0]))},
    "ids in two dimensions": {"mask": allowing(np.array([[1]]))},
    "no ids": {"mask": allowing(np.array([], dtype=np.int64))},
    "a mask that is none": {"mask": object()},
    "a ban beyond the vocabulary": {"banned": (5000,)},
    "a ban beyond 64 bits": {"banned": (2**80,)},
    "a ban that is no number": {"banned": ("x",)},
    "a count of a token beyond the vocabulary": {
        "sampling": Sampling(frequency_penalty=1.0),
        "output_counts": {1003: 1},
    },
    "a bias for a token beyond the vocabulary": {"sampling": Sampling(logit_bias={-7: 1.0})},
    "a seen token beyond the vocabulary": {
        "sampling": Sampling(repetition_penalty=2.0),
        "seen": {1003},
    },
    "a temperature that is no number": {"sampling": Sampling(temperature=math.nan)},
    "a seed that is no integer": {"seed": 1.5},
}


@pytest.mark.parametrize("fault", BAD_ROWS)
def test_a_bad_row_fails_alone(team, fault):
    logits = np.random.default_rng(0).standard_normal((3, 1003), np.float32)
    rows = [SamplerRow(sampling=Sampling(), seed=i) for i in range(3)]
    sound = sample(logits, rows, team=team)
    rows[1] = SamplerRow(**{"sampling": Sampling(), "seed": 1, **BAD_ROWS[fault]})
    results = sample(logits, rows, team=team)
    assert isinstance(results[1], InternalError)
    assert (results[0], results[2]) == (sound[0], sound[2])
    assert all(isinstance(result, Sampled) for result in sound)


@pytest.mark.parametrize(
    ("logits", "places"),
    [
        (np.zeros((1, 4), dtype=np.float64), None),
        (np.zeros(4, dtype=np.float32), None),
        (np.zeros((1, 0), dtype=np.float32), None),
        (np.zeros((1, 8), dtype=np.float32)[:, ::2], None),
        (np.zeros((2, 4), dtype=np.float32), None),
        (np.zeros((2, 4), dtype=np.float32), [2]),
        (np.zeros((2, 4), dtype=np.float32), [-1]),
        (np.zeros((2, 4), dtype=np.float32), [0, 1]),
        ([[0.0]], None),
    ],
)
def test_arrays_are_checked_before_anything_runs(team, logits, places):
    row = (1.0, 0, 1.0, 0.0, 0, 0, 0, 0, 0, None)
    with pytest.raises((TypeError, ValueError)):
        _native.sample(team, logits, [row], places)
