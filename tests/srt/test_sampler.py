"""The sampler against a plain float64 reference, and what must hold of every row.

Every test runs on the numpy sampler and on the one in C++, for each instruction set that it has here.
"""

import functools
import itertools
import math
from dataclasses import dataclass

import numpy as np
import pytest

from stolon.errors import InternalError, StolonError
from stolon.srt.protocol import LogprobSpec, Sampling
from stolon.srt.sampling import (
    Sampled,
    SamplerRow,
    draw_key,
    log_totals,
    sample,
    token_logprobs,
    token_uniforms,
)

try:
    from stolon.kernels.cpu import _native
except ImportError:
    _native = None

VOCAB = 1_003
KINDS = ["numpy", *(_native.instruction_sets() if _native else ())]


@functools.cache
def team(kind: str):
    return None if kind == "numpy" else _native.Team(2, kind)


@pytest.fixture(params=KINDS, autouse=True)
def _computed_by(request, monkeypatch):
    for function in (sample, token_logprobs, log_totals):
        bound = functools.partial(function, team=team(request.param))
        monkeypatch.setitem(globals(), function.__name__, bound)


@dataclass(frozen=True)
class Mask:
    allow: np.ndarray | None = None
    deny: np.ndarray | None = None
    bits: np.ndarray | None = None
    count: int = 1


def masks(allowed: list[int], vocab: int = VOCAB) -> dict[str, Mask]:
    """The same set of ids in each of the three forms."""
    bits = np.zeros(vocab, dtype=np.bool_)
    bits[allowed] = True
    ids = np.array(sorted(allowed), dtype=np.int64)
    others = np.flatnonzero(~bits).astype(np.int64)
    return {"allow": Mask(allow=ids), "deny": Mask(deny=others), "bits": Mask(bits=bits)}


def random_logits(rows: int, seed: int = 0, spread: float = 3.0, vocab: int = VOCAB):
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((rows, vocab)) * spread).astype(np.float32)


def one(logits: np.ndarray, row: SamplerRow) -> Sampled:
    (result,) = sample(logits.reshape(1, -1), [row])
    if isinstance(result, StolonError):
        raise result
    return result


# The reference: slow, in float64, by definition


def log_softmax(x: np.ndarray) -> np.ndarray:
    return x - x.max() - np.log(np.exp(x - x.max()).sum())


def reference_processed(logits: np.ndarray, row: SamplerRow) -> np.ndarray:
    """Log-probs ``[V]`` of the distribution that the row's token is drawn from."""
    s, x = row.sampling, logits.astype(np.float64)
    for i in set(row.seen if row.seen is not None else ()):
        x[i] = x[i] / s.repetition_penalty if x[i] > 0 else x[i] * s.repetition_penalty
    for i, count in row.output_counts.items():
        x[i] -= s.frequency_penalty * count + s.presence_penalty
    for i, bias in s.logit_bias.items():
        x[i] += bias
    if row.mask is not None:
        allowed = np.ones(len(x), dtype=bool)
        if row.mask.allow is not None:
            allowed[:] = False
            allowed[row.mask.allow] = True
        elif row.mask.deny is not None:
            allowed[row.mask.deny] = False
        elif row.mask.bits is not None:
            allowed = row.mask.bits
        x[~allowed] = -np.inf
    x[list(row.banned)] = -np.inf
    ranked = sorted(range(len(x)), key=lambda i: (-x[i], i))
    if s.temperature == 0:
        ranked = ranked[:1]
    else:
        x = x / s.temperature
    if s.top_k:
        ranked = ranked[: s.top_k]
    p = np.exp(log_softmax(x[ranked]))
    keep = 1 + int(np.searchsorted(np.cumsum(p), s.top_p * p.sum())) if s.top_p < 1 else len(p)
    ranked, p = ranked[:keep], p[:keep]
    ranked = [i for i, w in zip(ranked, p, strict=True) if w >= s.min_p * p[0]]
    final = np.full(len(x), -np.inf)
    final[ranked] = log_softmax(x[ranked])
    return final


def reference_token(final: np.ndarray, row: SamplerRow) -> int:
    """The Gumbel-max trick, by definition."""
    key = draw_key(row.seed, row.sample, row.position)
    numbers = token_uniforms(key, np.arange(len(final), dtype=np.uint32)).astype(np.float64)
    return int(np.argmax(final - np.log(-np.log1p(-numbers))))


