"""Check of programs that run with the python3 of a site, which may be older than the driver's."""

from __future__ import annotations

import ast

OLDEST = (3, 8)


def assert_is_python(text: str) -> None:
    """Assert that the oldest supported python3 of a site can parse it.

    Raises:
        SyntaxError: it would not.
    """
    ast.parse(text, feature_version=OLDEST)
