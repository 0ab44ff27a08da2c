"""Values of a DICOM header of any quality: each attribute is read alone, and an unusable one is recorded, not raised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from medweave_core.errors import StepError

MAX_NUMBER = 1e9  # no length, position or pixel value of an image is larger


@dataclass(slots=True)
class HeaderValues:
    """The attributes of a pydicom dataset, of its sequence items, or of a `QuickHeader`.

    Attributes:
        unusable: keywords of the attributes that are present and whose values cannot be used.
    """

    dataset: Any
    unusable: dict[str, None] = field(default_factory=dict)

    def text(self, keyword: str, holder: Any = None) -> str:
        """Return the value as text without outer spaces; several values are joined by a backslash."""
        value = self.value(keyword, holder)
        if value is None:
            return ""
        return value.strip(" \0") if type(value) is str else "\\".join(self._words(keyword, value))

    def words(self, keyword: str, holder: Any = None) -> tuple[str, ...]:
        """Return the values as texts without outer spaces; empty where the attribute is absent, empty or unusable."""
        value = self.value(keyword, holder)
        return () if value is None else self._words(keyword, value)

    def _words(self, keyword: str, value: Any) -> tuple[str, ...]:
        values = _listed(value)
        if any(isinstance(item, bytes) or hasattr(item, "keys") for item in values):
            self.unusable[keyword] = None
            return ()
        words = tuple([str(item).strip(" \0") for item in values])
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
        values = [] if value is None else _listed(value)
        if not values:
            return None
        try:
            numbers = tuple([float(item) for item in values])
        except (TypeError, ValueError, OverflowError):
            numbers = ()
        is_usable = len(numbers) == count and all(abs(x) <= MAX_NUMBER for x in numbers)  # false for NaN
        if not is_usable or isinstance(values[0], bytes):
            self.unusable[keyword] = None
            return None
        return numbers

    def items(self, keyword: str, holder: Any = None) -> list[Any]:
        """Return the items of a sequence; empty where the attribute is absent, empty or unusable."""
        value = self.value(keyword, holder)
        items = [] if value is None else _listed(value)
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


def has_other_cause(error: BaseException) -> bool:
    """Return True for an error that no value of a header causes: one of medweave's own, of the system, or of too little memory.

    pydicom raises OSErrors without a number for damaged values, and wraps those of the system in such ones.
    """
    cause: BaseException | None = error
    while isinstance(cause, OSError) and cause.errno is None:
        cause = cause.__cause__
    return isinstance(cause, OSError | StepError | MemoryError)


def _listed(value: Any) -> list[Any]:
    """Return the values of an attribute, one or several; empty where it is empty."""
    if isinstance(value, str | bytes):
        return [value] if value else []
    return list(value) if isinstance(value, list | Sequence) else [value]
