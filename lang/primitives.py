"""The words of the language that generate: `gen`, `select`, `separate_reasoning`."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from stolon.errors import InvalidRequest
from stolon.lang.arguments import unexpected, word
from stolon.lang.choices import Choices, selection
from stolon.lang.ir import Expr, ExprList, GenExpr, ReasoningExpr, SelectExpr, as_expr
from stolon.lang.options import SamplingOptions
from stolon.lang.reasoning import family_of
from stolon.lang.typed import data_type, schema_type
from stolon.lang.variables import check_name
from stolon.srt.protocol import GrammarKind, GrammarSpec, JumpForward, SelectMethod, Speculation


@word
def gen(
    name: str | None = None,
    max_tokens: int | None = None,
    min_tokens: int | None = None,
    n: int | None = None,
    stop: str | Sequence[str] | None = None,
    stop_token_ids: Sequence[int] | None = None,
    stop_regex: str | Sequence[str] | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    ignore_eos: bool | None = None,
    return_logprob: bool | None = None,
    logprob_start_len: int | None = None,
    top_logprobs_num: int | None = None,
    return_text_in_logprobs: bool | None = None,
    dtype: type | str | None = None,
    choices: Choices | None = None,
    choices_method: SelectMethod | None = None,
    regex: str | None = None,
    json_schema: Any = None,
    *,
    schema: Any = None,
    ebnf: str | None = None,
    lark: str | None = None,
    repetition_penalty: float | None = None,
    logit_bias: dict[int, float] | None = None,
    skip_special_tokens: bool | None = None,
    seed: int | None = None,
    jump_forward: JumpForward | None = None,
    speculation: Speculation | None = None,
    close_at_budget: bool | None = None,
) -> Expr:
    """Generate text.

    Sampling arguments left at None are those of the run; see `Function.run`.

    Args:
        name: variable that holds the text; without a name the text is only appended.
        n: number of samples. With more than one the variable is the list of their texts, and the
            state goes on from the first.
        seed: makes this generation independent of the run's seed.
        return_logprob, top_logprobs_num: see `ProgramState.get_meta_info`.
        logprob_start_len: also reports the log-probs of the text before, from this token on, as
            ``input_token_logprobs``; -1 reports none.
        return_text_in_logprobs: False reports None in the place of the text of each token.
        skip_special_tokens: False keeps special tokens in the text.
        jump_forward: ``inject`` (default) appends what a constraint forces, ``verify`` and ``off`` sample
            it too; see `protocol.Sampling`.
        speculation: ``off`` never guesses what is repeated; the text is the same either way.
        close_at_budget: constrained text ends valid within `max_tokens`, if it can be completed in time.
        dtype: ``int``, ``float``, ``bool`` or ``str`` (a quoted string); `ProgramState.value` converts.
        choices, choices_method: same as `select`.
        regex, ebnf, lark: the text is in this language.
        schema, json_schema: two names of one argument: a schema as a dict or JSON text, or a type: a
            pydantic model, a dataclass, a TypedDict, an Enum, a Literal, int, float, bool, str, list, dict,
            tuple, Optional, Union. The text is JSON, and `ProgramState.value` gives the value of that type.

    Raises:
        InvalidRequest: for arguments that contradict each other, naming both.
    """
    constraints = {
        "dtype": dtype,
        "choices": choices,
        "regex": regex,
        "json_schema": json_schema,
        "schema": schema,
        "ebnf": ebnf,
        "lark": lark,
    }
    kinds = [key for key, value in constraints.items() if value is not None]
    if len(kinds) > 1:
        raise InvalidRequest(
            f"gen() takes one constraint, not both {kinds[0]} and {kinds[1]}", param=kinds[1]
        )
    if name is not None:
        check_name(name)
    options = SamplingOptions.of(
        {
            "max_tokens": max_tokens,
            "min_tokens": min_tokens,
            "n": n,
            "stop": stop,
            "stop_token_ids": stop_token_ids,
            "stop_regex": stop_regex,
            "temperature": temperature,
            "top_p": top_p,
            "top_k": top_k,
            "min_p": min_p,
            "frequency_penalty": frequency_penalty,
            "presence_penalty": presence_penalty,
            "repetition_penalty": repetition_penalty,
            "logit_bias": logit_bias,
            "ignore_eos": ignore_eos,
            "seed": seed,
            "return_logprob": return_logprob,
            "logprob_start_len": logprob_start_len,
            "top_logprobs_num": top_logprobs_num,
            "return_text_in_logprobs": return_text_in_logprobs,
            "skip_special_tokens": skip_special_tokens,
            "jump_forward": jump_forward,
            "speculation": speculation,
            "close_at_budget": close_at_budget,
        }
    )
    if choices is not None:
        return selection(name, choices, choices_method, options)
    if choices_method is not None:
        raise InvalidRequest("choices_method needs choices", param="choices_method")
    if dtype is not None:
        kind = data_type(dtype)
        return GenExpr(
            name=name,
            options=options,
            grammar=kind.grammar,
            extra_stop=kind.stop,
            decode=kind.decode,
        )
    for key in ("json_schema", "schema"):
        if constraints[key] is not None:
            grammar, decode = schema_type(constraints[key], param=key)
            return GenExpr(name=name, options=options, grammar=grammar, decode=decode)
    return GenExpr(name=name, options=options, grammar=_grammar(regex=regex, ebnf=ebnf, lark=lark))


@word
def gen_int(
    name: str | None = None,
    max_tokens: int | None = None,
    n: int | None = None,
    stop: str | Sequence[str] | None = None,
    **sampling: Any,
) -> Expr:
    """`gen` of an integer. Takes the sampling arguments of `gen`."""
    rest = _without_constraints("gen_int", sampling)
    return gen(name, max_tokens, n=n, stop=stop, dtype=int, **rest)


@word
def gen_string(
    name: str | None = None,
    max_tokens: int | None = None,
    n: int | None = None,
    stop: str | Sequence[str] | None = None,
    **sampling: Any,
) -> Expr:
    """`gen` of a quoted string. Takes the sampling arguments of `gen`."""
    rest = _without_constraints("gen_string", sampling)
    return gen(name, max_tokens, n=n, stop=stop, dtype=str, **rest)


@word
def select(
    name: str | None = None,
    choices: Choices | None = None,
    temperature: float = 0.0,
    choices_method: SelectMethod | None = None,
) -> Expr:
    """Append the choice that the model finds most likely, or draw one.

    Args:
        name: variable that holds the chosen text; `ProgramState.scores` gives the log-probs of all.
        choices: the texts, or pairs of a text and the value that it stands for, of any kind:
            `ProgramState.value` gives the value of the chosen one.
        temperature: 0 takes the best one. Above 0 one is drawn, in proportion to
            exp(score / temperature), where the score is what `choices_method` compares.
        choices_method: ``token_length_normalized`` (mean log-prob per token, the default), ``sum`` (of
            the whole choice), ``greedy_token_selection`` or ``unconditional_likelihood_normalized``; see
            `protocol.Select`.
    """
    if name is not None:
        check_name(name)
    if choices is None:
        raise InvalidRequest("select() needs choices", param="choices")
    options = SamplingOptions.of({"temperature": temperature})
    return selection(name, choices, choices_method, options)


@word
def separate_reasoning(expr: Any = None, model_type: str | None = None) -> Expr:
    """What a model generates, its reasoning kept apart from its answer.

    For each generation and selection inside, the variable *name* and the text of the state hold the answer,
    and *name*``_reasoning_content`` the reasoning. What follows goes on from the answer alone: the model does
    not see its own reasoning again, as its chat template has it.

    A generation under a constraint, and a selection, are about the answer: the model first reasons freely,
    for at most as many tokens as the generation may have, and the constraint begins after the reasoning.

    Args:
        expr: a `gen`, a `select`, or several of them with text between.
        model_type: the family whose markers are looked for, as ``deepseek-r1``, ``qwen3`` or ``gpt-oss``.

    Raises:
        InvalidRequest: for a family that is not known, listing those that are.
    """
    if model_type is None:
        raise InvalidRequest("separate_reasoning() needs a model_type", param="model_type")
    family = family_of(model_type)
    if expr is None:
        return ExprList(())
    whole = as_expr(expr)
    parts = whole.parts if isinstance(whole, ExprList) else (whole,)
    return ExprList(
        tuple(
            ReasoningExpr(part, family) if isinstance(part, GenExpr | SelectExpr) else part
            for part in parts
        )
    )


def _grammar(**texts: str | None) -> GrammarSpec | None:
    kinds: dict[str, GrammarKind] = {"regex": "regex", "ebnf": "ebnf", "lark": "lark"}
    for key, text in texts.items():
        if text is None:
            continue
        if not isinstance(text, str) or not text:
            raise InvalidRequest(f"{key} must be a non-empty string, not {text!r}", param=key)
        return GrammarSpec(kind=kinds[key], text=text)
    return None


_CONSTRAINTS = frozenset(
    {"dtype", "choices", "choices_method", "regex", "json_schema", "schema", "ebnf", "lark"}
)


_SAMPLING = tuple(name for name in inspect.signature(gen).parameters if name not in _CONSTRAINTS)


def _without_constraints(caller: str, arguments: dict[str, Any]) -> dict[str, Any]:
    for key in arguments:
        if key not in _SAMPLING and key not in _CONSTRAINTS:
            raise unexpected(caller, key, _SAMPLING)
        if key in _CONSTRAINTS:
            raise InvalidRequest(f"{key} contradicts {caller}(), which fixes the type", param=key)
    return arguments
