"""The official OpenAI client against a Stolon server: streaming, and an answer under a JSON schema.

    stolon serve &
    python examples/client.py --base-url http://127.0.0.1:8000/v1

With --spawn it starts a server of its own on a free port and stops it at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import json

from _frame import frame
from openai import OpenAI, OpenAIError

import stolon as sl
from stolon.errors import BackendError

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    where.add_argument("--spawn", action="store_true", help="start a server and stop it")
    parser.add_argument("--api-key", default="none")
    args = parser.parse_args()
    with contextlib.ExitStack() as stack:
        url = args.base_url
        if args.spawn:
            url = stack.enter_context(sl.Runtime()).url + "/v1"
        talk(stack.enter_context(OpenAI(base_url=url, api_key=args.api_key)))


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
    with frame():
        try:
            main()
        except OpenAIError as error:
            hint = "run `stolon serve`, or give --spawn"
            raise BackendError(str(error), hint=hint) from error
