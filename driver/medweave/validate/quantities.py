"""Kubernetes quantities as numbers, and requests above their limits."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from medweave_core.documents.line_numbers import FieldPath

_UNITS = {"": 1, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?)([A-Za-z]*)")


def quantity(text: Any) -> float | None:
    """Return a Kubernetes quantity (`500m`, `8Gi`) as a number; None for other text."""
    match = _QUANTITY.fullmatch(str(text)) if text is not None else None
    return float(match[1]) * _UNITS[match[2]] if match and match[2] in _UNITS else None


def above_limits(values: Any, field: FieldPath = ()) -> Iterator[tuple[FieldPath, str, str]]:
    """Yield field, request and limit of each request above its limit, which the API server rejects."""
    if not isinstance(values, Mapping):
        return
    for key, inner in values.items():
        yield from above_limits(inner, (*field, key))
    requests, limits = values.get("requests"), values.get("limits")
    if isinstance(requests, Mapping) and isinstance(limits, Mapping):
        for name, request in requests.items():
            amount, most = quantity(request), quantity(limits.get(name))
            if amount is not None and most is not None and amount > most:
                yield (*field, "requests", name), str(request), str(limits[name])
