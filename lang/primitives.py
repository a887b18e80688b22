"""The words of the language: `gen`, `select`, the roles."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn, get_args

from stolon.errors import InvalidRequest
from stolon.lang.arguments import unexpected, word
from stolon.lang.ir import Expr, GenExpr, Role, RoleBegin, RoleEnd, SelectExpr, as_expr
from stolon.lang.options import SamplingOptions
from stolon.lang.typed import data_type, schema_type
from stolon.srt.protocol import (
    MAX_CHOICES,
    GrammarKind,
    GrammarSpec,
    JumpForward,
    SelectMethod,
    Speculation,
)

token_length_normalized: SelectMethod = "token_length_normalized"
greedy_token_selection: SelectMethod = "greedy_token_selection"
unconditional_likelihood_normalized: SelectMethod = "unconditional_likelihood_normalized"


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
    repetition_penalty: float | None = None,
    logit_bias: dict[int, float] | None = None,
    ignore_eos: bool | None = None,
    seed: int | None = None,
    return_logprob: bool | None = None,
    top_logprobs_num: int | None = None,
    jump_forward: JumpForward | None = None,
    speculation: Speculation | None = None,
    close_at_budget: bool | None = None,
    dtype: type | str | None = None,
    choices: Sequence[str] | None = None,
    choices_method: SelectMethod | None = None,
    regex: str | None = None,
    json_schema: Any = None,
    schema: Any = None,
    ebnf: str | None = None,
    lark: str | None = None,
) -> Expr:
    """Generate text.

    Sampling arguments left at None are those of the run; see `Function.run`.

    Args:
        name: variable that holds the text; without a name the text is only appended.
        n: number of samples. With more than one the variable is the list of their texts, and the
            state goes on from the first.
        seed: makes this generation independent of the run's seed.
        return_logprob, top_logprobs_num: see `ProgramState.get_meta_info`.
        jump_forward: ``inject`` (default) appends what a constraint forces, ``verify`` and ``off`` sample
            it too; see `protocol.Sampling`.
        speculation: ``off`` never guesses what is repeated; the text is the same either way.
        close_at_budget: constrained text ends valid within `max_tokens`, if it can be completed in time.
        dtype: ``int``, ``float``, ``bool`` or ``str`` (a quoted string); `ProgramState.value`
        converts. choices, choices_method: same as `select`.
        regex, ebnf, lark: the text is in this language.
        json_schema, schema: two names of one argument: a dict, JSON text, a pydantic model or a
            dataclass; `ProgramState.value` gives the instance.

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
    _check_name(name)
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
            "top_logprobs_num": top_logprobs_num,
            "jump_forward": jump_forward,
            "speculation": speculation,
            "close_at_budget": close_at_budget,
        }
    )
    if choices is not None:
        return _choices(name, choices, choices_method, options)
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
def gen_int(name: str | None = None, **sampling: Any) -> Expr:
    """`gen` of an integer. Takes the sampling arguments of `gen`."""
    return gen(name, dtype=int, **_without_constraints("gen_int", sampling))


@word
def gen_string(name: str | None = None, **sampling: Any) -> Expr:
    """`gen` of a quoted string. Takes the sampling arguments of `gen`."""
    return gen(name, dtype=str, **_without_constraints("gen_string", sampling))


@word
def select(
    name: str | None = None,
    choices: Sequence[str] | None = None,
    temperature: float = 0.0,
    choices_method: SelectMethod | None = None,
) -> Expr:
    """Append the choice that the model finds most likely, or draw one.

    Args:
        name: variable that holds the chosen text; `ProgramState.scores` gives the log-probs of all.
        temperature: 0 takes the best one. Above 0 one is drawn, in proportion to
            exp(score / temperature), where the score is what `choices_method` compares.
        choices_method: ``token_length_normalized`` (mean log-prob per token, the default), ``sum`` (of
            the whole choice), ``greedy_token_selection`` or ``unconditional_likelihood_normalized``; see
            `protocol.Select`.
    """
    _check_name(name)
    if choices is None:
        raise InvalidRequest("select() needs choices", param="choices")
    options = SamplingOptions.of({"temperature": temperature})
    return _choices(name, choices, choices_method, options)


@word
def system(expr: Any = None) -> Expr:
    """A complete system message."""
    return _message("system", expr)


@word
def user(expr: Any = None) -> Expr:
    """A complete user message."""
    return _message("user", expr)


@word
def assistant(expr: Any = None) -> Expr:
    """A complete assistant message, usually with a generation inside."""
    return _message("assistant", expr)


@word
def system_begin() -> Expr:
    """Open a system message."""
    return RoleBegin("system")


@word
def system_end() -> Expr:
    """Close a system message."""
    return RoleEnd("system")


@word
def user_begin() -> Expr:
    """Open a user message."""
    return RoleBegin("user")


@word
def user_end() -> Expr:
    """Close a user message."""
    return RoleEnd("user")


@word
def assistant_begin() -> Expr:
    """Open an assistant message."""
    return RoleBegin("assistant")


@word
def assistant_end() -> Expr:
    """Close an assistant message."""
    return RoleEnd("assistant")


@word
def image(path: str) -> NoReturn:
    """Refused: no model with image input is implemented."""
    raise InvalidRequest(f"image({path!r}): images are not supported; text models only")


@word
def video(path: str, num_frames: int) -> NoReturn:
    """Refused: no model with video input is implemented."""
    raise InvalidRequest(f"video({path!r}): videos are not supported; text models only")


def _message(role: Role, expr: Any) -> Expr:
    inside = [] if expr is None else [expr]
    return as_expr([RoleBegin(role), *inside, RoleEnd(role)])


def _choices(
    name: str | None,
    choices: Sequence[str],
    method: SelectMethod | None,
    options: SamplingOptions,
) -> SelectExpr:
    for key in options.given():
        if key in ("temperature", "seed"):
            continue
        if key == "n" and options.n == 1:
            continue
        raise InvalidRequest(
            f"{key} contradicts choices: a selection scores every choice and samples no tokens",
            param=key,
        )
    if isinstance(choices, str) or not isinstance(choices, Iterable):
        raise InvalidRequest("choices must be a list of strings", param="choices")
    texts = tuple(choices)
    if not all(isinstance(text, str) and text for text in texts):
        raise InvalidRequest("every choice must be a non-empty string", param="choices")
    if not 1 <= len(texts) <= MAX_CHOICES:
        raise InvalidRequest(
            f"choices needs 1 to {MAX_CHOICES} strings, not {len(texts)}", param="choices"
        )
    if len(set(texts)) < len(texts):
        twice = next(text for text in texts if texts.count(text) > 1)
        raise InvalidRequest(f"choices lists {twice!r} twice", param="choices")
    if method is not None and method not in get_args(SelectMethod):
        raise InvalidRequest(
            f"choices_method must be one of {', '.join(get_args(SelectMethod))}, not {method!r}",
            param="choices_method",
        )
    temperature = options.temperature or 0.0
    if temperature > 0 and method == greedy_token_selection:
        raise InvalidRequest(
            "temperature contradicts greedy_token_selection, which draws nothing",
            param="temperature",
        )
    return SelectExpr(
        name=name,
        choices=texts,
        method=method or token_length_normalized,
        temperature=temperature if temperature > 1e-5 else 0.0,
        seed=options.seed,
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


def _check_name(name: str | None) -> None:
    if name is not None and (not isinstance(name, str) or not name):
        raise InvalidRequest(f"name must be a non-empty string, not {name!r}", param="name")


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
