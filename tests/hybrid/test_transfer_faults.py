"""What breaks a copy, in real pods: their own programs, disks and mounts. It is whole, or it is not there and says why."""

from __future__ import annotations

import asyncio
import base64
import io
import os
import signal
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from streamflow.core.deployment import ExecutionLocation

from medweave_connectors.host.errors import (
    NoRoom,
    SourceChanged,
    SourceRefused,
    SourceUnreadable,
    TargetRefused,
    TransferFailed,
)
from medweave_connectors.sites.local.connector import MedweaveLocalConnector
from support.direct_ends import Recorded, recorded
from support.helm_release import Tenant, until
from support.pod_runs import WORKDIR, pods_of
from support.testbed import unique
from support.testbed_ends import managed, pod_place, pods_connector, standing

MIB = 2**20
PATIENT = "Mustermann_Erika_1970"
LAPTOP = ExecutionLocation(name="laptop", deployment="laptop", local=True)
PROGRAMS, SMALL, READ_ONLY = f"{WORKDIR}/programs", "/small", "/read-only"
SMALL_MIB = 16
RUN, FROM, TO = f"{WORKDIR}/a-run", f"{WORKDIR}/source", f"{WORKDIR}/a-run/job"
Route = Literal["from-driver", "to-driver", "direct"]
WHEN_UNPACKING = 'case "$1" in x*) ;; *) exec "$real" "$@" ;; esac\n'
WHEN_PACKING = 'case "$1" in c*) ;; *) exec "$real" "$@" ;; esac\n'


def faulty_pods(name: str) -> dict[str, Any]:
    """Return one pod that stays, whose programs can be replaced, with a disk of 16 MiB and one that cannot be written to."""
    path = f"{PROGRAMS}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    document = pods_of(name, kind="StatefulSet", replicas=1, env=[{"name": "PATH", "value": path}])
    spec = document["spec"]["template"]["spec"]
    spec["volumes"] += [
        {"name": "small", "emptyDir": {"medium": "Memory", "sizeLimit": f"{SMALL_MIB}Mi"}},
        {"name": "read-only", "emptyDir": {}},
    ]
    spec["containers"][0]["volumeMounts"] += [
        {"name": "small", "mountPath": SMALL},
        {"name": "read-only", "mountPath": READ_ONLY, "readOnly": True},
    ]
    return document


