"""`stolon serve`: the HTTP server."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import threading
from collections.abc import Iterator

from stolon.commands.options import add_engine, add_model, positive

NAME = "serve"
HELP = "serve a model over HTTP, for OpenAI clients and for programs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to bind (default: loopback)")
    parser.add_argument("--port", type=_port, default=8000, help="0 picks a free one")
    parser.add_argument("--served-name", metavar="NAME", help="the model's name for clients")
    parser.add_argument(
        "--api-key",
        metavar="KEY",
        help="clients must send it; other users of this machine can see a command line, "
        "so prefer --api-key-file",
    )
    parser.add_argument("--api-key-file", metavar="FILE", help="read the key from a file")
    parser.add_argument(
        "--insecure", action="store_true", help="let other machines in without a key"
    )
    parser.add_argument(
        "--max-queued",
        type=positive,
        metavar="N",
        help="requests, waiting or running, whose answer has not begun; one more gets 429. "
        "An answer that is not streamed begins when it is finished",
    )
    parser.add_argument(
        "--stop-at-eof",
        action="store_true",
        help="stop when standard input ends: for a server that belongs to another program",
    )
    add_engine(parser)


def run(args: argparse.Namespace) -> int:
    import os
    from dataclasses import replace

    from stolon.srt.server import ServerLimits
    from stolon.srt.server.engine_process import watch_parent
    from stolon.srt.server.launch import serve

    limits = ServerLimits()
    if args.max_queued is not None:
        limits = replace(limits, max_queued=args.max_queued)
    with _ended_by_sigterm():
        if args.stop_at_eof:
            watch_parent(lambda: os.kill(os.getpid(), signal.SIGTERM))
        serve(
            args.model,
            host=args.host,
            port=args.port,
            served_name=args.served_name,
            api_key=_api_key(args),
            insecure=args.insecure,
            limits=limits,
            dtype=args.dtype,
            kv_tokens=args.kv_tokens,
            max_running=args.max_running,
            threads=args.threads,
            context_length=args.context_length,
            speculation=args.speculation,
        )
    return 0


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """While the model loads SIGTERM is an orderly end, too; `serve` itself takes it from then on."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _api_key(args: argparse.Namespace) -> str | None:
    from pathlib import Path

    from stolon.errors import InvalidRequest

    if args.api_key_file is None:
        key: str | None = args.api_key
        return key
    if args.api_key is not None:
        raise InvalidRequest("give one of --api-key and --api-key-file", param="api_key")
    try:
        return Path(args.api_key_file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InvalidRequest(
            f"--api-key-file {args.api_key_file} can't be read: {reason}", param="api_key_file"
        ) from error


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: 0 to 65535")
    return int(text)
