"""How the gate writes its differences."""

from __future__ import annotations

import pytest

from medweave_steps.tasks.difference_words import decimals_beside, decimals_for, signed


@pytest.mark.parametrize(
    ("values", "decimals"),
    [
        ((0.1234,), 2),
        ((1.5,), 2),
        ((0.0123,), 3),
        ((-0.0015,), 4),
        ((0.00001,), 4),  # more digits are not readable
        ((0.0,), 2),
        ((), 2),
        ((-0.0015, -0.012, 0.004), 3),  # a value and its interval have one number of decimals
    ],
)
def test_two_significant_digits_of_the_largest(values: tuple[float, ...], decimals: int) -> None:
    assert decimals_for(values) == decimals


@pytest.mark.parametrize(
    ("value", "decimals", "text"),
    [(0.0123, 3, "+0.012"), (-0.4, 2, "−0.40"), (0.0, 2, "±0.00"), (-0.00001, 4, "±0.0000"), (1.333, 2, "+1.33")],
)
def test_a_difference_has_a_sign(value: float, decimals: int, text: str) -> None:
    assert signed(value, decimals) == text


@pytest.mark.parametrize(
    ("value", "bound", "decimals"),
    [
        (-0.0200, -0.01, 3),  # far from it
        (-0.0104, -0.01, 4),  # -0.010 would equal the bound
        (-0.00996, -0.01, 5),  # so would -0.0100
        (-0.01, -0.01, 3),  # it equals the bound
        (0.89 - 0.9, -0.01, 3),  # so it does, but for the last bit
        (0.104, 0.1, 3),
    ],
)
def test_a_rounded_value_lies_where_the_value_lies(value: float, bound: float, decimals: int) -> None:
    assert decimals_beside(value, bound, 3 if bound < 0 else 2) == decimals
