"""Shared by all tests: the folder `tests/` is importable, so that builders live in `tests/support/`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
# Its assertions tell what they saw, as those of a test file do.
pytest.register_assert_rewrite("support.connector_contract")

# Tests of a full disk run verbs under a limit on file size; Python (seen with 3.11) would keep byte code that the limit cut
# short, in the environment's own folders, and every later import of it would fail.
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
