"""Runs as the engine process of tests: the real process main around a FakeClient."""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from support.fake_client import FakeClient

from stolon.errors import ModelNotFound
from stolon.srt.server.engine_process import EngineOptions, main


def build(options: EngineOptions) -> FakeClient:
    """Model ``missing`` does not exist, ``slow`` takes long to load, and ``stuck`` answers one
    character and then nothing."""
    if options.model == "slow":
        time.sleep(20)
    if options.model == "missing":
        raise ModelNotFound("there is no model missing", hint="try another")
    client = FakeClient("Hello from afar")
    if options.model == "stuck":
        client.gate.clear()
    return client


if __name__ == "__main__":
    sys.exit(main(build))
