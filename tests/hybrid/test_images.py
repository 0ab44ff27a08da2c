"""The images of the roles, really built on the testbed's base."""

from __future__ import annotations

import pytest

from support.helm_release import first_tenant
from support.images import build, bytes_of_files, configuration, inside
from support.testbed import BASE_IMAGE

SEGMENT_LIMIT_MB = 600
ROLES = ("segment", "train", "compss", "driver")


@pytest.fixture(scope="module", autouse=True)
def _testbed() -> None:
    first_tenant()


@pytest.fixture(params=ROLES)
def image(request: pytest.FixtureRequest) -> str:
    return build(request.param)


def leftovers(image: str) -> set[str]:
    """Return the files in folders where package managers and builds leave them."""
    folders = "/root /tmp /var/tmp /var/lib/apt/lists /var/cache/apt /source"
    return set(inside(image, f"find {folders} -mindepth 1 2>/dev/null || true").split())


def test_an_image_runs_as_a_normal_user_and_carries_no_leftovers(image: str) -> None:
    config = configuration(image)
    assert config["User"] == "10001:10001"
    assert "Research use only" in config["Labels"]["org.opencontainers.image.description"]
    assert inside(image, "id -u; touch /work/x; rm /work/x", user="10001:10001").split() == ["10001"]
    # Only the build has the settings of the package index.
    assert leftovers(image) - leftovers(BASE_IMAGE) == set()
    assert inside(image, "test -s /etc/pip.conf || echo none").strip() == "none"
    assert inside(image, "find /opt/medweave -name pip -o -name hatchling | head").strip() == ""


def test_segment_computes_and_is_small() -> None:
    image = build("segment")
    assert "usage: medweave-step segment" in inside(image, "medweave-step segment --help", user="10001:10001")
    packages = inside(image, "ls /opt/medweave/lib/python3*/site-packages").split()
    assert {"torch", "monai", "streamflow"}.isdisjoint(packages)
    added_mb = (bytes_of_files(image) - bytes_of_files(BASE_IMAGE)) / 1e6
    print(f"segment: {added_mb:.0f} MB over its base")
    assert 100 < added_mb <= SEGMENT_LIMIT_MB


@pytest.mark.parametrize("role", ["train", "compss"])
def test_without_pytorch_the_environment_is_left_to_a_volume(role: str) -> None:
    image = build(role)
    assert inside(image, "ls -A /opt/medweave").strip() == ""
    if role == "compss":
        # One by one: Debian's sh looks at the first word after `command -v` only.
        called = "for name in java ssh ps uuidgen lscpu; do command -v $name; done; ls /usr/sbin/sshd"
        programs = f"{called}; ls /etc/ssh/ssh_host_* || true"
        assert len(inside(image, programs).split()) == 6, "all that COMPSs calls, and no host key that others share"


def test_the_driver_has_the_engine_and_our_plug_in() -> None:
    listed = inside(build("driver"), "HOME=/tmp streamflow plugin list; medweave --help", user="10001:10001")
    assert "medweave" in listed
    assert "usage: medweave COMMAND" in listed
