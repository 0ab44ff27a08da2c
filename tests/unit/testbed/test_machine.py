"""Requirements on the machine: every refusal has seen, expected and do, and names the commands that still work."""

from __future__ import annotations

from pathlib import Path

import pytest

from medweave_testbed import machine, packages
from medweave_testbed.errors import TestbedError
from medweave_testbed.layout import DEFAULT_FOLDER, LONGEST_SOCKET, layout_of

DEBIAN = 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nID=debian\nVERSION_CODENAME=bookworm\n'
UBUNTU = 'PRETTY_NAME="Ubuntu 24.04 LTS"\nID=ubuntu\nID_LIKE=debian\nVERSION_CODENAME=noble\n'
FEDORA = 'PRETTY_NAME="Fedora Linux 42"\nID=fedora\n'


def message(check: object) -> str:
    """The text of the refusal in a raises block."""
    assert isinstance(check, pytest.ExceptionInfo)
    return str(check.value)


def complete(text: str) -> bool:
    """Whether a message has the parts that every error of medweave has."""
    return all(f"\n  {label}:" in text for label in ("seen", "expected", "do"))


@pytest.mark.parametrize("release", [DEBIAN, UBUNTU])
def test_debian_and_its_descendants_are_taken(release: str) -> None:
    machine.check_system(release)


@pytest.mark.parametrize(("release", "seen"), [(FEDORA, "Fedora Linux 42"), ("", "no /etc/os-release")])
def test_another_system_is_refused(release: str, seen: str) -> None:
    with pytest.raises(TestbedError) as refusal:
        machine.check_system(release)
    text = message(refusal)
    assert complete(text)
    assert seen in text
    assert "`make demo` and `make test`" in text


def test_only_root_is_taken() -> None:
    machine.check_rights(0)
    with pytest.raises(TestbedError, match="needs root") as refusal:
        machine.check_rights(1000)
    assert "user id 1000" in message(refusal)
    assert complete(message(refusal))


@pytest.mark.parametrize(
    ("free", "first", "refused"),
    [(4_999, False, True), (5_000, False, False), (15_999, True, True), (16_000, True, False)],
)
def test_room_on_the_disk(free: int, first: bool, refused: bool) -> None:
    if not refused:
        machine.check_room(Path("/opt/testbed"), free, first=first)
        return
    with pytest.raises(TestbedError) as refusal:
        machine.check_room(Path("/opt/testbed"), free, first=first)
    assert f"{free} MiB free" in message(refusal)
    assert complete(message(refusal))


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("go version go1.26.8 linux/amd64", (1, 26)),
        ("go1.24", (1, 24)),
        ("go1.19.8\n", (1, 19)),
        ("", None),
        ("gone", None),
    ],
)
def test_the_version_of_go_is_read(text: str, version: tuple[int, int] | None) -> None:
    assert machine.go_version(text) == version


@pytest.mark.parametrize("version", [None, (1, 19), (1, 23)])
def test_a_missing_or_old_go_is_refused_and_the_other_way_is_named(version: tuple[int, int] | None) -> None:
    with pytest.raises(TestbedError) as refusal:
        machine.check_go(version)
    text = message(refusal)
    assert complete(text)
    assert "1.24 or newer" in text
    assert "MEDWEAVE_TESTBED_BINARIES=DIR" in text


def test_a_new_go_is_taken() -> None:
    machine.check_go((1, 24))
    machine.check_go((2, 0))


def test_a_folder_of_ready_programs_must_hold_all_of_them(tmp_path: Path) -> None:
    for name in machine.PROGRAMS:
        (tmp_path / name).touch(mode=0o755)
    machine.check_ready_programs(tmp_path)
    (tmp_path / "helm").chmod(0o644)
    (tmp_path / "kubelet").unlink()
    with pytest.raises(TestbedError) as refusal:
        machine.check_ready_programs(tmp_path)
    assert "no executable file kubelet, helm" in message(refusal)


@pytest.mark.parametrize("folder", ["relative/folder", "/tmp/testbed", "/var/lib/testbed", "/", "/opt/" + "x" * 90])
def test_a_folder_that_cannot_hold_the_testbed_is_refused(folder: str) -> None:
    with pytest.raises(TestbedError) as refusal:
        layout_of({"MEDWEAVE_TESTBED": folder})
    assert repr(folder) in message(refusal)
    assert complete(message(refusal))


def test_two_folders_are_two_testbeds() -> None:
    first, second = layout_of({}), layout_of({"MEDWEAVE_TESTBED": "/srv/second"})
    assert first.folder == DEFAULT_FOLDER
    assert (first.address, first.link, first.cgroup) == ("198.18.0.2", "medweave0", "medweave-testbed-0")
    assert first.address != second.address
    assert first.link != second.link
    assert (first.laptop_user, first.hpc_user) == ("medweave-laptop", "medweave-hpc")
    assert first.hpc_user != second.hpc_user
    assert len(second.link) <= 15  # the longest name that the kernel takes
    assert len(str(second.containerd_socket) + ".ttrpc") <= LONGEST_SOCKET


def test_installed_packages_are_told_from_removed_ones() -> None:
    status = "munge\tinstall ok installed\nslurmdbd\tdeinstall ok config-files\nsocat\tinstall ok installed\n"
    assert packages.installed(status) == {"munge", "socat"}


def test_services_are_held_back_and_the_machine_is_left_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = tmp_path / "policy-rc.d"
    monkeypatch.setattr(packages, "_POLICY", policy)
    with packages.services_held_back():
        assert policy.read_text(encoding="utf-8").endswith("exit 101\n")
        assert policy.stat().st_mode & 0o111
    assert not policy.exists()
    policy.write_text("#!/bin/sh\nexit 0\n", encoding="utf-8")
    with packages.services_held_back():
        pass
    assert policy.read_text(encoding="utf-8") == "#!/bin/sh\nexit 0\n"