@dataclass(frozen=True)
class Sites:
    """This machine and two workloads of one pod each.

    Attributes:
        folder: of this machine.
        names: of the workload that sends, and of the one that receives.
    """

    tenant: Tenant
    folder: Path
    names: tuple[str, str]

    def within(self, which: int, script: str) -> str:
        ended = self.tenant.within(f"{self.names[which]}-0", script)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def replace(self, which: int, program: str, script: str) -> None:
        """Replace a pod's program by a script, which can run it as `$real`."""
        text = f"#!/bin/sh\nreal=$(PATH=${{PATH#*:}} command -v {program})\n{script}\n"
        packed = base64.b64encode(text.encode()).decode()
        file = f"{PROGRAMS}/{program}"
        self.within(which, f"echo {packed} | base64 -d > {file}.new && chmod 755 {file}.new && mv {file}.new {file}")

    def send(self, route: Route, *, to: str = "", name: str = "cohort") -> None:
        """Send the folder along the route, to the path `to` if it is not empty."""
        connectors = {deployment: pods_connector(self.tenant, deployment) for deployment in self.names}
        connectors |= {"laptop": MedweaveLocalConnector("laptop", "/")}
        here = route == "from-driver"
        source, path = (LAPTOP, self.folder / "source") if here else (pod_place(self.names[0]), FROM)
        home = route == "to-driver"
        place, target = (LAPTOP, self.folder / "job") if home else (pod_place(self.names[1]), TO)

        async def act() -> None:
            async with managed(connectors) as manager:
                manager.register_path(source, f"{path}/{name}")
                await manager.transfer_data(source, f"{path}/{name}", [place], to or f"{target}/{name}")

        asyncio.run(asyncio.wait_for(act(), 120))

    def failed(self, kind: type[TransferFailed], route: Route, *, to: str = "") -> str:
        """Assert that a copy fails without leftovers or patient names; return the error's text."""
        before = self.left(route)
        with pytest.raises(kind) as raised:
            self.send(route, to=to)
        assert type(raised.value) is kind, raised.value
        assert self.left(route) == before
        assert PATIENT not in str(raised.value)
        return str(raised.value)

    def left(self, route: Route) -> list[str]:
        """Return the names in the folder that copies arrive in."""
        if route == "to-driver":
            return sorted(path.name for path in (self.folder / "job").iterdir())
        return self.within(1, f"ls -A {TO} {SMALL} {READ_ONLY}").split()

    def digests(self, route: Route, *, end: bool) -> str:
        """Return the digests of the folder at one end of a route."""
        look = "cd {} && find . -type f -exec sha256sum {{}} + | sort"
        if route == ("to-driver" if end else "from-driver"):
            local = self.folder / ("job" if end else "source") / "cohort"
            words = ["sh", "-c", look.format(local)]
            return subprocess.run(words, check=True, capture_output=True, text=True).stdout
        return self.within(1, look.format(f"{TO}/cohort")) if end else self.within(0, look.format(f"{FROM}/cohort"))

    def arrived(self, route: Route) -> None:
        """Assert that the copy has the source's files, with their content."""
        sent = self.digests(route, end=False)
        assert sent.count("\n") == 4
        assert self.digests(route, end=True) == sent


@pytest.fixture(scope="module")
def pods(tenant: Tenant) -> Iterator[tuple[str, str]]:
    names = unique("broken-a"), unique("broken-b")
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(standing(tenant, faulty_pods(name)))
        yield names


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    return recorded(monkeypatch)


@pytest.fixture
def at(tenant: Tenant, pods: tuple[str, str], tmp_path: Path, run: Recorded) -> Sites:
    """Return the sites with four files at this machine and at the first pod, without files of earlier tests."""
    made = Sites(tenant, tmp_path, pods)
    (tmp_path / "job").mkdir()
    (tmp_path / "source" / "cohort").mkdir(parents=True)
    for n in range(4):
        (tmp_path / "source" / "cohort" / f"{PATIENT}_{n}").write_bytes(os.urandom(500_000 + n))
    reset = f"chmod -R u+w {RUN} 2>/dev/null; rm -rf {WORKDIR}/* {WORKDIR}/.medweave* {SMALL}/*"
    reset += f"; mkdir -p {PROGRAMS} {TO} {FROM}/cohort"
    makes = f"for n in 0 1 2 3; do head -c $((500000 + n)) /dev/urandom > {FROM}/cohort/{PATIENT}_$n; done"
    made.within(0, f"{reset}; {makes}")
    made.within(1, reset)
    return made


# ---- in transit


@pytest.mark.parametrize("route", ["from-driver", "direct"])
def test_byte_flipped_in_transit(at: Sites, route: Route) -> None:
    flip = f'dd of="$4/cohort/{PATIENT}_3" bs=1 seek=9 conv=notrunc'
    at.replace(1, "tar", WHEN_UNPACKING + f'"$real" "$@"; printf "\\377\\376\\375\\374" | {flip}')
    assert "1 of 4 files with other content" in at.failed(TransferFailed, route)


def test_stream_that_ends_early_without_an_error(at: Sites) -> None:
    at.replace(1, "tar", WHEN_UNPACKING + 'head -c 1100000 | "$real" "$@" 2>/dev/null; cat > /dev/null; exit 0')
    assert "4 files" in at.failed(TransferFailed, "from-driver")


