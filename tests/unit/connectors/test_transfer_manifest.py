"""The listing that copies are compared by, made by a real shell on real files."""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from medweave_connectors.transfer import manifest
from medweave_connectors.transfer.manifest import Manifest

NAMES = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=40).filter(
    lambda name: name not in {".", ".."}
)


def listed(path: Path) -> Manifest:
    words = " ".join(manifest.command(str(path)))
    done = subprocess.run(["sh", "-c", words], capture_output=True, text=True, check=True)
    return manifest.parse(done.stdout)


@settings(max_examples=40, deadline=None)
@given(files=st.dictionaries(NAMES, st.binary(max_size=100), max_size=5))
def test_every_file_is_listed_whatever_its_name(files: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as name:
        below = Path(name, "a folder's name", "deeper")
        below.mkdir(parents=True)
        for file, content in files.items():
            (below / file).write_bytes(content)
        seen = listed(below.parent)
    assert sorted(seen.sha256.values()) == sorted(hashlib.sha256(content).hexdigest() for content in files.values())
    assert seen.num_bytes == sum(map(len, files.values()))


def test_a_file_and_its_copy_under_another_name_are_equal(tmp_path: Path) -> None:
    (tmp_path / "-one").write_bytes(b"12345")
    (tmp_path / "two 2").write_bytes(b"12345")
    one, two = listed(tmp_path / "-one"), listed(tmp_path / "two 2")
    assert one == two
    assert (one.num_bytes, list(one.sha256)) == (5, ["."])


def test_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "x").write_bytes(b"abc")
    (tmp_path / "sent").mkdir()
    (tmp_path / "sent" / "x").symlink_to(tmp_path / "real" / "x")
    assert listed(tmp_path / "sent") == listed(tmp_path / "real")


def test_the_difference_counts_and_names_nothing() -> None:
    sent = Manifest({"patient-a": "0" * 64, "patient-b": "1" * 64, "c": "2" * 64}, 3)
    assert sent.difference(sent) == ""
    arrived = Manifest({"patient-a": "0" * 64, "c": "3" * 64, "d": "4" * 64}, 3)
    told = sent.difference(arrived)
    assert told == "1 of 3 files missing, 1 of 3 files with other content, 1 more than were sent"
    assert "patient" not in told


@pytest.mark.parametrize("text", ["", f"{'0' * 64}  x\n", "no digest  x\nbytes 3\n"])
def test_a_cut_listing_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="listing"):
        manifest.parse(text)
