"""The manifest that copies are verified against, listed by a real shell on real files."""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from medweave_connectors.transfer import shell_commands
from medweave_connectors.transfer.manifest import manifest, tree_digest
from medweave_connectors.transfer.manifest.manifest import ROOT, Kind, Manifest, ManifestEntry, ManifestError
from support.transfers import replaced

NAMES = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=40).filter(
    lambda name: name not in {".", ".."}
)
# File names that look like the start of another record.
HEAD = f"81a4 5 1795386724 2026-11-22 22:32:04.972886566 +0000 {'.'}"
TRAPS = {
    "a\n": b"",
    f"b\n{HEAD}": b"1",
    f"c\n{'0' * 64}  .": b"2",
    f"\\{'0' * 64}  .": b"3",
    "d\\ne": b"4",
    "d\ne": b"5",
    "f\r": b"6",
}


def print_listing(path: Path, *, digests: bool = True, path_variable: str | None = None) -> str:
    words = " ".join(manifest.command(str(path), digests=digests))
    environment = os.environ | ({} if path_variable is None else {"PATH": path_variable})
    result = subprocess.run(["/bin/sh", "-c", words], capture_output=True, text=True, check=False, env=environment)
    return result.stdout.strip()


def encode_listing(listing: bytes) -> str:
    return base64.encodebytes(gzip.compress(listing)).decode()


def listed(path: Path) -> Manifest:
    return manifest.parse(print_listing(path))


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    files=st.dictionaries(NAMES, st.binary(max_size=100), max_size=5),
    folders=st.sets(NAMES, max_size=3),
    data=st.data(),
)
@example(files=TRAPS, folders={f"g\n{HEAD}", "h"}, data=None)
def test_entries_with_any_name_are_listed_and_partial_listings_are_refused(
    files: dict[str, bytes], folders: set[str], data: st.DataObject | None
) -> None:
    with tempfile.TemporaryDirectory() as name:
        top = Path(name, "a folder's name")
        below = top / "deeper"
        below.mkdir(parents=True)
        for folder in folders - files.keys():
            (below / folder / "within").mkdir(parents=True)
        for file, content in files.items():
            (below / file).write_bytes(content)
        text = print_listing(top)
    seen = manifest.parse(text)
    digests = {path: entry.sha256 for path, entry in seen.entries.items() if entry.kind == Kind.FILE}
    assert digests == {f"deeper/{name}": hashlib.sha256(content).hexdigest() for name, content in files.items()}
    folder_paths = {f"deeper/{name}{end}" for name in folders - files.keys() for end in ("", "/within")}
    assert {path for path, entry in seen.entries.items() if entry.kind == Kind.FOLDER} == {
        ROOT,
        "deeper",
        *folder_paths,
    }
    assert seen.num_bytes == sum(map(len, files.values()))
    cuts = range(len(text)) if data is None else [int(data.draw(st.floats(0, 1, exclude_max=True)) * len(text))]
    for length in cuts:
        with pytest.raises(ManifestError):
            manifest.parse(text[:length].strip())


@settings(max_examples=100, deadline=None)
@given(text=st.one_of(st.text(max_size=200), st.binary(max_size=200).map(encode_listing)))
def test_other_text_is_refused_as_a_listing(text: str) -> None:
    with pytest.raises(ManifestError):
        manifest.parse(text)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_a_listing_with_a_line_missing_is_refused(data: st.DataObject) -> None:
    entry = "{kind} 1 1 2026-11-22 22:32:04 +0000 .//{name}\n"
    lines = [entry.format(kind=kind, name=name) for kind, name in (("41ed", ""), ("81a4", "a"), ("81a4", "b"))]
    sums = [f"{'0' * 64}  .//{name}\n" for name in "ab"]
    keeps = data.draw(st.lists(st.booleans(), min_size=5, max_size=5).filter(lambda flags: not all(flags)))
    parts = [line if keep else "" for line, keep in zip((*lines, *sums), keeps, strict=True)]
    text = "\0".join(("/x", "".join(parts[:3]), "".join(parts[3:]), "end 0\n"))
    whole = "\0".join(("/x", "".join(lines), "".join(sums), "end 0\n"))
    assert list(manifest.parse(encode_listing(whole.encode())).entries) == [ROOT, "a", "b"]
    if keeps[1] == keeps[3] and keeps[2] == keeps[4] and keeps[0]:
        return  # a complete listing of fewer files
    with pytest.raises(ManifestError):
        manifest.parse(encode_listing(text.encode()))