@pytest.mark.parametrize("route", ["to-driver", "direct"])
def test_tar_killed_in_transit(at: Sites, route: Route) -> None:
    # Less than a file: files that arrive whole are kept, and the copy would complete.
    at.replace(0, "tar", WHEN_PACKING + f'"$real" "$@" | head -c 400000; echo "tar: {PATIENT}: EOF" >&2; kill -KILL $$')
    assert "the stream broke off" in at.failed(TransferFailed, route)


def hostile(to: str) -> dict[str, list[tuple[str, bytes, str]]]:
    """Return archive entries by fault: name, type, and where a link leads."""
    return {
        "absolute": [(f"{to}/harm", tarfile.REGTYPE, "")],
        "above": [("cohort/../../harm", tarfile.REGTYPE, "")],
        "through a symlink": [("cohort/link", tarfile.SYMTYPE, to), ("cohort/link/harm", tarfile.REGTYPE, "")],
        "device": [("cohort/null", tarfile.CHRTYPE, "")],
    }


@pytest.mark.parametrize("case", hostile(""))
@pytest.mark.parametrize("route", ["to-driver", "direct"])
def test_a_hostile_archive(at: Sites, route: Route, case: str) -> None:
    outside = str(at.folder) if route == "to-driver" else f"{WORKDIR}/outside"
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        top = tarfile.TarInfo("cohort")
        top.type, top.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(top)
        for name, kind, link in hostile(outside)[case]:
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname, entry.size = kind, link, 4 if kind == tarfile.REGTYPE else 0
            archive.addfile(entry, io.BytesIO(b"harm"))
    at.within(1, f"mkdir {WORKDIR}/outside")
    at.within(0, f"echo {base64.b64encode(packed.getvalue()).decode()} | base64 -d > {WORKDIR}/archive")
    at.replace(0, "tar", WHEN_PACKING + f"cat {WORKDIR}/archive")
    assert "harm" not in at.failed(SourceRefused, route)
    assert "harm" not in at.within(1, f"find {WORKDIR} /tmp -name '*harm*'")
    assert not list(at.folder.rglob("*harm*"))


@pytest.mark.parametrize("times", [1, 9])
@pytest.mark.parametrize("route", ["to-driver", "direct"])
def test_a_source_that_changes_while_it_is_read(at: Sites, route: Route, times: int) -> None:
    count = f"{WORKDIR}/count"
    changes = f'echo x >> {count}; sleep 1.1; echo more >> "{FROM}/cohort/{PATIENT}_2"'
    so_often = f'if [ "$(cat {count} 2>/dev/null | wc -l)" -lt {times} ]; then {changes}; fi\n'
    at.replace(0, "tar", WHEN_PACKING + so_often + 'exec "$real" "$@"')
    if times == 1:
        at.send(route)
        at.arrived(route)
    else:
        assert "its files changed while they were read" in at.failed(SourceChanged, route)


# ---- at the other end


@pytest.mark.parametrize("route", ["from-driver", "direct"])
def test_a_full_disk(at: Sites, route: Route) -> None:
    at.within(1, f"head -c {(SMALL_MIB - 1) * MIB} /dev/zero > {SMALL}/theirs")
    at.replace(1, "tar", f'touch {WORKDIR}/called; exec "$real" "$@"')
    error = at.failed(NoRoom, route, to=f"{SMALL}/cohort")
    assert f"2000006 bytes are needed, {MIB} are free" in error
    assert at.within(1, f"ls {WORKDIR}/called 2>/dev/null || echo no") == "no\n", (
        "the space was checked before the transfer"
    )


def test_disk_filled_by_another_process_during_the_copy(at: Sites) -> None:
    at.replace(
        1, "tar", WHEN_UNPACKING + f'head -c {(SMALL_MIB - 1) * MIB} /dev/zero > {SMALL}/theirs; exec "$real" "$@"'
    )
    with pytest.raises(NoRoom, match=r"2000006 bytes are needed; .*No space left on device"):
        at.send("from-driver", to=f"{SMALL}/cohort")
    assert at.within(1, f"ls -A {SMALL}") == "theirs\n"