CASES = [
    {"temperature": t, "top_k": k, "top_p": p, "min_p": m}
    for t, k, p, m in itertools.product(
        (0.0, 0.3, 1.0, 2.5), (0, 1, 7, 400), (1.0, 0.95, 0.3), (0.0, 0.02, 0.5)
    )
]
HISTORY = {
    "output_counts": {3: 1, 10: 4, 500: 2},
    "seen": np.array([1, 3, 10, 77, 500, 900], dtype=np.int64),
}
PENALTIES = {
    "presence_penalty": 0.7,
    "frequency_penalty": -0.4,
    "repetition_penalty": 1.3,
    "logit_bias": {2: 5.0, 10: -100.0},
}


@pytest.mark.parametrize("spread", [0.5, 3.0, 12.0])
@pytest.mark.parametrize("kind", ["plain", "penalties", "allow", "deny", "bits", "everything"])
def test_tokens_and_processed_logprobs_match_the_reference(kind, spread):
    rng = np.random.default_rng(5)
    allowed = rng.choice(VOCAB, 300, replace=False).tolist()
    extra: dict = {}
    if kind in ("penalties", "everything"):
        extra.update(HISTORY)
    if kind == "everything":
        extra.update(mask=masks(allowed)["bits"], banned=(allowed[0], allowed[1], 2))
    elif kind in ("allow", "deny", "bits"):
        extra.update(mask=masks(allowed)[kind])
    penalties = PENALTIES if kind in ("penalties", "everything") else {}
    rows = [
        SamplerRow(
            sampling=Sampling(**case, **penalties),
            seed=seed,
            sample=seed % 3,
            position=40 + seed,
            logprobs=LogprobSpec(mode="processed", top=4),
            **extra,
        )
        for seed, case in enumerate(CASES)
    ]
    logits = random_logits(len(rows), seed=11, spread=spread)
    before = logits.copy()
    for row, values, result in zip(rows, logits, sample(logits, rows), strict=True):
        final = reference_processed(values, row)
        if row.sampling.temperature == 0:
            assert result.token == int(final.argmax())
        else:
            assert result.token == reference_token(final, row), row.sampling
        assert result.logprob.token == result.token
        assert result.logprob.logprob == pytest.approx(final[result.token], abs=2e-5)
        best = [i for i in np.argsort(-final, kind="stable")[:4] if final[i] > -np.inf]
        assert [token for token, _ in result.logprob.top] == best, row.sampling
        for token, value in result.logprob.top:
            assert value == pytest.approx(final[token], abs=2e-5)
    assert np.array_equal(logits, before)


@pytest.mark.parametrize("top_p", [0.9, 0.999])
@pytest.mark.parametrize("spread", [0.0, 0.2, 3.0])
def test_a_nucleus_of_a_large_flat_vocabulary_is_exact(spread, top_p):
    logits = random_logits(1, seed=3, spread=spread, vocab=50_000)
    row = SamplerRow(
        sampling=Sampling(top_p=top_p),
        seed=1,
        logprobs=LogprobSpec(mode="processed", top=3),
    )
    final = reference_processed(logits[0], row)
    result = one(logits, row)
    assert result.token == reference_token(final, row)
    assert result.logprob.logprob == pytest.approx(final[result.token], abs=2e-5)


def test_draws_follow_the_softmax():
    count = 20_000
    logits = np.linspace(-2.0, 2.0, 16, dtype=np.float32)
    row = SamplerRow(sampling=Sampling(temperature=0.8), seed=99)
    observed = np.zeros(16)
    for position in range(count):
        row.position = position
        observed[one(logits, row).token] += 1
    expected = np.exp(log_softmax(logits.astype(np.float64) / 0.8)) * count
    # 15 degrees of freedom: 37.7 is the 99.9 % quantile.
    assert ((observed - expected) ** 2 / expected).sum() < 37.7


def test_rounding_moves_no_draw():
    """Logits that differ as another batch shape makes them differ give the same tokens."""
    logits = random_logits(64, seed=5, spread=2.0, vocab=50_000)
    noise = np.random.default_rng(1).standard_normal(logits.shape, np.float32) * np.float32(5e-6)
    rows = [SamplerRow(sampling=Sampling(), seed=9, position=i) for i in range(64)]
    tokens = [result.token for result in sample(logits, rows)]
    assert [result.token for result in sample(logits + noise, rows)] == tokens
    assert len(set(tokens)) > 50


