"""``python -m stolon.constrained.check`` is ``stolon check``.

Reading the tokenizer of a model takes the runtime, of which this package knows nothing: the command
line is in charge of that.
"""

from __future__ import annotations

import runpy
import sys

if __name__ == "__main__":
    sys.argv[1:1] = ["check"]
    runpy.run_module("stolon.cli", run_name="__main__", alter_sys=True)
