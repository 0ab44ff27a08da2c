"""Values of a DICOM header of any quality: each attribute is read alone, and an unusable one is recorded, not raised."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

MAX_NUMBER = 1e9  # no length, position or pixel value of an image is larger


@dataclass(slots=True)
class HeaderValues:
    """Reads attributes of a pydicom dataset, of its sequence items, or of a `QuickHeader`.

    Attributes:
        unusable: keywords of the attributes that are present and whose values cannot be used.
    """

    dataset: Any
    unusable: dict[str, None] = field(default_factory=dict)

    def text(self, keyword: str, holder: Any = None) -> str:
        """Return the value as text without outer spaces; several values are joined by a backslash."""
        return "\\".join(self.words(keyword, holder))

    def words(self, keyword: str, holder: Any = None) -> tuple[str, ...]:
        """Return the values as texts without outer spaces; empty where the attribute is absent, empty or unusable."""
        value = self.value(keyword, holder)
        if value is None or value == "":
            return ()
        values = list(value) if isinstance(value, Sequence) and not isinstance(value, str | bytes) else [value]
        if any(isinstance(item, bytes) or hasattr(item, "keys") for item in values):
            self.unusable[keyword] = None
            return ()
        words = tuple(str(item).strip(" \0") for item in values)
        return words if any(words) else ()

    def number(self, keyword: str, holder: Any = None) -> float | None:
        """Return the value as a finite number; None where the attribute is absent, empty or unusable."""
        numbers = self.numbers(keyword, 1, holder)
        return None if numbers is None else numbers[0]

    def integer(self, keyword: str, holder: Any = None) -> int | None:
        """Return the value as an integer; None where the attribute is absent, empty or unusable."""
        number = self.number(keyword, holder)
        if number is not None and number != int(number):
            self.unusable[keyword] = None
            return None
        return None if number is None else int(number)

    def numbers(self, keyword: str, count: int, holder: Any = None) -> tuple[float, ...] | None:
        """Return exactly `count` finite numbers; None where the attribute is absent, empty or unusable."""
        value = self.value(keyword, holder)
        if value is None or value == "":
            return None
        values = list(value) if isinstance(value, Sequence) and not isinstance(value, str | bytes) else [value]
        if values == []:
            return None
        try:
            numbers = () if isinstance(value, bytes) else tuple(float(item) for item in values)
        except (TypeError, ValueError, OverflowError):
            numbers = ()
        if len(numbers) != count or not all(math.isfinite(x) and abs(x) <= MAX_NUMBER for x in numbers):
            self.unusable[keyword] = None
            return None
        return numbers

    def items(self, keyword: str, holder: Any = None) -> list[Any]:
        """Return the items of a sequence; empty where the attribute is absent, empty or unusable."""
        value = self.value(keyword, holder)
        if value is None or value == "":
            return []
        items = list(value) if isinstance(value, Sequence) and not isinstance(value, str | bytes) else [value]
        if not all(hasattr(item, "keys") for item in items):
            self.unusable[keyword] = None
            return []
        return items

    def value(self, keyword: str, holder: Any = None) -> Any:
        """Return the decoded value; None where the attribute is absent or cannot be decoded."""
        try:
            return (self.dataset if holder is None else holder).get(keyword)
        except Exception:  # pydicom raises many kinds for a damaged value; their texts quote it
            self.unusable[keyword] = None
            return None
