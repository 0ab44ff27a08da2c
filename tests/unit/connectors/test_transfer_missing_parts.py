"""The missing parts of an interrupted copy, and the commands that send them, with GNU tools and busybox."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from medweave_connectors.transfer import shell_commands
from medweave_connectors.transfer.agent.archive import ArchiveRefused, LengthChecker
from medweave_connectors.transfer.manifest import manifest
from medweave_connectors.transfer.manifest.manifest import ROOT, Kind, Manifest, ManifestEntry
from medweave_connectors.transfer.manifest.missing_parts import (
    WORTH_BYTES,
    MissingParts,
    find_missing_parts,
    finishing_steps,
    removal_steps,
)
from medweave_connectors.transfer.shell_commands import BLOCK_BYTES, StagingPlace
from medweave_connectors.transfer.streams import pieces

NAMES = ("a", "b", "sub/a", "sub/b", "sub/deep/a", "it's $HOME")
FOLDERS = (ROOT, "sub", "sub/deep", "empty")
Run = Callable[..., bytes]


def file(size: int, mode: int = 0o644, modified_s: int = 10**9) -> ManifestEntry:
    return ManifestEntry(Kind.FILE, size, mode, modified_s, "")


def folder(mode: int = 0o755) -> ManifestEntry:
    return ManifestEntry(Kind.FOLDER, 4096, mode, 10**9, "")


sizes = st.one_of(st.integers(0, 3), st.integers(0, 5 * WORTH_BYTES), st.sampled_from([WORTH_BYTES, 2 * WORTH_BYTES]))


@st.composite
def sources(draw: st.DrawFn) -> Manifest:
    files = {name: file(draw(sizes)) for name in draw(st.sets(st.sampled_from(NAMES), min_size=1))}
    return Manifest(
        "/data/cohort", {**{name: folder(draw(st.sampled_from([0o755, 0o500]))) for name in FOLDERS}, **files}
    )


@st.composite
def arrived_manifests(draw: st.DrawFn, sent: Manifest) -> Manifest:
    """Draw a manifest at the target: any part of the source, and entries that do not belong to it."""
    entries = {}
    for path, mine in sent.entries.items():
        what = draw(st.sampled_from(["all", "part", "none", "more", "other"]))
        parents = {above for above in (path.rpartition("/")[0],) if above}
        if what == "none" or any(entries.get(above, folder()).kind != Kind.FOLDER for above in parents):
            continue
        if parents - entries.keys():
            continue
        if what == "other" and path != ROOT:
            entries[path] = folder() if mine.kind == Kind.FILE else file(7)
        elif mine.kind == Kind.FILE and what == "part":
            entries[path] = mine._replace(size=draw(st.integers(0, mine.size)), mode=0o600)
        elif mine.kind == Kind.FILE and what == "more":
            entries[path] = mine._replace(size=mine.size + 1)
        else:
            entries[path] = mine
    if draw(st.booleans()) and entries:
        entries["stranger"] = file(1)
    return Manifest("/part/cohort", entries)


def entries_after(sent: Manifest, rest: MissingParts, there: Manifest) -> dict[str, tuple[Kind, int]]:
    """Return kinds and file sizes at the target after the missing parts are sent."""
    removed = {
        path for path in there.entries for wrong in rest.unwanted if path == wrong or path.startswith(f"{wrong}/")
    }
    entries = {path: (entry.kind, entry.size) for path, entry in there.entries.items() if path not in removed}
    for path, begins in rest.partial_files.items():
        kind, size = entries[path]
        assert kind == Kind.FILE
        assert size >= begins, "the rest of the file has no hole"
        assert begins % BLOCK_BYTES == 0
        entries[path] = (Kind.FILE, sent.entries[path].size)
    for path in rest.files:
        entries[path] = (Kind.FILE, sent.entries[path].size)
    for path in rest.new_folders:
        entries[path] = (Kind.FOLDER, 0)
    return {path: (kind, size if kind == Kind.FILE else 0) for path, (kind, size) in entries.items()}


@pytest.mark.slow
@given(st.data())
def test_missing_parts_complete_the_copy_at_all_locations(data: st.DataObject) -> None:
    sent = data.draw(sources())
    names = [path for path, entry in sent.entries.items() if entry.kind == Kind.FILE]
    there = data.draw(st.lists(arrived_manifests(sent), min_size=1, max_size=3))
    rest = find_missing_parts(sent, names, there)
    whole = {path: (entry.kind, entry.size if entry.kind == Kind.FILE else 0) for path, entry in sent.entries.items()}
    for arrived in there:
        assert entries_after(sent, rest, arrived) == whole
    assert set(rest.files).isdisjoint(rest.partial_files)


@pytest.mark.slow
@given(st.data())
def test_complete_files_are_not_sent_again(data: st.DataObject) -> None:
    sent = data.draw(sources())
    names = [path for path, entry in sent.entries.items() if entry.kind == Kind.FILE]
    there = data.draw(arrived_manifests(sent))
    rest = find_missing_parts(sent, names, [there])
    for path in names:
        mine, other = sent.entries[path], there.entries.get(path)
        if other is not None and other.kind == Kind.FILE and other.size == mine.size:
            assert path not in rest.files
            assert path not in rest.partial_files
    assert find_missing_parts(sent, names, [sent]) == MissingParts((), {}, (), (), (), {}, 0, nothing_arrived=False)
    assert (
        rest.nothing_arrived or rest.missing_bytes < find_missing_parts(sent, names, [Manifest("", {})]).missing_bytes
    )


def test_files_linked_from_a_store_are_unchanged() -> None:
    sent = Manifest("/data/cohort", {ROOT: folder(), "stored": file(9), "new": file(9)})
    there = Manifest("", {ROOT: folder(), "stored": file(9, mode=0o444, modified_s=1)})
    rest = find_missing_parts(sent, ["new"], [there])
    assert (rest.files, rest.unstamped, rest.unwanted) == (("new",), (), ())


@pytest.mark.parametrize("pieces_of", [[5], [2, 3], [6], [5, 1], [4], []])
def test_the_rest_of_a_file_must_have_its_exact_length(pieces_of: list[int]) -> None:
    guard = LengthChecker(5)

    def act() -> None:
        for count in pieces_of:
            assert guard.passed(bytes(count)) == bytes(count)
        guard.end()

    if sum(pieces_of) == 5:
        return act()
    with pytest.raises(ArchiveRefused):
        act()


@pytest.fixture(params=["gnu", "busybox"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """Return a function that runs command lines as a site's shell does."""
    programs = tmp_path / "programs"
    programs.mkdir()
    if request.param == "busybox":
        busybox = shutil.which("busybox")
        if busybox is None:
            pytest.skip("no busybox here (apt-get install busybox)")
        for name in ["sh", "dd", "stat", "chmod", "touch", "mkdir", "rm", "mv", "find", "sleep", "tar", "env"]:
            (programs / name).symlink_to(busybox)
        path = str(programs)
    else:
        path = os.environ["PATH"]

    def run_words(words: list[str], stdin: bytes = b"") -> bytes:
        line = words if len(words) > 1 else ["sh", "-c", words[0]]
        return subprocess.run(line, input=stdin, capture_output=True, check=True, env={"PATH": path}).stdout

    return run_words


