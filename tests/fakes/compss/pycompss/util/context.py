"""Where this process is."""

from __future__ import annotations

import pycompss


class _Context:
    def in_pycompss(self) -> bool:
        """Whether the runtime has started it."""
        return pycompss.in_runtime


CONTEXT = _Context()
