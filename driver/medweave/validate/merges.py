"""The type of what arrives where several sources meet. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from medweave_core.documents.cwl_types import Array, Type

NULL: Type = frozenset(["null"])


def joined(types: list[Type], long: Mapping[str, Any], listed: bool) -> Type:
    """What arrives from several sources; see the CWL specification on linkMerge and pickValue."""
    merge, pick = long.get("linkMerge"), long.get("pickValue")
    if not listed and len(types) == 1:
        kind = frozenset([Array(types[0])]) if merge == "merge_nested" else types[0]
    elif merge == "merge_flattened":
        inner: Type = frozenset()
        for each in types:
            for one in each:
                inner |= one.items if isinstance(one, Array) else frozenset([one])
        kind = frozenset([Array(inner)])
    elif len(types) == 1 and merge is None:
        kind = types[0]
    else:
        kind = frozenset([Array(frozenset().union(*types))])
    if pick is None:
        return kind
    items = frozenset().union(*(each.items if isinstance(each, Array) else frozenset([each]) for each in kind)) - NULL
    return frozenset([Array(items)]) if pick == "all_non_null" else items
