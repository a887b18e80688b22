"""Broken and extreme rows, of which each fails alone, and scores of tokens that are known.

Every test runs on the numpy sampler and on the one in C++, for each instruction set that it has here.
"""

import math

import numpy as np
import pytest
from support.samplers import (
    KINDS,
    VOCAB,
    Mask,
    compute_with,
    log_softmax,
    log_totals,
    masks,
    random_logits,
    sample,
    token_logprobs,
)

from stolon.errors import InternalError
from stolon.srt.protocol import Sampling
from stolon.srt.sampling import (
    Sampled,
    SamplerRow,
)


@pytest.fixture(params=KINDS, autouse=True)
def _computed_by(request, monkeypatch):
    compute_with(request.param, monkeypatch)


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
