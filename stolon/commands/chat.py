"""`stolon chat`: talk to a model in the terminal. The history is kept as tokens."""

from __future__ import annotations

import argparse
import io
import sys
from typing import TYPE_CHECKING

from stolon.commands.options import add_engine, add_model, seed

if TYPE_CHECKING:
    from stolon.srt.client import EngineClient
    from stolon.srt.protocol import Event, Sampling, Segment

NAME = "chat"
HELP = "talk to a model"

_COMMANDS = "/reset forgets · /system TEXT begins anew with a system message · /stats · /quit"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("--system", metavar="TEXT", help="system message")
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--top-p", type=float, default=0.95)
    parser.add_argument("--max-tokens", type=int, default=512, help="longest answer")
    parser.add_argument("--seed", type=seed, help="of each answer (default: drawn)")
    add_engine(parser)


def run(args: argparse.Namespace) -> int:
    import stolon
    from stolon.errors import ContextLengthExceeded
    from stolon.srt.protocol import Sampling

    sampling = Sampling(
        temperature=args.temperature, top_p=args.top_p, max_tokens=args.max_tokens, seed=args.seed
    )
    sampling.validate(vocab_size=0)  # there are no token ids in it: no model is needed to tell
    with stolon.Engine(
        args.model,
        dtype=args.dtype,
        threads=args.threads,
        context_length=args.context_length,
        speculation=args.speculation,
        kv_tokens=args.kv_tokens,
        max_running=args.max_running,
    ) as engine:
        for stream in (sys.stdin, sys.stdout):
            if isinstance(stream, io.TextIOWrapper):
                # One byte that is not text, or one character that the terminal lacks, ends nothing.
                stream.reconfigure(errors="replace")
        talk = Conversation(engine, system=args.system)
        code = 0
        if sys.stdin.isatty():
            print(f"{engine.info.name}, {engine.info.context_length} tokens. {_COMMANDS}")
        while True:
            try:
                line = input("> " if sys.stdin.isatty() else "").strip()
            except EOFError:
                return code
            if not line:
                continue
            if line == "/quit":
                return code
            if line.startswith("/"):
                talk = _command(line, engine, talk)
                continue
            try:
                talk.answer(line, sampling)
            except ContextLengthExceeded as error:
                if not sys.stdin.isatty():
                    code = 1  # nobody sees that a message has no answer
                if not talk.tokens:
                    _say(error.message)
                    continue
                _say(
                    f"no room for this message: {len(talk.tokens)} of the context's "
                    f"{engine.info.context_length} tokens are used; /reset frees them"
                )


def _say(text: str) -> None:
    print(f"stolon: {text}", file=sys.stderr, flush=True)


def _command(line: str, engine: EngineClient, talk: Conversation) -> Conversation:
    """Do a line that begins with a slash; returns the conversation to go on with."""
    word, _, rest = line.partition(" ")
    if word == "/reset":
        return Conversation(engine, system=talk.system)
    if word == "/system":
        return Conversation(engine, system=rest.strip() or None)
    if word == "/stats":
        stats = engine.stats()
        print(
            f"history {len(talk.tokens)} of {engine.info.context_length} tokens · "
            f"cached {stats.cached_tokens} · computed {stats.computed_tokens} · "
            f"generated {stats.sampled_tokens} · cache {stats.kv_used} of {stats.kv_slots} slots"
        )
    else:
        print(f"unknown command {word}. {_COMMANDS}")
    return talk


class Conversation:
    """A chat whose past is token ids: no turn is tokenised twice, and the cache has all of it."""

    def __init__(self, engine: EngineClient, *, system: str | None = None) -> None:
        from stolon.srt.tokenizer import ChatTemplate

        self.system = system
        self.tokens: list[int] = []
        self._engine = engine
        self._template = engine.chat_template or ChatTemplate.plain()
        self._messages: list[dict[str, str]] = []
        self._suffix = ""  # what the template puts after the last answer

    def answer(self, text: str, sampling: Sampling) -> None:
        """Send a message, print the answer as it comes, keep both. Ctrl-C keeps what there is."""
        import queue
        from uuid import uuid4

        from stolon.srt.protocol import Delta, Failed, Gen, Request, SampleDone

        segments, messages, suffix = self._prompt(text)
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        request = Request(
            rid=uuid4().hex, segments=[*segments, Gen(sampling=sampling)], stream=True
        )
        self._engine.submit(request, events.put)
        answer = ""
        stopped = False
        while True:
            try:
                event = events.get()
                if isinstance(event, Delta):
                    answer += event.text
                    print(event.text, end="", flush=True)
            except KeyboardInterrupt:
                if stopped:
                    raise
                stopped = True
                self._engine.abort(request.rid)
                continue
            if isinstance(event, Failed):
                if stopped:
                    break
                raise event.error()
            if isinstance(event, SampleDone):
                self.tokens = event.token_ids
                self._messages = [*messages, {"role": "assistant", "content": answer}]
                self._suffix = suffix
                break
        print(" [stopped]" if stopped else "")
        size = self._engine.info.context_length
        if len(self.tokens) >= size:
            _say(f"the context of {size} tokens is full, the answer ends here; /reset frees it")

    def _prompt(self, text: str) -> tuple[list[Segment], list[dict[str, str]], str]:
        """All up to the answer, the messages it stands for, and what will follow the answer."""
        from stolon.srt.protocol import Text, Tokens

        segments: list[Segment] = [Tokens(self.tokens)] if self.tokens else []
        if self._suffix:
            segments.append(Text(self._suffix, special=True))
        messages = list(self._messages)
        new = [("user", text)]
        if self.system is not None and not messages:
            new.insert(0, ("system", self.system))
        for role, content in new:
            prefix, suffix = self._template.role_affixes(messages, role)
            segments += [Text(prefix, special=True), Text(content), Text(suffix, special=True)]
            messages.append({"role": role, "content": content})
        prefix, suffix = self._template.role_affixes(messages, "assistant")
        segments.append(Text(prefix, special=True))
        return [s for s in segments if not isinstance(s, Text) or s.text], messages, suffix