def test_a_filter_that_keeps_the_winner_does_not_change_the_draw():
    logits = random_logits(50, seed=6, spread=2.0)
    for position in range(50):
        free = SamplerRow(sampling=Sampling(), seed=2, position=position)
        token = one(logits[position], free).token
        kept = sorted({token, *range(0, 900, 3)})
        for mask in masks(kept).values():
            row = SamplerRow(sampling=Sampling(), seed=2, position=position, mask=mask)
            assert one(logits[position], row).token == token


def varied_rows() -> list[SamplerRow]:
    allowed = list(range(5, 800, 7))
    rows = []
    for seed, case in enumerate(CASES[::5]):
        row = SamplerRow(
            sampling=Sampling(**case, **(PENALTIES if seed % 3 == 0 else {})),
            seed=seed,
            logprobs=LogprobSpec(mode=("raw", "tempered", "processed")[seed % 3], top=seed % 4),
            mask=[None, *masks(allowed).values()][seed % 4],
            **(HISTORY if seed % 3 == 0 else {}),
        )
        rows.append(row)
    return rows


def test_a_row_does_not_depend_on_its_company():
    rows = varied_rows()
    logits = random_logits(len(rows), seed=21)
    together = sample(logits, rows)
    assert together == [one(logits[i].copy(), row) for i, row in enumerate(rows)]
    order = np.random.default_rng(1).permutation(len(rows)).tolist()
    assert sample(logits[order], [rows[i] for i in order]) == [together[i] for i in order]


@pytest.mark.parametrize("case", range(0, len(CASES), 7))
def test_the_forms_of_a_mask_agree(case):
    allowed = np.random.default_rng(case).choice(VOCAB, 40, replace=False).tolist()
    logits = random_logits(1, seed=case)
    results = [
        one(
            logits,
            SamplerRow(
                sampling=Sampling(**CASES[case]),
                seed=case,
                mask=mask,
                logprobs=LogprobSpec(mode="processed", top=5),
            ),
        )
        for mask in masks(allowed).values()
    ]
    assert len({result.token for result in results}) == 1
    assert results[0].token in allowed
    assert len({result.logprob.top[0][0] for result in results}) == 1


def test_a_full_mask_and_an_unsorted_allow_list_are_fine():
    logits = random_logits(1)
    plain = one(logits, SamplerRow(sampling=Sampling(), seed=4))
    for full in (Mask(), Mask(deny=np.empty(0, dtype=np.int64))):
        assert one(logits, SamplerRow(sampling=Sampling(), seed=4, mask=full)) == plain
    shuffled = Mask(allow=np.array([9, 2, 700, 2]))
    tidy = Mask(allow=np.array([2, 9, 700]))
    for seed in range(20):
        rows = [SamplerRow(sampling=Sampling(), seed=seed, mask=m) for m in (shuffled, tidy)]
        assert one(logits, rows[0]) == one(logits, rows[1])


def test_a_short_bit_mask_allows_nothing_past_its_end():
    logits = np.zeros(10, np.float32)
    logits[9] = 50.0
    row = SamplerRow(sampling=Sampling(), seed=0, mask=Mask(bits=np.ones(8, dtype=np.bool_)))
    assert one(logits, row).token < 8


def test_greedy_takes_the_lowest_of_equals():
    logits = np.zeros(50, np.float32)
    logits[[20, 30, 40]] = 1.0
    assert one(logits, SamplerRow(sampling=Sampling(temperature=0), seed=0)).token == 20
    mask = Mask(allow=np.array([30, 40]))
    assert one(logits, SamplerRow(sampling=Sampling(temperature=0), seed=0, mask=mask)).token == 30
    assert one(logits, SamplerRow(sampling=Sampling(temperature=1e-9), seed=0)).token == 20


