"""StreamFlow's remote path over a real shell: any file name is handled, and no message contains a name."""

from __future__ import annotations

import asyncio
import base64
import glob
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from streamflow.core.deployment import ExecutionLocation
from streamflow.core.exception import WorkflowExecutionException
from streamflow.data.manager import DefaultDataManager

from medweave_connectors.engine.data.remote_path import MedweaveRemotePath
from medweave_connectors.transfer.manifest.remote_scan import RemoteScanFailed, parse_answer

# All names that a file system accepts; bytes that are not UTF-8 are decoded by `os.fsdecode`.
NAMES = st.binary(min_size=1, max_size=30).map(lambda name: os.fsdecode(name.replace(b"/", b"%").replace(b"\0", b"*")))
NAMES = NAMES.filter(lambda name: name not in {".", ".."})
TRAP = "a b\n$(touch harm)`touch harm`'\"\\;#*[!x]-é \udcff"
PATIENT = "Mustermann_Erika"


class Site:
    """A site whose files are on this machine.

    Attributes:
        path: PATH of its commands.
    """

    deployment_name = "site"
    path = os.environ["PATH"]

    async def run(self, location: Any, command: list[str], **keywords: Any) -> tuple[str, int]:
        result = subprocess.run(
            ["/bin/sh", "-c", " ".join(command)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            env=os.environ | {"PATH": self.path},
        )
        return result.stdout.decode(errors="replace").strip(), result.returncode


def at(path: Path | str, site: Site | None = None) -> Any:
    connector = site or Site()
    context: Any = SimpleNamespace(deployment_manager=SimpleNamespace(get_connector=lambda _: connector))
    context.data_manager = DefaultDataManager(context)
    return MedweaveRemotePath(str(path), context=context, location=ExecutionLocation(name="there", deployment="site"))


def run_sync(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(coroutine)


def matching(path: Any, pattern: str) -> list[str]:
    async def collect() -> list[str]:
        return [str(path_found) async for path_found in path.glob(pattern)]

    return sorted(asyncio.run(collect()))


def local_matches(folder: Any, pattern: str) -> list[str]:
    """Return the local matches as the engine finds them; `Path.glob` would also match hidden names."""
    return [os.path.normpath(match) for match in glob.glob(f"{glob.escape(str(folder))}/{pattern}")]  # noqa: PTH207


@pytest.fixture(params=["gnu", "busybox"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    """Return a site with GNU tools, and one with busybox."""
    created = Site()
    if request.param == "busybox":
        busybox = shutil.which("busybox")
        if busybox is None:
            pytest.skip("no busybox here (apt-get install busybox)")
        (tmp_path / "programs").mkdir()
        for program in (
            "sh",
            "base64",
            "readlink",
            "find",
            "stat",
            "awk",
            "head",
            "cat",
            "sha1sum",
            "mkdir",
            "rm",
            "ln",
            "chmod",
        ):
            (tmp_path / "programs" / program).symlink_to(busybox)
        created.path = str(tmp_path / "programs")
    return created


@pytest.mark.slow
@settings(max_examples=6, deadline=None)
@given(name=NAMES, content=st.text(max_size=50).map(str.encode))
@example(name=TRAP, content=b" \n\ttwo\r\n\n")
@example(name="tail \n", content=b"")
@example(name="-rf", content=b"x")
def test_file_names_are_never_interpreted_by_the_shell(name: str, content: bytes) -> None:
    with tempfile.TemporaryDirectory() as top:
        folder, inner = at(top) / f"{name[:20]}.d", f"x{name[:20]}"
        run_sync(folder.mkdir(parents=True))
        file = folder / name
        Path(file).write_bytes(content)
        assert run_sync(file.read_text()) == content.decode()
        assert run_sync(file.checksum()) == hashlib.sha1(content, usedforsecurity=False).hexdigest()
        assert run_sync(folder.size()) == run_sync(file.size()) == len(content)
        assert str(run_sync(file.resolve())) == os.path.realpath(file)
        run_sync((folder / inner).symlink_to(str(file)))
        assert str(run_sync((folder / inner).resolve())) == os.path.realpath(file)
        run_sync((folder / f"y{inner}").hardlink_to(str(file)))
        assert matching(folder, "*") == sorted(local_matches(folder, "*"))
        run_sync(folder.rmtree())
        assert run_sync(folder.resolve()) is None
        assert list(Path(top).iterdir()) == []


PATTERNS = (
    "*",
    "*.txt",
    "?",
    "[ab]*",
    "[!a]*",
    "a b",
    "sub/*",
    "*/deep",
    ".",
    "none",
    "$(touch harm)",
    "a;b",
    "[a",
    "-*",
)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_matches_the_same_names_as_on_this_machine(site: Site, tmp_path: Path, pattern: str) -> None:
    top = tmp_path / "a folder's name"
    (top / "sub" / "deep").mkdir(parents=True)
    for name in ("a b", "a", "b.txt", "c d.txt", ".hidden", "$(touch harm)", "a;b", "[a", "-x", "two\nlines.txt", "üb"):
        (top / name).touch()
    (top / "leads nowhere.txt").symlink_to("missing")
    truth = local_matches(top, pattern)
    assert matching(at(top, site), pattern) == sorted(truth)
    assert not Path("harm").exists()


def test_all_path_operations_act_at_the_site(site: Site, tmp_path: Path) -> None:
    top = tmp_path / TRAP
    (top / "sub").mkdir(parents=True)
    (top / "sub" / f"one\n{TRAP}").write_bytes(b"12345")
    (top / "two").write_bytes(b"678")
    path = at(top, site)
    run_sync((path / "three").mkdir())
    run_sync((path / "link").symlink_to("sub"))

    async def walked() -> list[Any]:
        return [(str(folder), set(folders), set(names)) async for folder, folders, names in path.walk()]

    assert sorted(asyncio.run(walked())) == [
        (str(top), {"sub", "three"}, {"two"}),
        (f"{top}/sub", set(), {f"one\n{TRAP}"}),
        (f"{top}/three", set(), set()),
    ]
    assert run_sync(path.size()) == 13, "links are followed"
    assert run_sync((path / "two").read_text(2)) == "67"
    assert run_sync((path / "sub").checksum()) is None
    assert run_sync((path / "missing").resolve()) is None
    assert str(run_sync((path / "link").resolve())).endswith("/sub")
    run_sync((path / "two").chmod(0o600))
    assert (top / "two").stat().st_mode & 0o777 == 0o600
    assert not Path("harm").exists()


def test_no_message_contains_a_name(site: Site, tmp_path: Path) -> None:
    path = at(tmp_path / PATIENT, site)
    for ask in (
        lambda: path.read_text(),
        lambda: path.chmod(0o600),
        lambda: (path / "below").mkdir(),
        lambda: (path / "below").symlink_to("x"),
        lambda: path.size(),
    ):
        with pytest.raises(WorkflowExecutionException) as raised:
            run_sync(ask())
        assert PATIENT not in str(raised.value)
        assert "No such file or directory" in str(raised.value)


@settings(max_examples=200, deadline=None)
@given(text=st.one_of(st.text(max_size=80), st.binary(max_size=80).map(base64.b64encode).map(bytes.decode)))
def test_text_without_an_answer_is_refused(text: str) -> None:
    with pytest.raises(RemoteScanFailed):
        parse_answer(text)


@given(content=st.binary(max_size=40), code=st.integers(0, 255), data=st.data())
def test_a_partial_answer_is_refused(content: bytes, code: int, data: st.DataObject) -> None:
    whole = base64.b64encode(content + b"\0medweave-end %d\n" % code).decode()
    if code == 0:
        assert parse_answer(whole) == content
    else:
        with pytest.raises(RemoteScanFailed):
            parse_answer(whole)
    with pytest.raises(RemoteScanFailed):
        parse_answer(whole[: data.draw(st.integers(0, len(whole) - 1))])
