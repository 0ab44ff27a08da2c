"""Subprocesses of helm, without StreamFlow."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from medweave_connectors.host import programs

LAST_S = 15.0


class HelmFailed(Exception):
    """Helm ended with an error; the text is its standard error."""


async def run_helm(words: Sequence[str], *, timeout_s: float) -> str:
    """Run helm and return its standard output.

    Raises:
        HelmFailed: it ended with an error, or did not end in time.
        FileNotFoundError: there is no helm.
    """
    try:
        # In a new session: on Ctrl-C in the terminal helm would leave an incomplete release.
        ended = await programs.run(words, timeout_s=timeout_s)
    except TimeoutError:
        raise HelmFailed(f"Error: helm {words[1]} did not end within {timeout_s:.0f} s") from None
    if ended.code:
        raise HelmFailed(ended.stderr.decode(errors="replace"))
    return ended.stdout.decode(errors="replace")


def run_helm_now(words: Sequence[str]) -> str:
    """Run helm without the event loop, where cancellation is not allowed; return its standard output.

    Raises:
        HelmFailed: it ended with an error, did not end in time, or there is no helm.
    """
    try:
        ended = subprocess.run(
            list(words),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LAST_S,
            start_new_session=True,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HelmFailed(str(error)) from None
    if ended.returncode:
        raise HelmFailed(ended.stderr.decode(errors="replace"))
    return ended.stdout.decode(errors="replace")
