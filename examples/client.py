"""The official OpenAI client against a Stolon server: streaming, and an answer under a JSON schema.

    stolon serve &
    python examples/client.py --base-url http://127.0.0.1:8000/v1

With --spawn it starts a server of its own on a free port and stops it at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator

import httpx
from openai import APIConnectionError, OpenAI, OpenAIError

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 30},
        "country": {"type": "string", "maxLength": 30},
        "population_millions": {"type": "integer", "minimum": 0, "maximum": 40},
    },
    "required": ["city", "country", "population_millions"],
    "additionalProperties": False,
}


@contextlib.contextmanager
def spawned(model: str) -> Iterator[str]:
    """A server on a free port for as long as the block runs; yields its base URL."""
    command = [sys.executable, "-m", "stolon.cli", "serve", "--port", "0", "--model", model]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            # The server prints its address once it is ready, or ends.
            for line in server.stdout or ():
                found = re.search(r"http://\S+", line)
                if found:
                    yield found.group()
                    break
            else:
                # It has said why on stderr.
                print(f"client: error: the server ended with {server.wait()}", file=sys.stderr)
                raise SystemExit(2)
        finally:
            server.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    where.add_argument("--spawn", action="store_true", help="start a server and stop it")
    parser.add_argument("--model", default="smollm2-135m", help="for --spawn")
    parser.add_argument("--api-key", default="none")
    args = parser.parse_args()
    server = spawned(args.model) if args.spawn else contextlib.nullcontext(args.base_url)
    with server as url, OpenAI(base_url=url, api_key=args.api_key) as client:
        talk(client)


def talk(client: OpenAI) -> None:
    model = client.models.list().data[0].id
    print(f"model   {model}")

    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Name three fruits."}],
        max_tokens=32,
        seed=1,
        stream=True,
        stream_options={"include_usage": True},
    )
    print("stream  ", end="")
    usage = None
    for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            print(chunk.choices[0].delta.content, end="", flush=True)
        usage = chunk.usage or usage
    print(f"\nusage   {usage.prompt_tokens} + {usage.completion_tokens} tokens" if usage else "")

    answer = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Describe Lisbon as JSON."}],
        max_tokens=96,
        temperature=0,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "city", "schema": SCHEMA, "strict": True},
        },
    )
    print(f"schema  {json.loads(answer.choices[0].message.content or '')}")


if __name__ == "__main__":
    try:
        main()
    except APIConnectionError:
        print(
            "client: error: no server answers there (run `stolon serve`, or give --spawn)",
            file=sys.stderr,
        )
        sys.exit(2)
    except (OpenAIError, httpx.InvalidURL, OSError) as error:
        print(f"client: error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
