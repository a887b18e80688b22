"""What masks, bans, ties and penalties do to a row, and which log-probs are told of it.

Every test runs on the numpy sampler and on the one in C++, for each instruction set that it has here.
"""

import math

import numpy as np
import pytest
from support.samplers import (
    CASES,
    HISTORY,
    KINDS,
    PENALTIES,
    VOCAB,
    Mask,
    compute_with,
    log_softmax,
    masks,
    one,
    random_logits,
)

from stolon.srt.protocol import LogprobSpec, Sampling
from stolon.srt.sampling import (
    SamplerRow,
)


@pytest.fixture(params=KINDS, autouse=True)
def _computed_by(request, monkeypatch):
    compute_with(request.param, monkeypatch)


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
