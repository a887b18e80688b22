"""`stolon check`: run a public conformance suite against the grammar compiler."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from stolon.commands.options import positive

if TYPE_CHECKING:
    from stolon.constrained import Vocabulary

NAME = "check"
HELP = "check what of a public suite of schemas or regexes is enforced, refused or wrong"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("suite", choices=("maskbench", "jsts", "regex"))
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument(
        "--tokenizer",
        default="bytes",
        metavar="TOKENIZER",
        help="a .gguf file, a tokenizer.json or its folder, a name from `stolon models`, "
        "or bytes: one token per byte (default)",
    )
    parser.add_argument(
        "--masks", action="store_true", help="compute and time the mask of every token"
    )
    parser.add_argument(
        "--walks", type=positive, default=0, metavar="N", help="random texts per schema, validated"
    )
    parser.add_argument(
        "--draft",
        metavar="NAME",
        help="2020-12 (default), 2019-09, draft-07, … where none is named",
    )
    parser.add_argument("--optional", action="store_true", help="the optional tests of the draft")
    parser.add_argument(
        "--remotes", type=Path, metavar="DIR", help="documents that schemas may refer to"
    )
    parser.add_argument("--remotes-prefix", default="http://localhost:1234/", metavar="URI")
    parser.add_argument("--whitespace", choices=("pep", "compact"), default="pep")
    parser.add_argument(
        "--limit-ms", type=positive, default=10_000, metavar="MS", help="time per case (10000)"
    )
    parser.add_argument(
        "--ratchet", type=Path, metavar="FILE", help="exit with 1 if a case is worse than it says"
    )
    parser.add_argument("--update", action="store_true", help="write the ratchet file")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write everything as JSON")
    parser.add_argument("--match", default="", metavar="TEXT", help="only cases so named")
    parser.add_argument("--list", type=positive, default=20, metavar="N", help="length of lists")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    from stolon.constrained.check import Request, check, serve

    if args.worker:
        serve(_vocabulary(args.tokenizer), sys.stdin.buffer, sys.stdout.buffer)
        return 0
    # Before a process is started for it: a path that is wrong is told at once.
    vocabulary = _vocabulary(args.tokenizer)
    print(f"tokenizer {args.tokenizer}: {vocabulary.size:,} tokens")
    worker = [sys.executable, "-m", "stolon.cli", NAME, args.suite, ".", "--worker"]
    return check(
        Request(
            suite=args.suite,
            folder=args.folder,
            worker=[*worker, "--tokenizer", args.tokenizer],
            draft=args.draft,
            optional=args.optional,
            remotes=args.remotes,
            remotes_prefix=args.remotes_prefix,
            masks=args.masks,
            walks=args.walks,
            whitespace=args.whitespace,
            limit_ms=args.limit_ms,
            ratchet=args.ratchet,
            update=args.update,
            json_out=args.json,
            match=args.match,
            listed=args.list,
        )
    )


def _vocabulary(name: str) -> Vocabulary:
    """The vocabulary of a tokenizer: ``bytes``, a path, or the name of a model."""
    from stolon.constrained import Vocabulary
    from stolon.constrained.check import byte_vocabulary

    if name == "bytes":
        return byte_vocabulary()
    from stolon.srt.load_tokenizer import load_tokenizer
    from stolon.srt.loaders import resolve

    path = Path(name).expanduser()
    if path.name == "tokenizer.json":
        path = path.absolute().parent
    tokenizer, _ = load_tokenizer(path if name and path.exists() else resolve(name))
    return Vocabulary(
        tokenizer.token_bytes, tokenizer.eos_ids, tokenizer.special_ids, tokenizer.encode
    )
