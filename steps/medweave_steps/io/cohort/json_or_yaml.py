"""Documents that users write as JSON or YAML: labels and channel rules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from medweave_steps.runtime.imports import require


def read_document(path: Path) -> Any:
    """Return the content of a JSON file, or of a YAML file by its suffix.

    Raises:
        ValueError: the text is not JSON or not YAML; its message says which, for the `seen` of an error.
    """
    text = path.read_text(encoding="utf-8", errors="replace")
    if path.suffix not in (".yaml", ".yml"):
        try:
            return json.loads(text)
        except ValueError as error:
            raise ValueError("text that is not JSON") from error
    yaml = require("yaml", extra="check")
    try:
        return yaml.safe_load(text)
    except (ValueError, yaml.YAMLError) as error:  # a date that does not exist is a ValueError
        raise ValueError("text that is not YAML") from error
