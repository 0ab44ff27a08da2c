"""The listing that copies are compared by, made by a real shell on real files."""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import os
import shlex
import shutil
import socket
import stat
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
# Names that look like the beginning of another record.
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


def printed(path: Path, *, digests: bool = True, path_variable: str | None = None) -> str:
    words = " ".join(manifest.command(str(path), digests=digests))
    environment = os.environ | ({} if path_variable is None else {"PATH": path_variable})
    done = subprocess.run(["/bin/sh", "-c", words], capture_output=True, text=True, check=False, env=environment)
    return done.stdout.strip()


def as_printed(listing: bytes) -> str:
    return base64.encodebytes(gzip.compress(listing)).decode()


def listed(path: Path) -> Manifest:
    return manifest.parse(printed(path))


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    files=st.dictionaries(NAMES, st.binary(max_size=100), max_size=5),
    folders=st.sets(NAMES, max_size=3),
    data=st.data(),
)
@example(files=TRAPS, folders={f"g\n{HEAD}", "h"}, data=None)
def test_every_entry_is_listed_whatever_its_name_and_no_part_of_a_listing_is_taken(
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
        text = printed(top)
    seen = manifest.parse(text)
    found = {path: each.sha256 for path, each in seen.entries.items() if each.kind == Kind.FILE}
    assert found == {f"deeper/{name}": hashlib.sha256(content).hexdigest() for name, content in files.items()}
    made = {f"deeper/{name}{end}" for name in folders - files.keys() for end in ("", "/within")}
    assert {path for path, each in seen.entries.items() if each.kind == Kind.FOLDER} == {ROOT, "deeper", *made}
    assert seen.num_bytes == sum(map(len, files.values()))
    cuts = range(len(text)) if data is None else [int(data.draw(st.floats(0, 1, exclude_max=True)) * len(text))]
    for length in cuts:
        with pytest.raises(ManifestError):
            manifest.parse(text[:length].strip())


@settings(max_examples=100, deadline=None)
@given(text=st.one_of(st.text(max_size=200), st.binary(max_size=200).map(as_printed)))
def test_nothing_else_is_taken_for_a_listing(text: str) -> None:
    with pytest.raises(ManifestError):
        manifest.parse(text)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_a_listing_with_a_line_missing_is_refused(data: st.DataObject) -> None:
    entry = "{kind} 1 1 2026-11-22 22:32:04 +0000 .//{name}\n"
    lines = [entry.format(kind=kind, name=name) for kind, name in (("41ed", ""), ("81a4", "a"), ("81a4", "b"))]
    sums = [f"{'0' * 64}  .//{name}\n" for name in "ab"]
    kept = data.draw(st.lists(st.booleans(), min_size=5, max_size=5).filter(lambda each: not all(each)))
    parts = [line if keep else "" for line, keep in zip((*lines, *sums), kept, strict=True)]
    text = "\0".join(("/x", "".join(parts[:3]), "".join(parts[3:]), "end 0\n"))
    whole = "\0".join(("/x", "".join(lines), "".join(sums), "end 0\n"))
    assert list(manifest.parse(as_printed(whole.encode())).entries) == [ROOT, "a", "b"]
    if kept[1] == kept[3] and kept[2] == kept[4] and kept[0]:
        return  # a file that was never there
    with pytest.raises(ManifestError):
        manifest.parse(as_printed(text.encode()))


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
def test_a_listing_that_was_tampered_with_is_refused_or_another_one(data: st.DataObject) -> None:
    """Whoever writes a listing says of his own files what he likes; but no path of it leads elsewhere, and nothing breaks."""
    changed = bytearray(WHOLE)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(changed) - 1))
        piece = data.draw(
            st.sampled_from([b"", b"/", b"..", b"/../", b"\n", b"\0", b".//", b"9" * 30, b"f" * 20])
            | st.binary(max_size=3)
        )
        changed[at : at + data.draw(st.integers(0, 2))] = piece
    truth = manifest.parse(as_printed(WHOLE))
    try:
        seen = manifest.parse(as_printed(bytes(changed)))
    except ManifestError:
        return
    assert seen.real.startswith("/")
    assert os.path.normpath(seen.real) == seen.real
    for path in seen.entries.keys() - {ROOT}:
        assert os.path.normpath(f"/part/{path}") == f"/part/{path}"
    facts = [{name: (each.kind, each.size, each.sha256) for name, each in one.entries.items()} for one in (truth, seen)]
    assert (truth.difference(seen) == "") == (facts[0] == facts[1] or _only_folders_differ(*facts))