LINES = (
    "41ed 4096 1 2026-11-22 22:32:04 +0000 .//\n",
    "81a4 5 1 2026-11-22 22:32:04 +0000 .//a\n",
    "41ed 4096 1 2026-11-22 22:32:04 +0000 .//b\n",
    "81a4 7 1 2026-11-22 22:32:04 +0000 .//b/c d\n",
)
SUMS = (f"{'0' * 64}  .//a\n", f"{'1' * 64}  .//b/c d\n")
WHOLE = "\0".join(("/x y", "".join(LINES), "".join(SUMS), "end 0\n")).encode()


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_a_changed_listing_is_refused_or_differs(data: st.DataObject) -> None:
    """A site may list anything about its own files, but no path may lead out of the folder, and parsing must not crash."""
    changed = bytearray(WHOLE)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(changed) - 1))
        piece = data.draw(
            st.sampled_from([b"", b"/", b"..", b"/../", b"\n", b"\0", b".//", b"9" * 30, b"f" * 20])
            | st.binary(max_size=3)
        )
        changed[at : at + data.draw(st.integers(0, 2))] = piece
    truth = manifest.parse(encode_listing(WHOLE))
    try:
        seen = manifest.parse(encode_listing(bytes(changed)))
    except ManifestError:
        return
    assert seen.real.startswith("/")
    assert os.path.normpath(seen.real) == seen.real
    for path in seen.entries.keys() - {ROOT}:
        assert os.path.normpath(f"/part/{path}") == f"/part/{path}"
    facts = [
        {name: (entry.kind, entry.size, entry.sha256) for name, entry in one.entries.items()} for one in (truth, seen)
    ]
    assert (truth.difference(seen) == "") == (facts[0] == facts[1] or _only_folders_differ(*facts))


def _only_folders_differ(one: dict[str, tuple[Kind, int, str]], other: dict[str, tuple[Kind, int, str]]) -> bool:
    """Return True if the entries are equal apart from the sizes of folders."""
    return all(
        mine == other[name] or mine[0] == other[name][0] == Kind.FOLDER for name, mine in one.items() if name in other
    ) and (one.keys() == other.keys())


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_damaged_listing_is_refused_or_unchanged(data: st.DataObject) -> None:
    text = list(encode_listing(WHOLE))
    for _ in range(data.draw(st.integers(1, 3))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.characters())
    with contextlib.suppress(ManifestError):
        assert manifest.parse("".join(text)) == manifest.parse(encode_listing(WHOLE))


@pytest.mark.parametrize("path", ["..", "../x", "a/../../x", "a//x", "a/./x", "/x", "a/"])
def test_a_listing_whose_paths_lead_out_of_the_folder_is_refused(path: str) -> None:
    # The paths are used in links and archives at another site.
    parents = {path[:n] for n in range(1, len(path)) if path[n] == "/"}
    lines = "".join(f"41ed 1 1 2026-11-22 22:32:04 +0000 .//{name}\n" for name in ("", *sorted(parents), path))
    with pytest.raises(ManifestError, match=r"leads out of its folder|an entry twice"):
        manifest.parse(encode_listing("\0".join(("/x", lines, "", "end 0\n")).encode()))


