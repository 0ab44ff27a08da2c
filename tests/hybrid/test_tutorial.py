"""The tutorial's commands, executed as they are on the page: root's part as root, the rest as the testbed laptop's user."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

import pytest

from support import images
from support.cwl_files import ROOT
from support.shown_output import Block, blocks_of, first_missing
from support.testbed import BASE_IMAGE, COMMAND, Sites

PAGE = ROOT / "docs" / "tutorials" / "from-your-laptop-to-your-cluster.md"
BLOCK_LIMIT_S = 400


def blocks() -> list[Block]:
    """Return the blocks that the page executes, in order; those in lists are for the reader's own cluster."""
    return blocks_of(PAGE.read_text())


@pytest.fixture
def checkout(testbed: Sites) -> Iterator[str]:
    """Yield the folder of the laptop's copy of the checkout, made as on the page."""
    (for_root,) = [block for block in blocks() if block.language == "sh"]
    up, image, copy, shell = for_root.text.splitlines()
    # The fixture `testbed` replaces the first line, the tests' own helper the second, `Sites.laptop` the last.
    assert up == "make testbed"
    recipe = f"--file deployments/images/segment/Containerfile --build-arg BASE_IMAGE={BASE_IMAGE}"
    assert image == f"{COMMAND.relative_to(ROOT)} image {images.name_of('segment')} {recipe}"
    assert shell == f"{COMMAND.relative_to(ROOT)} laptop"
    if not (testbed.layout.run / "existing-cluster.json").exists():  # into a cluster of the user's, the user brings it
        images.build("segment")
    testbed.laptop("rm", "-rf", "medweave")
    line = ["bash", "-euo", "pipefail", "-c", copy]
    copied = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert copied.returncode == 0, copied.stderr
    yield "medweave"
    testbed.laptop("rm", "-rf", "medweave")


def test_the_tutorial_runs_as_written(testbed: Sites, checkout: str) -> None:
    printed = ""
    for number, block in enumerate(block for block in blocks() if block.language != "sh"):
        if block.language == "yaml":
            name = block.text.splitlines()[0].removeprefix("# ")
            written = testbed.laptop("tee", f"{checkout}/{name}", text=block.text)
            assert written.returncode == 0, written.stderr
            continue
        script = f"set -euo pipefail\nexport OMP_WAIT_POLICY=passive\ncd ~/{checkout}\n{block.text}"
        ended = testbed.laptop("bash", "-c", f"exec 2>&1\n{script}", timeout_s=BLOCK_LIMIT_S)
        assert ended.returncode == 0, f"block {number}:\n{block.text}\n{ended.stdout[-4000:]}"
        printed += ended.stdout
        missing = first_missing(block.shown, ended.stdout)
        assert missing is None, f"the page shows {missing!r}:\n{block.text}\n{ended.stdout[-4000:]}"
    own = set(re.findall(r"\bpods-[0-9a-f]{6}\b", printed))  # others have releases of such names, too
    assert own
    assert not own.intersection(testbed.laptop("helm", "list", "--short").stdout.split())
