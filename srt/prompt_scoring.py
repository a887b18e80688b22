"""Log-probs of a prompt's own tokens, collected while it is prefilled."""

from __future__ import annotations

from typing import Any

from stolon.srt.plan import Run
from stolon.srt.protocol import PromptDone, TokenLogprob
from stolon.srt.sampling import Floats, token_logprobs


def score_prompt(run: Run, logits: Floats, *, team: Any = None) -> PromptDone | None:
    """Score the tokens that a run's rows predict, if the request asked for it.

    Args:
        run: a computed run all of whose rows have logits.
        logits: ``[outputs, vocab]`` of the whole step.
        team: as in `sampling.sample`.

    Returns:
        The event to send when the last token of the prompt is scored.

    Raises:
        InternalError: a row of logits holds a NaN or nothing finite.
    """
    seq = run.seq
    job = seq.job
    asked = job.request.prompt_logprobs
    if asked is None or job.prompt_reported:
        return None
    if not seq.prompt_logprobs and asked.start == 0:
        seq.prompt_logprobs.append(TokenLogprob(seq.tokens[0], None))
    # The row at position i predicts the token at i + 1.
    first = max(run.start + 1, asked.start)
    last = min(run.stop + 1, seq.prompt_len)
    if first < last:
        offset = run.first_output - run.start - 1
        seq.prompt_logprobs += token_logprobs(
            logits[offset + first : offset + last],
            seq.tokens[first:last],
            top=asked.top,
            team=team,
        )
    if run.stop < seq.prompt_len:
        return None
    job.prompt_reported = True
    return PromptDone(
        rid=job.request.rid,
        token_ids=seq.tokens[: seq.prompt_len],
        logprobs=seq.prompt_logprobs,
    )
