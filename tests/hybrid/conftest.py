"""Tests that need the testbed. Where it is not up they are skipped with one line; in CI that is a failure."""

from __future__ import annotations

import os

import pytest

from support.testbed import Sites, call, down_parts, sites

# They fall behind while somebody edits the source or builds an image; `up` brings them after in seconds.
FOLLOWERS = {"environment", "images"}


@pytest.fixture(scope="session")
def testbed_parts_down() -> dict[str, str]:
    """Why each part that is down is down, as of the start of the tests."""
    down = down_parts()
    if down and FOLLOWERS.issuperset(down) and "not made yet" not in down.get("environment", ""):
        call("up", timeout_s=300)
        down = {name: reason for name, reason in down_parts().items() if name not in FOLLOWERS}
    return down


@pytest.fixture
def testbed(testbed_parts_down: dict[str, str]) -> Sites:
    """The sites of a testbed that is up."""
    if testbed_parts_down:
        name, reason = next(iter(testbed_parts_down.items()))
        line = f"the testbed is not up (`make testbed`): {name}: {reason}".replace("\n", " ")
        if os.environ.get("CI") == "true":
            pytest.fail(line)
        pytest.skip(line)
    return sites()
