"""Text that is to run by the python3 of a far end, which may be older than the driver's."""

from __future__ import annotations

import ast

OLDEST = (3, 8)


def assert_is_python(text: str) -> None:
    """Asserts that the oldest python3 of a far end would parse it.

    Raises:
        SyntaxError: it would not.
    """
    ast.parse(text, feature_version=OLDEST)
