"""For all tests."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    # A shell that starts a job in the background has it ignore Ctrl-C, and so would everything that the tests
    # start; they interrupt themselves and their children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