@pytest.mark.parametrize("real", ["", "/", "x", "/x/..", "/x/.", "//x", "/x/"])
def test_a_listing_with_an_invalid_real_path_is_refused(real: str) -> None:
    # The copy gets this name.
    line = "41ed 1 1 2026-11-22 22:32:04 +0000 .//\n"
    with pytest.raises(ManifestError, match="leads out of its folder"):
        manifest.parse(encode_listing("\0".join((real, line, "", "end 0\n")).encode()))


@pytest.mark.slow
@pytest.mark.parametrize("python", ["", "exit 1", None], ids=["works", "fails", "is quick"])
def test_digests_of_large_files_are_the_same_with_and_without_python(tmp_path: Path, python: str | None) -> None:
    folder, programs = tmp_path / "folder", tmp_path / "programs"
    folder.mkdir(), programs.mkdir()
    for name, content in {**TRAPS, "\udcff": b"7"}.items():
        (folder / name).write_bytes(content)
    with (folder / "large\n").open("wb") as stream:
        stream.truncate(9 * 2**20)
    usual = listed(folder)
    if python is None:
        (programs / "python3").symlink_to(Path(sys.executable).resolve())
    else:
        replaced(programs, "python3", python or f'touch {tmp_path}/used; exec "$real" "$@"')
    path = f"{programs}:{os.environ['PATH']}"
    listed_manifest = manifest.parse(print_listing(folder, path_variable=path))
    assert listed_manifest == usual
    for name, entry in listed_manifest.entries.items():
        if entry.kind == Kind.FILE:
            assert entry.sha256 == hashlib.sha256((folder / name).read_bytes()).hexdigest()
    assert (tmp_path / "used").exists() == (python == "")
    for below in (folder, folder / "large\n"):
        shell = subprocess.run(
            ["/bin/sh", "-c", " ".join(tree_digest.command(str(below)))], capture_output=True, text=True, check=True,
            env=os.environ | {"PATH": path},
        )  # fmt: skip
        expected = tree_digest.expected_digest(listed(below))
        assert expected is None or tree_digest.parse_digest(shell.stdout) == expected


def test_names_that_are_not_utf_8_are_listed(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe")).write_bytes(b"x")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xff")).write_bytes(b"y")
    assert list(map(os.fsencode, sorted(listed(tmp_path).entries))) == [b".", b"\xff\xfe", b"\xff\xff"]


def test_a_name_of_255_bytes_and_a_deep_folder_are_listed(tmp_path: Path) -> None:
    names = ["ü" * 127 + "x", *(["d" * 200] * 12)]
    Path(tmp_path, names[0]).touch()
    folder = tmp_path
    for name in names[1:]:
        folder = folder / name
        folder.mkdir()
    assert set(listed(tmp_path).entries) == {ROOT, names[0], *("/".join(names[1 : n + 1]) for n in range(1, 13))}


def test_kind_size_mode_and_time_of_entries_are_listed(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir(mode=0o700)
    (tmp_path / "tool").write_bytes(b"12345")
    (tmp_path / "tool").chmod(0o4750)
    os.utime(tmp_path / "tool", (1e9, 1e9))
    (tmp_path / "again").hardlink_to(tmp_path / "tool")
    with (tmp_path / "sparse").open("wb") as stream:
        stream.truncate(10**6)
    (tmp_path / "nowhere").symlink_to("missing")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
    seen = listed(tmp_path)
    assert seen.real == str(tmp_path.resolve())
    assert {path: str(entry.kind) for path, entry in seen.entries.items()} == {
        ROOT: "folder", "empty": "folder", "tool": "file", "again": "file", "sparse": "file", "nowhere": "symlink",
        "socket": "special",
    }  # fmt: skip
    tool = seen.entries["tool"]
    assert (tool.size, tool.mode, tool.modified_s) == (5, 0o4750, 10**9)
    assert seen.entries["again"] == tool
    assert seen.entries["empty"].mode == 0o700
    assert (seen.num_files, seen.num_bytes) == (3, 10**6 + 10)


def test_a_file_and_its_copy_under_another_name_are_equal(tmp_path: Path) -> None:
    (tmp_path / "-one").write_bytes(b"12345")
    (tmp_path / "two 2\n").write_bytes(b"12345")
    one, two = listed(tmp_path / "-one"), listed(tmp_path / "two 2\n")
    assert one.difference(two) == ""
    assert (one.num_bytes, list(one.entries)) == (5, [ROOT])
    assert two.real.endswith("/two 2\n")


def test_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "x").write_bytes(b"abc")
    (tmp_path / "sent").mkdir()
    (tmp_path / "sent" / "x").symlink_to(tmp_path / "real" / "x")
    (tmp_path / "to it").symlink_to("sent")
    assert listed(tmp_path / "to it").entries["x"] == listed(tmp_path / "real").entries["x"]
    assert listed(tmp_path / "to it").real == str((tmp_path / "sent").resolve())


