"""The tree digest differs between different folders."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from medweave_connectors.transfer.manifest import manifest, tree_digest

NAMES = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=20).filter(
    lambda name: name not in {".", ".."}
)


def shell_digest(path: Path) -> str | None:
    words = " ".join(tree_digest.command(str(path)))
    return tree_digest.parse_digest(
        subprocess.run(["sh", "-c", words], capture_output=True, text=True, check=True).stdout
    )


def expected_digest(path: Path) -> str | None:
    words = " ".join(manifest.command(str(path)))
    listing = subprocess.run(["sh", "-c", words], capture_output=True, text=True, check=True).stdout
    return tree_digest.expected_digest(manifest.parse(listing))


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    files=st.dictionaries(NAMES, st.binary(max_size=20), min_size=1, max_size=4),
    folders=st.sets(NAMES, max_size=2),
    data=st.data(),
)
def test_a_tree_digest_identifies_the_entries_of_a_folder(
    files: dict[str, bytes], folders: set[str], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name, "root")
        root.mkdir()
        for folder in folders - files.keys():
            (root / folder).mkdir()
        for file, content in files.items():
            (root / file).write_bytes(content)
        first = shell_digest(root)
        odd = any(sign in path for path in (*files, *folders) for sign in "\\\n\r")
        assert expected_digest(root) == (None if odd else first)
        file = root / data.draw(st.sampled_from(sorted(files)))
        what = data.draw(st.sampled_from(["content", "gone", "folder", "renamed", "one more"]))
        if what == "content":
            file.write_bytes(file.read_bytes() + b"x")
        elif what in ("gone", "folder"):
            file.unlink()
        elif what == "renamed":
            file.rename(root / (file.name[:200] + "other"))
        else:
            (root / (file.name[:200] + "more")).mkdir(exist_ok=False)
        if what == "folder":
            file.mkdir()
        assert shell_digest(root) != first