def test_top_k_keeps_exactly_k_of_equals():
    row = SamplerRow(
        sampling=Sampling(top_k=3), seed=0, logprobs=LogprobSpec(mode="processed", top=9)
    )
    result = one(np.zeros(5_000, np.float32), row)
    assert [token for token, _ in result.logprob.top] == [0, 1, 2]
    assert result.logprob.logprob == pytest.approx(-math.log(3))


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("mode", ["raw", "tempered"])
def test_raw_and_tempered_logprobs_ignore_everything_else(mode, temperature):
    logits = random_logits(1, seed=8)
    row = SamplerRow(
        sampling=Sampling(temperature=temperature, top_k=3, **PENALTIES),
        seed=2,
        logprobs=LogprobSpec(mode=mode, top=6),
        mask=masks(list(range(100, 120)))["allow"],
        **HISTORY,
    )
    result = one(logits, row)
    scale = temperature if mode == "tempered" and temperature else 1.0
    expected = log_softmax(logits[0].astype(np.float64) / scale)
    assert result.logprob.logprob == pytest.approx(expected[result.token], abs=1e-6)
    best = np.argsort(-expected, kind="stable")[:6].tolist()
    assert [token for token, _ in result.logprob.top] == best
    assert [v for _, v in result.logprob.top] == pytest.approx(expected[best].tolist(), abs=1e-6)


def test_alternatives_without_probability_are_not_reported():
    logits = np.full(40, -math.inf, np.float32)
    logits[[3, 5]] = 1.0
    for mode in ("raw", "tempered", "processed"):
        row = SamplerRow(sampling=Sampling(), seed=0, logprobs=LogprobSpec(mode=mode, top=10))
        assert [token for token, _ in one(logits, row).logprob.top] == [3, 5]


def test_a_greedy_choice_has_processed_logprob_zero():
    row = SamplerRow(
        sampling=Sampling(temperature=0),
        seed=0,
        logprobs=LogprobSpec(mode="processed", top=5),
    )
    result = one(random_logits(1), row)
    assert result.logprob.logprob == 0.0
    assert result.logprob.top == [(result.token, 0.0)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_banned_tokens_do_not_come_unless_the_grammar_has_nothing_else(temperature):
    logits = np.zeros(60, np.float32)
    logits[[4, 5]] = 30.0
    sampling = Sampling(temperature=temperature, min_tokens=3)
    for mask in (None, *masks([4, 5, 6], 60).values()):
        row = SamplerRow(sampling=sampling, seed=1, banned=(4, 5), mask=mask)
        token = one(logits, row).token
        assert token == 6 if mask else token not in (4, 5)
    for mask in masks([4, 5], 60).values():
        row = SamplerRow(sampling=sampling, seed=1, banned=(4, 5), mask=mask)
        assert one(logits, row).token in (4, 5)


def test_a_single_allowed_token_is_taken_and_scored():
    logits = random_logits(1, seed=6)
    for mask in masks([321]).values():
        row = SamplerRow(sampling=Sampling(), seed=0, mask=mask, logprobs=LogprobSpec(top=1))
        result = one(logits, row)
        assert result.token == 321
        expected = log_softmax(logits[0].astype(np.float64))[321]
        assert result.logprob.logprob == pytest.approx(expected, abs=1e-6)


def test_penalties_count_only_what_they_should():
    logits = np.array([2.0, 1.0, -1.0, 0.0], np.float32)
    common = {"seed": 0, "logprobs": LogprobSpec(mode="processed", top=4)}
    row = SamplerRow(
        sampling=Sampling(presence_penalty=0.5, frequency_penalty=0.25),
        output_counts={0: 2},
        seen={0, 1, 2},
        **common,
    )
    expected = log_softmax(np.array([1.0, 1.0, -1.0, 0.0]))
    assert dict(one(logits, row).logprob.top) == pytest.approx(dict(enumerate(expected)), abs=1e-6)
    row = SamplerRow(sampling=Sampling(repetition_penalty=2.0), seen={0, 2}, **common)
    expected = log_softmax(np.array([1.0, 1.0, -2.0, 0.0]))
    assert dict(one(logits, row).logprob.top) == pytest.approx(dict(enumerate(expected)), abs=1e-6)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda x: x.__setitem__(700, math.nan), "NaN"),
        (lambda x: x.fill(math.nan), "NaN"),
        (lambda x: x.fill(-math.inf), "no allowed token"),
        (lambda x: x.__setitem__(3, math.inf), "infinite"),
    ],
    ids=["one nan", "all nan", "all -inf", "one inf"],
)
@pytest.mark.parametrize("mask", [None, *masks([1, 2, 3]).values()], ids=["none", "a", "d", "b"])
def test_a_broken_row_fails_alone(damage, reason, temperature, mask):
    logits = random_logits(3)
    rows = [
        SamplerRow(sampling=Sampling(temperature=temperature), seed=i, mask=mask) for i in range(3)
    ]
    sound = sample(logits, rows)
    damage(logits[1])
    results = sample(logits, rows)
    assert isinstance(results[1], InternalError)
    assert reason in str(results[1])
    assert (results[0], results[2]) == (sound[0], sound[2])