def listed(path: Path) -> Manifest:
    words = manifest.command(str(path), digests=False)
    output = subprocess.run(["sh", "-c", words[0]], capture_output=True, text=True, check=True).stdout
    return manifest.parse(output, digests=False)


def content(path: Path) -> dict[str, tuple[int, int, bytes]]:
    entries = {}
    for entry in (path, *path.rglob("*")):
        stat_result = entry.stat()
        is_file = entry.is_file()
        name = str(entry.relative_to(path))
        entries[name] = (
            stat_result.st_mode,
            int(stat_result.st_mtime) if is_file else 0,
            entry.read_bytes() if is_file else b"",
        )
    return entries


def test_an_interrupted_copy_is_completed(run: Run, tmp_path: Path) -> None:
    source, part = tmp_path / "cohort", tmp_path / ".medweave-x.part"
    for name in (*NAMES, "stored", "two\nlines"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(os.urandom(3 * WORTH_BYTES + 77 if name == "sub/b" else 5000))
        os.utime(source / name, (10**9, 10**9))
    (source / "sub" / "b").chmod(0o440)
    (source / "empty").mkdir()
    (source / "empty").chmod(0o500)
    (source / "sub" / "deep").chmod(0o500)
    here = part / "cohort"
    (here / "sub" / "deep").mkdir(parents=True)
    shutil.copy2(source / "a", here / "a")
    (here / "b").write_bytes((source / "b").read_bytes())  # complete, but without mode and time
    (here / "b").chmod(0o600)
    (here / "sub" / "b").write_bytes((source / "sub" / "b").read_bytes()[: 2 * WORTH_BYTES + 5])
    (here / "sub" / "b").chmod(0o400)
    (here / "sub" / "a").mkdir()  # of another kind
    (here / "stranger").write_text("x")
    (here / "sub" / "deep").chmod(0o500)
    (tmp_path / "store").write_bytes((source / "stored").read_bytes())
    (here / "stored").hardlink_to(tmp_path / "store")

    place = StagingPlace(str(part), str(tmp_path / "final")).after_cut()
    for _ in range(2):  # two locations with a shared file system both run it
        run(shell_commands.set_aside(place, "cohort", keeps=True))
    assert not here.exists()
    copy = Path(place.inside("cohort"))
    sent = listed(source)
    rest = find_missing_parts(sent, [path for path in sent.entries if path != "stored"], [listed(copy)])
    assert rest.partial_files == {"sub/b": 2 * WORTH_BYTES}
    for words in shell_commands.batch_commands(removal_steps(rest, str(copy))):
        run(words)
    for path, begins in rest.partial_files.items():
        end = pieces.file_end(str(source / path), str(copy / path), begins=begins, size=sent.entries[path].size)
        run(list(end.unpacking), run(list(end.packing)))
    for piece in pieces.some_files(str(source), rest.files, place.folder, num_bytes=sent.num_bytes):
        run(list(piece.unpacking), run(list(piece.packing)))
    for words in shell_commands.batch_commands(finishing_steps(sent, rest, str(copy))):
        run(words)
    assert content(copy) == content(source) | {"stored": content(copy)["stored"]}
    assert (tmp_path / "store").read_bytes() == (source / "stored").read_bytes()
    (copy / "sub" / "b").unlink()
    run(shell_commands.set_aside(place.after_cut(), "cohort", keeps=False))
    assert not copy.exists()


def test_a_file_with_another_hard_link_is_not_written_to(run: Run, tmp_path: Path) -> None:
    (tmp_path / "store").write_bytes(bytes(2 * WORTH_BYTES))
    (tmp_path / "copy").hardlink_to(tmp_path / "store")
    with pytest.raises(subprocess.CalledProcessError):
        run(shell_commands.write_from(str(tmp_path / "copy"), WORTH_BYTES), b"other")
    assert (tmp_path / "store").read_bytes() == bytes(2 * WORTH_BYTES)


@given(st.lists(st.text("ab'", min_size=1, max_size=9), max_size=30), st.integers(20, 400))
def test_names_are_grouped_by_the_size_limit_of_a_command(names: list[str], most_bytes: int) -> None:
    several = list(pieces.some_files("/data/cohort", names, "/part", num_bytes=0, most_bytes=most_bytes))
    sent_names = [name for piece in several for name in piece.packing[piece.packing.index("--") + 1 :]]
    assert sent_names == [f"cohort/{name}" for name in names]
