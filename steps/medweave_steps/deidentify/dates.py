"""Dates shifted by a number of whole days; times of day do not change, so that every interval is preserved."""

from __future__ import annotations

import datetime
import re

_DATE = re.compile(r"(\d{4})(\.?)(\d{2})\2(\d{2})")
_DATE_TIME = re.compile(r"(\d{8})((?:\d{2}(?:\d{2}(?:\d{2}(?:\.\d{1,6})?)?)?)?(?:[+-]\d{4})?)")
_TIME = re.compile(r"\d{2}(?::?\d{2}(?::?\d{2}(?:\.\d{1,6})?)?)?")


def shifted_date(text: str, days: int) -> str | None:
    """Return a DICOM date (VR DA) shifted by days.

    Args:
        text: YYYYMMDD, or YYYY.MM.DD as ACR-NEMA wrote it.
    Returns:
        YYYYMMDD; None where the text is not a date or would leave the calendar.
    """
    match = _DATE.fullmatch(text.strip(" \0"))
    if match is None:
        return None
    try:
        moved = datetime.date(int(match[1]), int(match[3]), int(match[4])) + datetime.timedelta(days=days)
    except (ValueError, OverflowError):
        return None
    return f"{moved.year:04d}{moved.month:02d}{moved.day:02d}"


def shifted_date_time(text: str, days: int) -> str | None:
    """Return a DICOM date-time (VR DT) shifted by days; time of day and offset from UTC do not change.

    Returns:
        the same format; None where the text is not a date-time, or has no day (YYYY, YYYYMM).
    """
    match = _DATE_TIME.fullmatch(text.strip(" \0"))
    date = shifted_date(match[1], days) if match else None
    return None if match is None or date is None else date + match[2]


def is_time(text: str) -> bool:
    """Return whether a text is a DICOM time of day (VR TM); any other text may identify a person."""
    return _TIME.fullmatch(text.strip(" \0")) is not None