def test_faults_of_one_row_do_not_reach_the_others():
    logits = random_logits(3)
    rows = [SamplerRow(sampling=Sampling(), seed=i) for i in range(3)]
    rows[0].mask = Mask(allow=np.array([], dtype=np.int64), count=0)
    rows[1].banned = (VOCAB + 5,)
    results = sample(logits, rows)
    assert [type(result) for result in results] == [InternalError, InternalError, Sampled]


def test_extreme_logits_and_temperatures_are_handled():
    logits = np.array([[3e38, -3e38, 0.0, -math.inf], [-1e-30, 1e-30, 0.0, -1.0]], np.float32)
    for temperature in (1e-5, 1.0, 100.0):
        rows = [SamplerRow(sampling=Sampling(temperature=temperature), seed=0)] * 2
        assert sample(logits, rows)[0] == Sampled(0)
        assert isinstance(sample(logits, rows)[1], Sampled)
    for top_p, min_p in ((1e-9, 0.0), (1 - 1e-12, 0.0), (1.0, 1.0)):
        rows = [SamplerRow(sampling=Sampling(top_p=top_p, min_p=min_p), seed=0)] * 2
        assert sample(logits, rows)[0] == Sampled(0)
        assert isinstance(sample(logits, rows)[1], Sampled)


def test_rows_and_logits_must_agree():
    with pytest.raises(InternalError):
        sample(random_logits(2), [])


def test_known_tokens_are_scored():
    logits = random_logits(4, seed=2)
    tokens = [5, 0, VOCAB - 1, 77]
    expected = log_softmax(logits[2].astype(np.float64))
    scored = token_logprobs(logits, tokens, top=2)
    assert [entry.token for entry in scored] == tokens
    assert scored[2].logprob == pytest.approx(expected[VOCAB - 1], abs=1e-6)
    assert scored[2].top[0][0] == int(expected.argmax())
    assert token_logprobs(logits[2:3], tokens[2:3], top=2) == scored[2:3]
    with pytest.raises(InternalError):
        token_logprobs(logits, [1])


def test_log_totals_normalise_and_tell_what_is_broken():
    logits = random_logits(4, seed=4)
    logits[1, 7] = math.nan
    logits[2] = -math.inf
    totals = log_totals(logits)
    for i in (0, 3):
        total = np.logaddexp.reduce(logits[i].astype(np.float64))
        assert totals[i] == pytest.approx(total, abs=1e-6)
    assert math.isnan(totals[1])
    assert math.isnan(totals[2])


def test_scoring_a_broken_row_is_an_error():
    logits = random_logits(2)
    logits[1, 7] = math.nan
    for top in (0, 3):
        with pytest.raises(InternalError, match="NaN"):
            token_logprobs(logits, [1, 1], top=top)


def test_an_impossible_known_token_has_no_logprob():
    logits = random_logits(1)
    logits[0, 5] = -math.inf
    for top in (0, 3):
        (scored,) = token_logprobs(logits, [5], top=top)
        assert (scored.logprob, len(scored.top)) == (None, top)


def test_places_name_the_row_of_each():
    logits = random_logits(6)
    rows = [SamplerRow(sampling=Sampling(), seed=3, position=i) for i in range(4)]
    places = [5, 0, 2, 2]
    assert sample(logits, rows, places=places) == sample(logits[places], rows)


def test_rows_of_a_wider_array_need_no_copy():
    wide = random_logits(3, vocab=VOCAB + 50)
    wide[:, VOCAB:] = 100.0
    rows = [SamplerRow(sampling=Sampling(top_p=0.9), seed=i) for i in range(3)]
    assert sample(wide[:, :VOCAB], rows) == sample(wide[:, :VOCAB].copy(), rows)
