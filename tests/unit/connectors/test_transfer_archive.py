"""Archives from a broken or hostile site: no file is written outside the target folder, on this machine or at sites."""

from __future__ import annotations

import io
import os
import shutil
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from medweave_connectors.host.errors import SourceRefused
from medweave_connectors.transfer import shell_commands
from medweave_connectors.transfer.agent.archive import ArchiveChecker, ArchiveRefused, RefusalReason
from support.transfers import Route, TransferSites, transfer_sites

PATIENT = "Mustermann_Erika_1970"
DEVICE = (1, 3)  # /dev/null


@pytest.fixture
def at(tmp_path: Path) -> Iterator[TransferSites]:
    with transfer_sites(tmp_path) as sites:
        yield sites


def entry(name: str, kind: bytes = tarfile.REGTYPE, content: bytes = b"", link: str = "", mode: int = 0o644) -> bytes:
    """Return the bytes of one archive entry."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, mode
    info.size = len(content)
    if kind in (tarfile.CHRTYPE, tarfile.BLKTYPE):
        info.devmajor, info.devminor = DEVICE
    return info.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % 512)


TOP = entry("cohort", tarfile.DIRTYPE, mode=0o755)
END = bytes(1024)


def pax(records: dict[str, str], name: str = "cohort/a", content: bytes = b"x") -> list[bytes]:
    lines = []
    for key, value in records.items():
        text = f" {key}={value}\n".encode()
        length = len(text) + 2
        lines.append(f"{length + (len(str(length)) > 2)}".encode() + text)
    return [TOP, entry("PaxHeaders/a", tarfile.XHDTYPE, b"".join(lines)), entry(name, content=content)]


def hostile(outside: str = "/outside") -> dict[str, tuple[RefusalReason, list[bytes]]]:
    """Return hostile archives of a folder `cohort`, which would write outside of it or do other harm."""
    return {
        "absolute": (RefusalReason.NAME, [TOP, entry(f"{outside}/harm", content=b"x")]),
        "above": (RefusalReason.NAME, [TOP, entry("cohort/../../harm", content=b"x")]),
        "sibling": (RefusalReason.NAME, [TOP, entry("harm", content=b"x")]),
        "the store as a sibling": (RefusalReason.NAME, [TOP, entry(".medweave-blobs/aa/harm", content=b"x")]),
        "a longer name": (RefusalReason.NAME, [TOP, entry("cohort-2/harm", content=b"x")]),
        "a long name above": (
            RefusalReason.NAME,
            [TOP, entry("cohort/" + "y/" * 60 + "../" * 63 + "harm", content=b"x")],
        ),
        "symlink": (RefusalReason.KIND, [TOP, entry("cohort/link", tarfile.SYMTYPE, link=outside)]),
        "through a symlink": (
            RefusalReason.KIND,
            [TOP, entry("cohort/link", tarfile.SYMTYPE, link="../../outside"), entry("cohort/link/harm", content=b"x")],
        ),
        "the folder is a symlink": (
            RefusalReason.KIND,
            [entry("cohort", tarfile.SYMTYPE, link=outside), entry("cohort/harm", content=b"x")],
        ),
        "hard link": (RefusalReason.LINK, [TOP, entry("cohort/link", tarfile.LNKTYPE, link=f"{outside}/secret")]),
        "hard link above": (RefusalReason.LINK, [TOP, entry("cohort/link", tarfile.LNKTYPE, link="../outside/secret")]),
        "written through a hard link": (
            RefusalReason.LINK,
            [TOP, entry("cohort/a", tarfile.LNKTYPE, link=f"{outside}/secret"), entry("cohort/a", content=b"harm")],
        ),
        "device": (RefusalReason.KIND, [TOP, entry("cohort/null", tarfile.CHRTYPE)]),
        "block device": (RefusalReason.KIND, [TOP, entry("cohort/disk", tarfile.BLKTYPE)]),
        "fifo": (RefusalReason.KIND, [TOP, entry("cohort/fifo", tarfile.FIFOTYPE)]),
        "sparse": (RefusalReason.KIND, [TOP, entry("cohort/sparse", tarfile.GNUTYPE_SPARSE)]),
        "twice": (RefusalReason.TWICE, [TOP, entry("cohort/a", content=b"x"), entry("cohort/a", content=b"harm")]),
        "more than there was": (RefusalReason.SIZE, [TOP, entry("cohort/a", content=bytes(20_000))]),
        "after its end": (RefusalReason.FORM, [TOP, END, entry(f"{outside}/harm", content=b"x")]),
        "no archive": (RefusalReason.FORM, [b"harm" * 512]),
        "cut": (RefusalReason.CUT, [TOP, entry("cohort/a", content=bytes(5000))[:2000]]),
        "no end": (RefusalReason.CUT, [TOP]),
        "named above by a header of POSIX": (RefusalReason.NAME, pax({"path": "cohort/../../harm"})),
        "named well by a header that not all read": (RefusalReason.NAME, pax({"path": "cohort/a"}, name="../harm")),
        "sparse by a header of POSIX": (RefusalReason.KIND, pax({"GNU.sparse.realsize": "99999999999"})),
        "another size in a header of POSIX": (RefusalReason.FORM, pax({"size": "512"})),
        "named twice": (RefusalReason.FORM, [*pax({"path": "cohort/a"})[:2], *pax({"path": "../harm"})[1:]]),
    }


HOSTILE = hostile()


def guarded(parts: list[bytes], *, end: bool = True, chunk_bytes: int = 700) -> bytes:
    guard, data, out = ArchiveChecker("cohort", 10_000), b"".join(parts) + (END if end else b""), b""
    for first in range(0, len(data), chunk_bytes):
        out += guard.passed(data[first : first + chunk_bytes])
    guard.end()
    return out


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_archives_are_refused(case: str) -> None:
    reason, parts = HOSTILE[case]
    with pytest.raises(ArchiveRefused) as raised:
        guarded(parts, end=case not in {"cut", "no end"})
    assert raised.value.reason == reason


def everything(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.slow
@pytest.mark.parametrize("route", ["to-driver", "through-driver"])
def test_hostile_archives_leave_no_files(at: TransferSites, tmp_path: Path, route: Route) -> None:
    """Copy from a site whose tar sends hostile archives."""
    outside, archive = tmp_path / "outside", at.programs / "archive"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (at.source / "cohort").mkdir()
    (at.source / "cohort" / PATIENT).write_bytes(bytes(10_000))
    at.replace("tar", f'case "$1" in c*) cat "{archive}" ;; *) exec "$real" "$@" ;; esac')
    archive.touch()
    before = everything(tmp_path)

    async def send_all(sites: TransferSites) -> None:
        for case, (reason, parts) in hostile(str(outside)).items():
            archive.write_bytes(b"".join(parts) + (b"" if case in {"cut", "no end"} else END))
            with pytest.raises(SourceRefused, match=str(reason)) as raised:
                await sites.send(route, "cohort")
            assert PATIENT not in str(raised.value)
            assert "harm" not in str(raised.value)
            assert everything(tmp_path) == before, case
            assert (outside / "secret").read_text() == "secret", case
            assert (outside / "secret").stat().st_nlink == 1, case

    at.run_connected(send_all)


def test_set_uid_and_set_gid_bits_are_removed(at: TransferSites) -> None:
    folder = at.source / "cohort"
    folder.mkdir(mode=0o2770)
    folder.chmod(0o2770)
    (folder / "tool").touch()
    (folder / "tool").chmod(0o6755)
    at.run_connected(lambda sites: sites.send("to-driver", "cohort"))
    copy = at.target / "cohort"
    assert [stat.S_IMODE(path.stat().st_mode) for path in (copy, copy / "tool")] == [0o770, 0o755]


# ---- archives of real tar programs pass unchanged


def made_by(tool: str, folder: Path, *arguments: str) -> bytes:
    program = shutil.which("busybox" if tool == "busybox" else "tar")
    if program is None:
        pytest.skip(f"no {tool} here")
    _, letters, out, *others = shell_commands.pack(str(folder))
    words = [program, *(["tar"] if tool == "busybox" else []), letters, out, *arguments, *others]
    return subprocess.run(words, check=True, capture_output=True).stdout


@pytest.mark.parametrize("how", ["gnu", "busybox", "posix", "ustar", "v7"])
def test_archives_of_real_tar_programs_pass(tmp_path: Path, how: str) -> None:
    folder = tmp_path / "-cohort"
    (folder / "empty").mkdir(parents=True)
    deep = folder / ("d" * 30) / ("e" * 50)
    deep.mkdir(parents=True)
    for n, name in enumerate(("a", "two\nlines", "ümläut", *([] if how in {"ustar", "v7"} else ["x" * 255]))):
        (folder / name).write_bytes(os.urandom(400 * n))
    (deep / "f").write_bytes(bytes(1024))
    (folder / "again").hardlink_to(folder / "two\nlines")
    (folder / "tool").write_text("x")
    (folder / "tool").chmod(0o750)
    data = made_by(
        "busybox" if how == "busybox" else "tar", folder, *([] if how in {"gnu", "busybox"} else [f"--format={how}"])
    )
    guard, passed = ArchiveChecker("-cohort"), b""
    for first in range(0, len(data), 513):
        passed += guard.passed(data[first : first + 513])
    guard.end()
    with tarfile.open(fileobj=io.BytesIO(passed)) as arrived, tarfile.open(fileobj=io.BytesIO(data)) as sent:
        for mine, other in zip(arrived, sent, strict=True):
            assert (mine.name, mine.size, mine.mode, mine.type, mine.linkname) == (
                other.name,
                other.size,
                other.mode,
                other.type,
                other.linkname,
            )
            if mine.isreg():
                read: list[Callable[[], bytes]] = [
                    archive.extractfile(member).read for archive, member in ((arrived, mine), (sent, other))
                ]  # type: ignore[union-attr]
                assert read[0]() == read[1]()


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_mutated_archives_pass_only_if_they_stay_inside(data: st.DataObject) -> None:
    """Change bytes of headers and correct their checksums: an accepted archive is unpacked only within its folder."""
    blocks = [TOP, entry("cohort/a", content=b"12345"), entry("cohort/b", tarfile.LNKTYPE, link="cohort/a")]
    which = data.draw(st.integers(0, 2))
    block = bytearray(blocks[which])
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(
            st.sampled_from([*range(12), *range(100, 108), *range(124, 136), 156, *range(157, 170), *range(345, 350)])
        )
        block[place] = data.draw(st.sampled_from(b"./0127LKxSg\0\x80\xff 5") | st.integers(0, 255))
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block[:512])
    blocks[which] = bytes(block)
    try:
        passed = guarded(blocks)
    except ArchiveRefused:
        return
    with tempfile.TemporaryDirectory() as name:
        inside = Path(name, "part")
        inside.mkdir()
        result = subprocess.run(
            shell_commands.unpack_files(str(inside)), input=passed, capture_output=True, check=False
        )
        assert result.returncode in (0, 2)
        assert [file.name for file in Path(name).iterdir()] == ["part"]
        assert {file.name for file in inside.iterdir()} <= {"cohort"}
        for file in inside.rglob("*"):
            assert stat.S_IFMT(file.lstat().st_mode) in (stat.S_IFREG, stat.S_IFDIR)
            assert file.stat().st_mode & 0o7000 == 0


@settings(max_examples=200, deadline=None)
@given(noise=st.binary(max_size=1500))
def test_random_bytes_are_refused(noise: bytes) -> None:
    with pytest.raises(ArchiveRefused):
        guarded([noise] if any(noise) else [b"x"], end=False)
