"""Makes the testbed's package importable; these tests start nothing and need no rights."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "deployments" / "testbed"))
