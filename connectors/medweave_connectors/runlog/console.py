"""Lines for people on the driver's stderr. The terminal may be gone: writing never raises."""

from __future__ import annotations

import contextlib
import sys

from medweave_core.untrusted_text import plain

LABEL_WIDTH = 12


def say(text: str) -> None:
    """Print one message, which can hold text from a job or a site: without control characters."""
    with contextlib.suppress(OSError, ValueError):
        print(plain(text), file=sys.stderr, flush=True)


def tell(label: str, text: str) -> None:
    """One line of a step: `  train        epoch 4/20: loss 0.31, 1 min 10 s left`."""
    say(f"  {label:<{LABEL_WIDTH}} {text}")
