"""Where this process is."""

from __future__ import annotations

import pycompss


class _Context:
    def in_pycompss(self) -> bool:
        """Return whether the runtime started this process."""
        return pycompss.in_runtime


CONTEXT = _Context()