@pytest.mark.parametrize("route", ["from-driver", "direct"])
@pytest.mark.parametrize(
    ("folder", "reason"), [(READ_ONLY, "Read-only file system"), ("/root", "Permission denied")], ids=["ro", "rights"]
)
def test_unwritable_destination(at: Sites, route: Route, folder: str, reason: str) -> None:
    assert f"seen:     {reason}\n" in at.failed(TargetRefused, route, to=f"{folder}/cohort")


@pytest.mark.parametrize("route", ["to-driver", "direct"])
def test_a_file_that_may_not_be_read(at: Sites, route: Route) -> None:
    at.within(0, f"chmod 0 {FROM}/cohort/{PATIENT}_1")
    assert "seen:     Permission denied\n" in at.failed(SourceUnreadable, route)


@pytest.mark.parametrize("route", ["from-driver", "direct"])
def test_clocks_an_hour_apart(at: Sites, route: Route) -> None:
    at.replace(1, "tar", WHEN_UNPACKING + '"$real" "$@" && find "$4" -exec touch -d "1 hour" {} +')
    at.send(route)
    at.arrived(route)


# ---- the store, and drivers


def test_a_byte_that_is_flipped_in_the_store(at: Sites, run: Recorded) -> None:
    at.send("from-driver")
    at.send("from-driver", to=f"{TO}/second")
    assert [transfer["num_bytes"] for transfer in run.transfers] == [2_000_006, 0], "the store has it"
    file = f"{TO}/cohort/{PATIENT}_1"
    at.within(1, f"chmod u+w {file} && printf '\\377\\376\\375\\374' | dd of={file} bs=1 seek=9 conv=notrunc")
    at.within(1, f"chmod -R u+w {TO}/* && rm -rf {TO}/*")
    at.send("from-driver")
    assert run.transfers[-1]["num_bytes"] == 500_001
    at.arrived("from-driver")


def test_two_drivers_sending_the_same_files_at_once(at: Sites, run: Recorded) -> None:
    async def both() -> None:
        async def one(target: str) -> None:
            connectors = {
                at.names[1]: pods_connector(at.tenant, at.names[1]),
                "laptop": MedweaveLocalConnector("laptop", "/"),
            }
            async with managed(connectors) as manager:
                path = str(at.folder / "source" / "cohort")
                manager.register_path(LAPTOP, path)
                await manager.transfer_data(LAPTOP, path, [pod_place(at.names[1])], target)

        await asyncio.gather(one(f"{TO}/cohort"), one(f"{TO}/second"))

    asyncio.run(asyncio.wait_for(both(), 120))
    at.arrived("from-driver")
    at.within(1, f"diff -r {TO}/cohort {TO}/second")
    assert at.within(1, f"find {WORKDIR} -name '*.part'") == ""
    at.send("from-driver", to=f"{TO}/third")
    assert run.transfers[-1]["num_bytes"] == 0, "the store has each file once, and whole"


def test_a_driver_that_is_killed_in_the_middle(at: Sites) -> None:
    at.replace(1, "tar", WHEN_UNPACKING + f'head -c 800000 | "$real" "$@"; touch {WORKDIR}/begun; sleep 60; exit 2')
    child = os.fork()
    if child == 0:
        try:
            at.send("from-driver")
        finally:
            os._exit(1)
    try:
        begun = f"ls {WORKDIR}/begun 2>/dev/null || true"
        until(lambda: at.within(1, begun) != "", limit_s=60, what="the middle of the copy")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert at.within(1, f"find {TO} -name cohort -not -path '*.part/*'") == "", (
        "an incomplete file does not get its final name"
    )
    at.within(1, f"rm {PROGRAMS}/tar")
    at.send("from-driver")
    at.arrived("from-driver")