def _only_folders_differ(one: dict[str, tuple[Kind, int, str]], other: dict[str, tuple[Kind, int, str]]) -> bool:
    """A folder has no size of its own."""
    return all(
        mine == other[name] or mine[0] == other[name][0] == Kind.FOLDER for name, mine in one.items() if name in other
    ) and (one.keys() == other.keys())


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_of_what_is_damaged_on_the_way_nothing_is_taken(data: st.DataObject) -> None:
    text = list(as_printed(WHOLE))
    for _ in range(data.draw(st.integers(1, 3))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.characters())
    with contextlib.suppress(ManifestError):
        assert manifest.parse("".join(text)) == manifest.parse(as_printed(WHOLE))


@pytest.mark.parametrize("path", ["..", "../x", "a/../../x", "a//x", "a/./x", "/x", "a/"])
def test_a_listing_whose_paths_lead_out_of_the_folder_is_refused(path: str) -> None:
    # They become paths of links and archives at another site.
    parents = {path[:n] for n in range(1, len(path)) if path[n] == "/"}
    lines = "".join(f"41ed 1 1 2026-11-22 22:32:04 +0000 .//{name}\n" for name in ("", *sorted(parents), path))
    with pytest.raises(ManifestError, match=r"leads out of its folder|an entry twice"):
        manifest.parse(as_printed("\0".join(("/x", lines, "", "end 0\n")).encode()))


@pytest.mark.parametrize("real", ["", "/", "x", "/x/..", "/x/.", "//x", "/x/"])
def test_a_listing_of_no_name_is_refused(real: str) -> None:
    # The name is that of the copy.
    line = "41ed 1 1 2026-11-22 22:32:04 +0000 .//\n"
    with pytest.raises(ManifestError, match="leads out of its folder"):
        manifest.parse(as_printed("\0".join((real, line, "", "end 0\n")).encode()))


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=60) | st.from_regex(r"medweave-place (new|below) (\d{1,6000}|unknown)\.", fullmatch=True))
def test_what_a_site_says_of_its_room_never_breaks(text: str) -> None:
    told = shell_commands.parse_prepared(text)
    assert told is None or told.free_bytes is None or told.free_bytes >= 0


@pytest.mark.slow
@pytest.mark.parametrize("python", ["", "exit 1", None], ids=["works", "fails", "is quick"])
def test_large_files_have_the_same_digests_whoever_makes_them(tmp_path: Path, python: str | None) -> None:
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
    found = manifest.parse(printed(folder, path_variable=path))
    assert found == usual
    for name, entry in found.entries.items():
        if entry.kind == Kind.FILE:
            assert entry.sha256 == hashlib.sha256((folder / name).read_bytes()).hexdigest()
    assert (tmp_path / "used").exists() == (python == "")
    for below in (folder, folder / "large\n"):
        shell = subprocess.run(
            ["/bin/sh", "-c", " ".join(tree_digest.command(str(below)))], capture_output=True, text=True, check=True,
            env=os.environ | {"PATH": path},
        )  # fmt: skip
        wanted = tree_digest.expected_digest(listed(below))
        assert wanted is None or tree_digest.parse_digest(shell.stdout) == wanted


def test_a_name_that_is_no_text(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe")).write_bytes(b"x")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xff")).write_bytes(b"y")
    assert list(map(os.fsencode, sorted(listed(tmp_path).entries))) == [b".", b"\xff\xfe", b"\xff\xff"]


def test_a_name_of_255_bytes_and_a_deep_folder(tmp_path: Path) -> None:
    names = ["ü" * 127 + "x", *(["d" * 200] * 12)]
    Path(tmp_path, names[0]).touch()
    folder = tmp_path
    for name in names[1:]:
        folder = folder / name
        folder.mkdir()
    assert set(listed(tmp_path).entries) == {ROOT, names[0], *("/".join(names[1 : n + 1]) for n in range(1, 13))}


