"""Dates shifted by whole days: intervals are preserved, every date changes, invalid dates are removed."""

from __future__ import annotations

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from medweave_steps.deidentify.dates import is_time, shifted_date, shifted_date_time
from medweave_steps.deidentify.pseudonyms import LONGEST_SHIFT_DAYS, SHORTEST_SHIFT_DAYS, Pseudonyms

days = st.dates(datetime.date(1912, 1, 1), datetime.date(2100, 1, 1))
identities = st.text(min_size=1, max_size=20)


def parsed(text: str | None) -> datetime.date:
    assert text is not None
    return datetime.datetime.strptime(text, "%Y%m%d").date()


@given(first=days, second=days, identity=identities, key=st.binary(min_size=32, max_size=32))
def test_intervals_stay_and_no_date_does(
    first: datetime.date, second: datetime.date, identity: str, key: bytes
) -> None:
    shift = Pseudonyms(key).date_shift_days(identity)
    assert SHORTEST_SHIFT_DAYS <= -shift <= LONGEST_SHIFT_DAYS
    moved = [parsed(shifted_date(f"{day:%Y%m%d}", shift)) for day in (first, second)]
    assert moved[1] - moved[0] == second - first
    assert moved[0] != first
    with_time = shifted_date_time(f"{first:%Y%m%d}235959.5-0330", shift)
    assert with_time == f"{moved[0]:%Y%m%d}235959.5-0330"


@given(st.text(max_size=30))
def test_what_is_no_date_is_not_passed_on(text: str) -> None:
    date, date_time = shifted_date(text, -1000), shifted_date_time(text, -1000)
    assert date is None or (len(date) == 8 and date.isdecimal())
    assert date_time is None or date_time[:8].isdecimal()


@pytest.mark.parametrize(
    ("text", "moved"),
    [
        ("20200301", "20200229"), ("2020.03.01", "20200229"), ("20200301 ", "20200229"), ("20200230", None), ("", None),
        ("00010101", None), ("2020030", None), ("2020.0301", None), ("Doe^Jane", None),
    ],
)  # fmt: skip
def test_forms_of_dates(text: str, moved: str | None) -> None:
    assert shifted_date(text, -1) == moved


@pytest.mark.parametrize(
    ("text", "moved"),
    [
        ("20200301", "20200229"), ("2020030112", "2020022912"), ("20200301120000.123456+0100", "20200229120000.123456+0100"),
        ("20200301+0100", "20200229+0100"), ("2020", None), ("202003", None), ("20200301.5", None), ("20200301Doe", None),
    ],
)  # fmt: skip
def test_forms_of_date_times(text: str, moved: str | None) -> None:
    assert shifted_date_time(text, -1) == moved


def test_times() -> None:
    assert all(is_time(text) for text in ("12", "1200", "120000", "120000.123456", "12:00:00", "12 "))
    assert not any(is_time(text) for text in ("", "noon", "1", "120000.1234567", "Doe^Jane"))
