"""The sampler against a plain float64 reference, and draws that nothing but the row decides.

Every test runs on the numpy sampler and on the one in C++, for each instruction set that it has here.
"""

import numpy as np
import pytest
from support.samplers import (
    CASES,
    HISTORY,
    KINDS,
    PENALTIES,
    VOCAB,
    compute_with,
    log_softmax,
    masks,
    one,
    random_logits,
    reference_processed,
    reference_token,
    sample,
)

from stolon.srt.protocol import LogprobSpec, Sampling
from stolon.srt.sampling import (
    SamplerRow,
)


@pytest.fixture(params=KINDS, autouse=True)
def _computed_by(request, monkeypatch):
    compute_with(request.param, monkeypatch)


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
