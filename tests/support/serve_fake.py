"""Runs `serve` with the fake engine process; argv: the model, the drain timeout."""

import sys
from pathlib import Path

import msgspec

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from support.fake_client import ByteTokenizer  # noqa: E402

from stolon.srt.server import ServerLimits, serve  # noqa: E402
from stolon.srt.server.options import EngineOptions  # noqa: E402
from stolon.srt.server.zmq_client import ZmqEngineClient  # noqa: E402


def launch(options: EngineOptions) -> ZmqEngineClient:
    command = [sys.executable, str(HERE / "fake_engine_process.py"), "--options"]
    client = ZmqEngineClient(
        [*command, msgspec.json.encode(options).decode()], ByteTokenizer(), None
    )
    print(client.process.pid, client.folder.path, flush=True)
    return client


if __name__ == "__main__":
    serve(
        sys.argv[1],
        port=0,
        limits=ServerLimits(drain_timeout=float(sys.argv[2])),
        launch=launch,
    )