def test_what_is_known_of_each_entry(tmp_path: Path) -> None:
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
    assert {path: str(each.kind) for path, each in seen.entries.items()} == {
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


def test_a_look_reads_no_file(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abc")
    seen = manifest.parse(printed(tmp_path, digests=False), digests=False)
    assert (seen.entries["x"].size, seen.entries["x"].sha256) == (3, "")
    assert seen.unchanged(listed(tmp_path))
    with pytest.raises(ManifestError):
        manifest.parse(printed(tmp_path, digests=False))


@pytest.mark.parametrize("change", ["content", "new", "gone"])
def test_a_source_that_was_written_to_is_another_one(tmp_path: Path, change: str) -> None:
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


def test_the_difference_counts_and_names_nothing() -> None:
    def entry(digit: str, kind: Kind = Kind.FILE) -> ManifestEntry:
        return ManifestEntry(kind, 1, 0o644, 5, "then", digit * 64 if kind == Kind.FILE else "")

    folder = entry("", Kind.FOLDER)
    sent = Manifest(
        "/x",
        {ROOT: folder, "patient-a": entry("0"), "patient-b": entry("1"), "c": entry("2"), "e": folder, "f": folder},
    )
    later = {path: each._replace(modified_s=3605, changed="now", mode=0o600) for path, each in sent.entries.items()}
    assert sent.difference(Manifest("/y", later)) == "", "another clock, other rights"
    arrived = Manifest("/y", {ROOT: folder, "patient-a": entry("0"), "c": entry("3"), "d": entry("4"), "f": entry("5")})
    told = sent.difference(arrived)
    assert told == (
        "1 of 3 files missing, 1 of 3 folders missing, 1 of 6 are of another kind, 1 of 3 files with other content, "
        "1 more than were sent"
    )
    assert "patient" not in told


def test_why_there_is_no_listing_is_told_without_names(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"^there is no such file or folder$"):
        listed(tmp_path / "patient")
    (tmp_path / "patient").symlink_to("patient")
    with pytest.raises(ManifestError, match=r"^there is no such file or folder$"):
        listed(tmp_path / "patient")
    told = f"sha256sum: {tmp_path}/patient: Input/output error\n".encode()
    text = as_printed(b"\0".join((b"/x", b"", told, b"end 1\n")))
    with pytest.raises(ManifestError, match=r"^Input/output error$"):
        manifest.parse(text)


@pytest.mark.parametrize("lacks", manifest.TOOLS)
def test_a_site_without_a_tool_is_told(tmp_path: Path, lacks: str) -> None:
    for tool in (*manifest.TOOLS, "sh"):
        if tool != lacks:
            (tmp_path / tool).symlink_to(str(shutil.which(tool)))
    with pytest.raises(ManifestError, match=rf"^the site has no program `{lacks}`$"):
        manifest.parse(printed(tmp_path, path_variable=str(tmp_path)))


def test_the_sums_of_a_busybox_that_escapes_nothing(tmp_path: Path) -> None:
    # Older ones write a newline in a name as it is.
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
    assert manifest.parse(printed(tmp_path / "data", path_variable=f"{tmp_path}/bin:{os.environ['PATH']}")) == ours


# ---- any folder arrives as it is

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
    """PATH of a site with the tools of GNU, and of one with those of busybox."""
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
def test_any_folder_is_packed_and_unpacked_as_it_is(
    tools: str, name: str, tree: dict[str, Any], data: st.DataObject | None
) -> None:
    def through(*lines: list[str]) -> None:
        pack, unpack = (" ".join(map(shlex.quote, words)) for words in lines)
        done = subprocess.run(
            ["sh", "-c", f"{pack} | {unpack}"], env=os.environ | {"PATH": tools}, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr

    with tempfile.TemporaryDirectory() as top:
        source, part = Path(top, name), Path(top, "to the", "part")
        grow(source, tree)
        part.mkdir(parents=True)
        truth = listed(source)
        through(shell_commands.pack(str(source)), shell_commands.unpack(name, str(part / "other"), "t"))
        assert truth.difference(listed(part / "other")) == ""
        files = [each for each in truth.entries if truth.entries[each].kind == Kind.FILE]
        some = files if data is None else [each for each in files if data.draw(st.booleans())]
        if some:
            through(
                shell_commands.pack_files(top, [f"{name}/{each}" for each in some]),
                shell_commands.unpack_files(str(part)),
            )
            arrived = listed(part / name).entries
            assert {each for each in arrived if arrived[each].kind == Kind.FILE} == set(some)
            assert all(arrived[each].sha256 == truth.entries[each].sha256 for each in some)


# ---- what else is run at the far end


def done(words: list[str], **keywords: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", "-c", " ".join(words)], capture_output=True, text=True, check=False, env=os.environ | keywords
    )


@pytest.mark.parametrize("below", [False, True])
def test_a_copy_is_put_together_aside_and_renamed(tmp_path: Path, below: bool) -> None:
    destination = tmp_path / "not there yet" / 'it\'s "$HOME"'
    if below:
        destination.mkdir(parents=True)
    told = shell_commands.parse_prepared(done(shell_commands.prepare(str(destination), "t")).stdout)
    assert told is not None
    assert told.below == below
    usage = shutil.disk_usage(tmp_path)
    assert told.free_bytes is not None
    assert abs(told.free_bytes - usage.free) < 2**30
    place = shell_commands.staging_place(str(destination), "name", "t", below=below)
    part = Path(place.part)
    assert (part.parent, part.name) == (destination if below else destination.parent, ".medweave-t.part")
    assert stat.S_IMODE(part.stat().st_mode) == 0o700
    Path(place.inside("real")).mkdir(mode=0o500)
    assert done(shell_commands.publish(place, "real")).returncode == 0
    assert Path(place.final) == (destination / "name" if below else destination)
    assert stat.S_IMODE(Path(place.final).stat().st_mode) == 0o500
    assert not part.exists()
    assert done(shell_commands.publish(place, "real")).returncode == 0, "by a second pod on the same volume"
    Path(place.final).rmdir()
    assert done(shell_commands.publish(place, "real")).returncode == shell_commands.REFUSED


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "input").mkdir()
    (tmp_path / "link").symlink_to("input")
    place = shell_commands.StagingPlace(str(tmp_path / ".part"), str(tmp_path / "link"))
    Path(place.part).mkdir()
    Path(place.inside("x")).write_text("new")
    assert done(shell_commands.publish(place, "x")).returncode == 0
    assert (tmp_path / "link").read_text() == "new"
    assert list((tmp_path / "input").iterdir()) == []


def before(folder: Path, kind: str) -> shell_commands.StagingPlace:
    """A folder or link `data` of an earlier run, and a copy that would replace it."""
    (folder / "old").mkdir()
    (folder / "old" / "precious").touch()
    if kind == "link":
        (folder / "data").symlink_to("old")
    else:
        (folder / "old").rename(folder / "data")
    done(shell_commands.prepare(str(folder / "new"), "t"))
    place = shell_commands.StagingPlace(str(folder / ".medweave-t.part"), str(folder / "data"))
    Path(place.inside("x")).mkdir()
    return place


def with_mv(folder: Path, script: str) -> str:
    """PATH with another `mv`, which can run the real one as `$real`."""
    (folder / "bin").mkdir()
    replaced(folder / "bin", "mv", script)
    return f"{folder}/bin:{os.environ['PATH']}"


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_what_was_there_before_stays_where_the_copy_cannot_take_its_place(tmp_path: Path, kind: str) -> None:
    path = with_mv(tmp_path, '[ "$1" != -f ] || exit 1; exec $real "$@"')
    assert done(shell_commands.publish(before(tmp_path, kind), "x"), PATH=path).returncode == shell_commands.REFUSED
    assert (tmp_path / "data" / "precious").exists()
    assert (tmp_path / "data").is_symlink() == (kind == "link")


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_what_was_there_before_is_put_back_when_the_replacement_was_cut_off(tmp_path: Path, kind: str) -> None:
    place = before(tmp_path, kind)
    path = with_mv(tmp_path, '[ "$1" != -f ] || kill -KILL $PPID; exec $real "$@"')
    done(shell_commands.publish(place, "x"), PATH=path)
    shutil.rmtree(tmp_path / "data", ignore_errors=True)  # the `mv` of a killed shell may still have come to its end
    assert os.path.lexists(Path(place.part, ".medweave-old", "data"))
    assert done(shell_commands.discard(str(tmp_path / "data"), "t")).returncode == 0
    assert (tmp_path / "data" / "precious").exists()
    assert not Path(place.part).exists()


def test_a_copy_does_not_go_into_a_folder_that_has_come_meanwhile(tmp_path: Path) -> None:
    done(shell_commands.prepare(str(tmp_path / "data"), "t"))
    place = shell_commands.StagingPlace(str(tmp_path / ".medweave-t.part"), str(tmp_path / "data"))
    Path(place.inside("x")).mkdir()
    path = with_mv(tmp_path, f'[ "$1" != -f ] || mkdir -p "{tmp_path}/data/of another"; exec $real "$@"')
    assert done(shell_commands.publish(place, "x"), PATH=path).returncode == shell_commands.REFUSED
    assert [each.name for each in (tmp_path / "data").iterdir()] == ["of another"]


def test_what_is_not_whole_is_removed_whatever_its_rights(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "to"):
        done(shell_commands.prepare(str(folder / "to"), "t"))
        (folder / ".medweave-t.part" / "x" / "y").mkdir(parents=True)
        (folder / ".medweave-t.part" / "x").chmod(0)
    assert done(shell_commands.discard(str(tmp_path / "to"), "t")).returncode == 0
    assert [each.name for each in tmp_path.rglob("*")] == ["to"]


@pytest.mark.parametrize(
    ("line", "free"),
    [
        ("/dev/sda1 1000 400 600 40% /", 600 * 1024),
        ("//server/my share 50% off 1000 400 600 40% /mnt/my disk", 600 * 1024),
        ("s3fs 0 0 0 - /bucket", None),
        ("s3fs 0 0 0 0% /bucket", None),
        ("odd", None),
    ],
)
def test_the_free_bytes_of_a_file_system(tmp_path: Path, line: str, free: int | None) -> None:
    (tmp_path / "df").write_text(f"#!/bin/sh\necho Filesystem 1024-blocks; echo '{line}'\n")
    (tmp_path / "df").chmod(0o755)
    told = done(shell_commands.prepare(str(tmp_path / "to"), "t"), PATH=f"{tmp_path}:{os.environ['PATH']}").stdout
    assert shell_commands.parse_prepared(told) == shell_commands.PreparedFolder(below=False, free_bytes=free)