def test_a_listing_without_digests_reads_no_file(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abc")
    seen = manifest.parse(print_listing(tmp_path, digests=False), digests=False)
    assert (seen.entries["x"].size, seen.entries["x"].sha256) == (3, "")
    assert seen.unchanged(listed(tmp_path))
    with pytest.raises(ManifestError):
        manifest.parse(print_listing(tmp_path, digests=False))


@pytest.mark.parametrize("change", ["content", "new", "gone"])
def test_a_changed_source_is_detected(tmp_path: Path, change: str) -> None:
    for name in ("x", "y"):
        (tmp_path / name).write_bytes(b"abc")
    before = listed(tmp_path)
    assert before.unchanged(listed(tmp_path))
    if change == "content":  # of the same size, and with the same time of modification
        (tmp_path / "x").write_bytes(b"abd")
        os.utime(tmp_path / "x", (before.entries["x"].modified_s,) * 2)
    elif change == "new":
        (tmp_path / "z").mkdir()
    else:
        (tmp_path / "y").unlink()
    assert not before.unchanged(listed(tmp_path))


def test_a_difference_has_counts_and_no_names() -> None:
    def entry(digit: str, kind: Kind = Kind.FILE) -> ManifestEntry:
        return ManifestEntry(kind, 1, 0o644, 5, "then", digit * 64 if kind == Kind.FILE else "")

    folder = entry("", Kind.FOLDER)
    sent = Manifest(
        "/x",
        {ROOT: folder, "patient-a": entry("0"), "patient-b": entry("1"), "c": entry("2"), "e": folder, "f": folder},
    )
    later = {path: entry._replace(modified_s=3605, changed="now", mode=0o600) for path, entry in sent.entries.items()}
    assert sent.difference(Manifest("/y", later)) == "", "other clock and other permissions"
    arrived = Manifest("/y", {ROOT: folder, "patient-a": entry("0"), "c": entry("3"), "d": entry("4"), "f": entry("5")})
    message = sent.difference(arrived)
    assert message == (
        "1 of 3 files missing, 1 of 3 folders missing, 1 of 6 are of another kind, 1 of 3 files with other content, "
        "1 unexpected entries"
    )
    assert "patient" not in message


def test_errors_of_a_listing_contain_no_names(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"^there is no such file or folder$"):
        listed(tmp_path / "patient")
    (tmp_path / "patient").symlink_to("patient")
    with pytest.raises(ManifestError, match=r"^there is no such file or folder$"):
        listed(tmp_path / "patient")
    message = f"sha256sum: {tmp_path}/patient: Input/output error\n".encode()
    text = encode_listing(b"\0".join((b"/x", b"", message, b"end 1\n")))
    with pytest.raises(ManifestError, match=r"^Input/output error$"):
        manifest.parse(text)


@pytest.mark.parametrize("lacks", manifest.TOOLS)
def test_a_site_without_a_tool_is_reported(tmp_path: Path, lacks: str) -> None:
    for tool in (*manifest.TOOLS, "sh"):
        if tool != lacks:
            (tmp_path / tool).symlink_to(str(shutil.which(tool)))
    with pytest.raises(ManifestError, match=rf"^the site has no program `{lacks}`$"):
        manifest.parse(print_listing(tmp_path, path_variable=str(tmp_path)))


def test_checksums_of_a_busybox_that_does_not_escape_names_are_parsed(tmp_path: Path) -> None:
    # Older versions print a newline in a name unescaped.
    script = f"""#!{shutil.which("python3")}
import hashlib, os, sys
for name in map(os.fsencode, sys.argv[1:]):
    sys.stdout.buffer.write(hashlib.sha256(open(name, "rb").read()).hexdigest().encode() + b"  " + name + b"\\n")
"""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sha256sum").write_text(script)
    (tmp_path / "bin" / "sha256sum").chmod(0o755)
    (tmp_path / "data").mkdir()
    for name, content in TRAPS.items():
        (tmp_path / "data" / name).write_bytes(content)
    ours = listed(tmp_path / "data")
    assert (
        manifest.parse(print_listing(tmp_path / "data", path_variable=f"{tmp_path}/bin:{os.environ['PATH']}")) == ours
    )


# ---- folders are copied unchanged

RAW = st.binary(min_size=1, max_size=20).map(lambda name: os.fsdecode(name.replace(b"/", b"\\").replace(b"\0", b"%")))
RAW = RAW.filter(lambda name: name not in {".", ".."})
TREES = st.recursive(
    st.binary(max_size=1500), lambda below: st.dictionaries(RAW, below, max_size=4), max_leaves=8
).filter(lambda tree: isinstance(tree, dict))


def grow(at: Path, tree: bytes | dict[str, Any]) -> None:
    if isinstance(tree, bytes):
        at.write_bytes(tree)
        return
    at.mkdir()
    for name, below in tree.items():
        grow(at / name, below)


@pytest.fixture(scope="module", params=["gnu", "busybox"])
def tools(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the PATH of a site with GNU tools, and of one with busybox."""
    if request.param == "gnu":
        return os.environ["PATH"]
    folder, busybox = tmp_path_factory.mktemp("programs"), shutil.which("busybox")
    if busybox is None:
        pytest.skip("no busybox here (apt-get install busybox)")
    for name in ("sh", "env", "tar", "mkdir", "mv", "rm", "chmod", "sleep"):
        (folder / name).symlink_to(busybox)
    return str(folder)


@pytest.mark.slow
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=RAW, tree=TREES, data=st.data())
@example(name="\\a", tree={"\\n": b"1", "n": b"2", "-C": {"--": b"3"}, "\n": b"4", "\udcff": {}}, data=None)
def test_any_folder_is_packed_and_unpacked_unchanged(
    tools: str, name: str, tree: dict[str, Any], data: st.DataObject | None
) -> None:
    def through(*lines: list[str]) -> None:
        pack, unpack = (" ".join(map(shlex.quote, words)) for words in lines)
        result = subprocess.run(
            ["sh", "-c", f"{pack} | {unpack}"], env=os.environ | {"PATH": tools}, capture_output=True, check=False
        )
        assert result.returncode == 0, result.stderr

    with tempfile.TemporaryDirectory() as top:
        source, part = Path(top, name), Path(top, "to the", "part")
        grow(source, tree)
        part.mkdir(parents=True)
        truth = listed(source)
        through(shell_commands.pack(str(source)), shell_commands.unpack(name, str(part / "other"), "t"))
        assert truth.difference(listed(part / "other")) == ""
        files = [path for path, entry in truth.entries.items() if entry.kind == Kind.FILE]
        some = files if data is None else [path for path in files if data.draw(st.booleans())]
        if some:
            through(
                shell_commands.pack_files(top, [f"{name}/{path}" for path in some]),
                shell_commands.unpack_files(str(part)),
            )
            arrived = listed(part / name).entries
            assert {path for path, entry in arrived.items() if entry.kind == Kind.FILE} == set(some)
            assert all(arrived[path].sha256 == truth.entries[path].sha256 for path in some)
