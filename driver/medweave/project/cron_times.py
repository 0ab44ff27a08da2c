"""Times in cron's five fields, and their translation for systemd."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from medweave_core.documents.field_errors import FieldFault, fault_at

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_PART = re.compile(r"(?:\*|(?P<first>\w+)(?:-(?P<last>\w+))?)(?:/(?P<step>[0-9]+))?")


class Field(NamedTuple):
    """One of the five fields; `names` are aliases of the numbers from `least` on."""

    name: str
    least: int
    most: int
    names: tuple[str, ...] = ()


FIELDS = (
    Field("minute", 0, 59),
    Field("hour", 0, 23),
    Field("day of the month", 1, 31),
    Field("month", 1, 12, MONTHS),
    Field("day of the week", 0, 7, DAYS),  # both 0 and 7 are Sunday
)


def fault_of_times(text: str, path: Path) -> FieldFault | None:
    """Return the error of times that cron would refuse; None for valid ones.

    Args:
        path: of the schedule's file, for the message.
    """
    try:
        numbers_of(text)
    except ValueError as error:
        return fault_at(
            path, ("when",), "invalid cron expression.", seen=f"'{text}': {error}",
            expected="five fields: minute, hour, day of the month, month, day of the week; for example 0 2 * * *",
            do="correct the expression (https://man7.org/linux/man-pages/man5/crontab.5.html)",
        )  # fmt: skip
    return None


def numbers_of(text: str) -> list[list[int] | None]:
    """Return the numbers of each field, None for `*`.

    Raises:
        ValueError: a field is invalid; the message says which.
    """
    words = text.split()
    if len(words) != len(FIELDS):
        raise ValueError(f"{len(words)} fields")
    return [None if word == "*" else _numbers(word, field) for word, field in zip(words, FIELDS, strict=True)]


def _numbers(word: str, field: Field) -> list[int]:
    numbers: set[int] = set()
    for part in word.split(","):
        match = _PART.fullmatch(part)
        if match is None or match["step"] == "0":
            raise ValueError(f"{field.name} '{part}'")
        step = int(match["step"] or 1)
        first = field.least if match["first"] is None else _number(match["first"], field)
        alone = match["first"] is not None and match["step"] is None
        last = _number(match["last"], field) if match["last"] else first if alone else field.most
        if first > last:
            raise ValueError(f"{field.name} '{part}': the range ends before it starts")
        numbers.update(range(first, last + 1, step))
    return sorted({number % 7 for number in numbers} if field.names == DAYS else numbers)


def _number(word: str, field: Field) -> int:
    if word.lower() in field.names:
        return field.names.index(word.lower()) + field.least
    if not word.isdecimal() or not field.least <= int(word) <= field.most:
        raise ValueError(f"{field.name} '{word}' is not between {field.least} and {field.most}")
    return int(word)


def on_calendar(text: str, time_zone: str | None) -> list[str]:
    """Return the times as values of systemd's `OnCalendar=`, one or two.

    If both the day of the month and the day of the week are restricted, cron requires one of them, and systemd both.
    """
    minutes, hours, days, months, weekdays = numbers_of(text)
    words = text.split()
    either = days is not None and weekdays is not None and not words[2].startswith("*") and not words[4].startswith("*")
    time = f"{_joined(hours)}:{_joined(minutes)}:00" + (f" {time_zone}" if time_zone else "")
    of_week = ",".join(DAYS[number].title() for number in weekdays or []) + " " if weekdays else ""
    by_week, by_month = f"{of_week}*-{_joined(months)}-*", f"*-{_joined(months)}-{_joined(days)}"
    dates = [by_week, by_month] if either else [f"{of_week}{by_month}"]
    return [f"{date} {time}" for date in dates]


def _joined(numbers: list[int] | None) -> str:
    return "*" if numbers is None else ",".join(f"{number:02}" for number in numbers)
