"""Dates moved by a number of whole days; times of day stay, so that every interval is kept."""

from __future__ import annotations

import datetime
import re

_DATE = re.compile(r"(\d{4})(\.?)(\d{2})\2(\d{2})")
_DATE_TIME = re.compile(r"(\d{8})((?:\d{2}(?:\d{2}(?:\d{2}(?:\.\d{1,6})?)?)?)?(?:[+-]\d{4})?)")
_TIME = re.compile(r"\d{2}(?::?\d{2}(?::?\d{2}(?:\.\d{1,6})?)?)?")


def shifted_date(text: str, days: int) -> str | None:
    """A DICOM date (VR DA) moved by days.

    Args:
        text: YYYYMMDD, or YYYY.MM.DD as ACR-NEMA wrote it.
    Returns:
        YYYYMMDD; None where the text is no date or would leave the calendar: nobody knows what it says then.
    """
    found = _DATE.fullmatch(text.strip(" \0"))
    if found is None:
        return None
    try:
        moved = datetime.date(int(found[1]), int(found[3]), int(found[4])) + datetime.timedelta(days=days)
    except (ValueError, OverflowError):
        return None
    return f"{moved.year:04d}{moved.month:02d}{moved.day:02d}"


def shifted_date_time(text: str, days: int) -> str | None:
    """A DICOM date-time (VR DT) moved by days; time of day and offset from UTC stay.

    Returns:
        the same form; None where the text is no date-time, or names no day (YYYY, YYYYMM): it cannot be moved by days.
    """
    found = _DATE_TIME.fullmatch(text.strip(" \0"))
    date = shifted_date(found[1], days) if found else None
    return None if found is None or date is None else date + found[2]


def is_time(text: str) -> bool:
    """True for a DICOM time of day (VR TM); anything else in its place may say something."""
    return _TIME.fullmatch(text.strip(" \0")) is not None
