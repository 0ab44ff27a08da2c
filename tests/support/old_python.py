"""Text that is to run by the python3 of a far end, which may be older than the driver's."""

from __future__ import annotations

import subprocess
import sys

OLDEST = (3, 8)
PARSE = f"import ast, sys; ast.parse(sys.stdin.read(), feature_version={OLDEST})"


def assert_is_python(text: str) -> None:
    """Asserts that the oldest python3 of a far end would parse it.

    In a process of its own: the parser of Python 3.11 raises SystemError where a garbage collection in its middle runs python code
    (CPython #106905), as the tests of processes that were killed leave some to run.
    """
    parsed = subprocess.run([sys.executable, "-c", PARSE], input=text, text=True, capture_output=True, check=False)
    assert parsed.returncode == 0, parsed.stderr
