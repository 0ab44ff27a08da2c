"""Lines for the user on the driver's stderr. Writing never raises, because the terminal may be closed."""

from __future__ import annotations

import contextlib
import sys

from medweave_core.untrusted_text import plain

LABEL_WIDTH = 12


def say(text: str) -> None:
    """Print one message without control characters, because it may contain text of a job or a site."""
    with contextlib.suppress(OSError, ValueError):
        print(plain(text), file=sys.stderr, flush=True)


def say_about(label: str, text: str) -> None:
    """Print one line about a step: `  train        epoch 4/20: loss 0.31, 1 min 10 s left`."""
    say(f"  {label:<{LABEL_WIDTH}} {text}")
