"""Log-probs of a prompt's own tokens, collected while it is prefilled."""

from __future__ import annotations

import torch
from torch import Tensor

from stolon.srt.batching import Run
from stolon.srt.protocol import PromptDone, TokenLogprob


def score_prompt(run: Run, logits: Tensor) -> PromptDone | None:
    """Score the tokens that a run's rows predict, if the request asked for it.

    Args:
        run: a computed run all of whose rows have logits.
        logits: float32 ``[outputs, vocab]`` of the whole step.

    Returns:
        The event to send when the last token of the prompt is scored.
    """
    seq = run.seq
    job = seq.job
    asked = job.request.prompt_logprobs
    if asked is None or job.prompt_reported:
        return None
    if not seq.prompt_logprobs and asked.start == 0:
        seq.prompt_logprobs.append(TokenLogprob(seq.tokens[0], None))
    for row, position in enumerate(range(run.start + 1, min(run.stop + 1, seq.prompt_len))):
        if position >= asked.start:
            logprobs = torch.log_softmax(logits[run.first_output + row], -1)
            token = seq.tokens[position]
            top: list[tuple[int, float]] = []
            if asked.top:
                best = torch.topk(logprobs, min(asked.top, len(logprobs)))
                top = list(zip(best.indices.tolist(), best.values.tolist(), strict=True))
            seq.prompt_logprobs.append(TokenLogprob(token, float(logprobs[token]), top))
    if run.stop < seq.prompt_len:
        return None
    job.prompt_reported = True
    return PromptDone(
        rid=job.request.rid,
        token_ids=seq.tokens[: seq.prompt_len],
        logprobs=seq.prompt_logprobs,
    )
