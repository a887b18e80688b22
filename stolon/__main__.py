"""``python -m stolon``: the command line."""

from stolon.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
