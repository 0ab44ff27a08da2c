"""The process of one trial: `medweave-step train`, which ends when the search does. `python -m …search.process PARENT WORD…`."""

from __future__ import annotations

import runpy
import sys

from medweave_steps.runtime import child


def main() -> None:
    """Run the step command with the words that follow the parent's process id."""
    child.prepare(int(sys.argv[1]))
    sys.argv = ["medweave-step", *sys.argv[2:]]
    runpy.run_module("medweave_steps", run_name="__main__")


if __name__ == "__main__":
    main()
