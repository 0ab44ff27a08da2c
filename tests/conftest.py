"""Shared by all tests: the folder `tests/` is importable, so that builders live in `tests/support/`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
