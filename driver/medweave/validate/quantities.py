"""Quantities of Kubernetes: as numbers, and what a container asks for beside what it may have at most."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from medweave_core.documents.line_numbers import FieldPath

_UNITS = {"": 1, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?)([A-Za-z]*)")


def quantity(text: Any) -> float | None:
    """A quantity of Kubernetes (`500m`, `8Gi`) as a number; None where it is none."""
    found = _QUANTITY.fullmatch(str(text)) if text is not None else None
    return float(found[1]) * _UNITS[found[2]] if found and found[2] in _UNITS else None


def above_limits(values: Any, field: FieldPath = ()) -> Iterator[tuple[FieldPath, str, str]]:
    """Requests that are more than the limit beside them, which no API server takes: place of the request, it, and the limit."""
    if not isinstance(values, Mapping):
        return
    for key, inner in values.items():
        yield from above_limits(inner, (*field, key))
    requests, limits = values.get("requests"), values.get("limits")
    if isinstance(requests, Mapping) and isinstance(limits, Mapping):
        for name, asked in requests.items():
            amount, most = quantity(asked), quantity(limits.get(name))
            if amount is not None and most is not None and amount > most:
                yield (*field, "requests", name), str(asked), str(limits[name])
