"""`stolon run`: execute a file that holds programs."""

from __future__ import annotations

import argparse
import ast
import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stolon.commands.options import add_model, seed
from stolon.commands.user_traceback import user_traceback
from stolon.errors import InvalidRequest, StolonError

if TYPE_CHECKING:
    from stolon.lang import Function

NAME = "run"
HELP = "run a Python file, or the one program that it defines"

# A file made of these alone does nothing when it is executed: it only defines.
_DEFINITIONS = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Import,
    ast.ImportFrom,
    ast.Assign,
    ast.AnnAssign,
)

# What the values of --arg look like, by the type that the parameter has.
_EXAMPLES = {
    "int": "give a whole number, as 12",
    "float": "give a number, as 0.5",
    "bool": "give true or false",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a Python file; the name sl is stolon in it")
    parser.add_argument(
        "rest", nargs="*", default=[], metavar="ARG", help="after --: the file's sys.argv"
    )
    add_model(parser, default=None)
    group = parser.add_argument_group("a file that only defines one @function")
    group.add_argument(
        "--arg",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="argument of the program; converted by its annotation (int, float, bool, str)",
    )
    group.add_argument("--seed", type=seed, help="seed of the run (default: drawn)")
    group.add_argument(
        "--trace",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="print to stderr where the tokens came from (default: on)",
    )


def run(args: argparse.Namespace) -> int:
    import runpy

    path = Path(args.file)
    does_something = _has_main_code(path)
    if does_something:
        for option, given in (
            ("--arg", bool(args.arg)),
            ("--seed", args.seed is not None),
            ("--trace" if args.trace else "--no-trace", args.trace is not None),
        ):
            if given:
                raise InvalidRequest(
                    f"{option} is for a file that only defines one @function",
                    where=args.file,
                    hint="this file has code of its own; pass its arguments after --",
                )
    elif args.rest:
        raise InvalidRequest(
            f"the argument {args.rest[0]!r} is for a file with code of its own",
            where=args.file,
            hint="this file only defines; pass what its @function takes as --arg NAME=VALUE",
        )
    import stolon

    if args.model is not None:
        engine = stolon.Engine(args.model)
        stolon.set_default_backend(engine)
    try:
        before = sys.argv, sys.path[:]
        sys.argv = [args.file, *args.rest]
        # As `python FILE` does: the file finds the modules next to it.
        sys.path.insert(0, str(path.resolve().parent))
        try:
            names = runpy.run_path(args.file, init_globals={"sl": stolon}, run_name="__main__")
            if not does_something:
                _run_function(_only_function(names, args.file), args)
        except (StolonError, BrokenPipeError):
            raise
        except Exception as error:
            if args.debug:
                raise
            sys.stdout.flush()
            print(user_traceback(error), end="", file=sys.stderr)
            return 1
        finally:
            sys.argv, sys.path[:] = before
    finally:
        if args.model is not None:
            stolon.set_default_backend(None)
            engine.close()
    return 0


def _has_main_code(path: Path) -> bool:
    try:
        source = path.read_bytes()
    except OSError as error:
        raise InvalidRequest(f"{path} can't be read: {error.strerror}") from error
    try:
        tree = ast.parse(source, filename=str(path))
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        raise InvalidRequest(
            f"the file is not valid Python: {getattr(error, 'msg', error)}",
            where=f"{path}:{line}" if line else str(path),
        ) from error
    return any(
        not isinstance(node, _DEFINITIONS)
        and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for node in tree.body
    )


def _only_function(names: dict[str, Any], file: str) -> Function:
    from stolon.lang import Function

    found = [
        value
        for value in names.values()
        if isinstance(value, Function) and value.body.__module__ == "__main__"
    ]
    if len(found) != 1:
        raise InvalidRequest(
            f"the file defines {len(found)} programs and runs none",
            where=file,
            hint="define exactly one @function, or call one: `print(program.run(...).text())`",
        )
    return found[0]


def _run_function(function: Function, args: argparse.Namespace) -> None:
    state = function.run(seed=args.seed, **parse_arguments(function.signature, args.arg))
    print(state.text())
    if args.trace is not False:
        sys.stdout.flush()
        print(state.trace, file=sys.stderr)


def parse_arguments(signature: inspect.Signature, given: list[str]) -> dict[str, Any]:
    """``name=value`` strings as keyword arguments of a program, converted by its annotations."""
    parameters = dict(list(signature.parameters.items())[1:])
    values: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise InvalidRequest(f"--arg {text!r} is not NAME=VALUE", param="arg")
        if name not in parameters:
            known = ", ".join(parameters) or "none"
            raise InvalidRequest(f"the program has no parameter {name!r}", hint=f"it has: {known}")
        if name in values:
            raise InvalidRequest(f"--arg {name} is given twice", param=name)
        values[name] = _convert(name, value, parameters[name].annotation)
    for name, parameter in parameters.items():
        variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if name not in values and parameter.default is parameter.empty and not variadic:
            raise InvalidRequest(f"the program needs --arg {name}=...", param=name)
    return values


def _convert(name: str, text: str, annotation: Any) -> Any:
    kind = getattr(annotation, "__name__", annotation)  # a string under `from __future__`
    try:
        if kind == "int":
            return int(text)
        if kind == "float":
            return float(text)
        if kind == "bool":
            return {"true": True, "false": False, "1": True, "0": False}[text.lower()]
    except (ValueError, KeyError):
        raise InvalidRequest(
            f"--arg {name}: {text!r} is not {kind}", param=name, hint=_EXAMPLES[kind]
        ) from None
    if annotation is inspect.Parameter.empty or kind == "str":
        return text
    raise InvalidRequest(
        f"--arg {name}: values of type {kind} can't be given here",
        param=name,
        hint="call the program from Python",
    )
