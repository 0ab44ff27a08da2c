"""Images of the roles, built by the testbed's own command, and a look into them."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

from support.cwl_files import ROOT
from support.testbed import BASE_IMAGE, Outcome, call

from medweave_testbed.images import buildah_words  # isort: skip  # support.testbed makes it importable
from medweave_testbed.layout import layout_of  # isort: skip


def name_of(role: str) -> str:
    return f"localhost/medweave-{role}:1"


def build(role: str, name: str = "") -> str:
    """Build one role's recipe on the testbed's base and load it into the cluster; return its name, by default the role's.

    The worker environment stays out of `train` and `compss`: on the testbed it comes through a volume claim.
    """
    without = ["--build-arg", "WITH_TORCH=0"] if role in {"train", "compss"} else []
    recipe = str(ROOT / "deployments" / "images" / role / "Containerfile")
    name = name or name_of(role)
    words = ["image", name, "--file", recipe, "--build-arg", f"BASE_IMAGE={BASE_IMAGE}", *without]
    built = call(*words, timeout_s=1800)
    assert built.returncode == 0, built.stderr
    return name


def buildah(*words: str) -> Outcome:
    """Run the testbed's buildah."""
    line = buildah_words(layout_of(os.environ), *words)
    return subprocess.run(line, capture_output=True, text=True, timeout=300, check=False)


def configuration(image: str) -> dict[str, Any]:
    """Return an image's configuration: user, labels, environment."""
    inspected = buildah("inspect", "--type", "image", image)
    assert inspected.returncode == 0, inspected.stderr
    config = json.loads(inspected.stdout)["OCIv1"]["config"]
    assert isinstance(config, dict)
    return config


def inside(image: str, script: str, user: str = "root") -> str:
    """Run a shell script in a container of an image; return its standard output."""
    container = buildah("from", "--pull-never", image).stdout.strip()
    try:
        ended = buildah("run", "--isolation", "chroot", "--user", user, container, "--", "sh", "-ec", script)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout
    finally:
        buildah("rm", container)


def bytes_of_files(image: str) -> int:
    """Return the size of all files of an image, bytes."""
    return int(inside(image, "du --summarize --bytes --one-file-system / | cut -f 1"))
