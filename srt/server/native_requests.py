"""A body of the native route as requests to the engine, one a prompt."""

from __future__ import annotations

import re

from stolon.errors import InvalidRequest
from stolon.srt.protocol import (
    MAX_TOP_LOGPROBS,
    Gen,
    LogprobSpec,
    PromptLogprobs,
    Request,
    Segment,
)
from stolon.srt.server.context import ServerContext, new_id
from stolon.srt.server.native_schemas import GenerateBody, NativeSampling
from stolon.srt.server.openai_schemas import MAX_SALT_CHARS

RID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def native_requests(
    server: ServerContext, body: GenerateBody, sampling: NativeSampling
) -> tuple[list[Request], bool]:
    """The requests, and whether the body is a batch. Raises InvalidRequest."""
    n = sampling.samples()
    inputs, batch = _inputs(server, body, n)
    rids = _rids(body, len(inputs))
    top = body.top_logprobs_num or 0
    start = body.logprob_start_len
    if not 0 <= top <= MAX_TOP_LOGPROBS:
        raise InvalidRequest(
            f"top_logprobs_num must be between 0 and {MAX_TOP_LOGPROBS}",
            param="top_logprobs_num",
        )
    if start is not None and not -1 <= start < 2**31:
        raise InvalidRequest("logprob_start_len is out of range", param="logprob_start_len")
    salt = _salt(body)
    priority = body.priority or 0
    if abs(priority) >= 2**31:
        raise InvalidRequest("priority is out of range", param="priority")
    # -1, SGLang's default, is the end of the prompt: no log-probs of the input.
    scored = bool(body.return_logprob) and start is not None and start >= 0
    gen = Gen(
        sampling=sampling.sampling(server.prompts.vocab_size),
        grammar=sampling.grammar(),
        logprobs=LogprobSpec(top=top) if body.return_logprob else None,
    )
    requests = [
        Request(
            rid=rid,
            segments=[*segments, gen],
            n=n,
            stream=bool(body.stream),
            salt=salt,
            prompt_logprobs=PromptLogprobs(start=start or 0, top=top) if scored else None,
            priority=priority,
        )
        for rid, segments in zip(rids, inputs, strict=True)
    ]
    return requests, batch


def _inputs(server: ServerContext, body: GenerateBody, n: int) -> tuple[list[list[Segment]], bool]:
    """One list of prompt segments per prompt, and whether the body is a batch."""
    prompts = server.prompts
    if (body.text is None) == (body.input_ids is None):
        raise InvalidRequest("give exactly one of text and input_ids", param="text")
    if body.text is not None:
        texts = [body.text] if isinstance(body.text, str) else body.text
        _check_count(server, len(texts), n, "text")
        return [prompts.text(text, "text") for text in texts], not isinstance(body.text, str)
    given = body.input_ids or []
    rows = [row for row in given if isinstance(row, list)]
    if rows and len(rows) != len(given):
        raise InvalidRequest("input_ids mixes ids and lists of ids", param="input_ids")
    batch = bool(rows)
    if not batch:
        rows = [[token for token in given if isinstance(token, int)]]
    _check_count(server, len(rows), n, "input_ids")
    return [prompts.ids(row, "input_ids") for row in rows], batch


def _check_count(server: ServerContext, count: int, n: int, param: str) -> None:
    limits = server.limits
    if not 0 < count <= limits.max_prompts:
        raise InvalidRequest(f"{param} takes 1 to {limits.max_prompts} prompts", param=param)
    if count * n > limits.max_sequences:
        raise InvalidRequest(
            f"prompts times n is above {limits.max_sequences}", param="sampling_params.n"
        )


def _rids(body: GenerateBody, count: int) -> list[str]:
    given = body.rid
    if given is None:
        base = new_id("")
        return [base if count == 1 else f"{base}-{i}" for i in range(count)]
    rids = [given] if isinstance(given, str) else given
    if len(rids) != count or len(set(rids)) != count:
        raise InvalidRequest("rid needs one distinct id per prompt", param="rid")
    if not all(RID.fullmatch(rid) for rid in rids):
        raise InvalidRequest("rid has 1 to 128 letters, digits or any of . _ : -", param="rid")
    return rids


def _salt(body: GenerateBody) -> str:
    if (body.cache_salt or "") and (body.extra_key or ""):
        raise InvalidRequest("give one of cache_salt and extra_key", param="extra_key")
    salt = body.cache_salt or body.extra_key or ""
    if len(salt) > MAX_SALT_CHARS:
        raise InvalidRequest(
            f"cache_salt has at most {MAX_SALT_CHARS} characters", param="cache_salt"
        )
    return salt
