"""Container images without a registry: a base of this machine's own Debian release, a pause image, and role images on demand.

buildah builds them below `cache/`, in a mount namespace of its own, so that a build that was killed leaves no mount.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from . import binaries, machine
from .commands import Commands
from .errors import TestbedError
from .layout import ROOT, Layout
from .node import PAUSE_IMAGE, ctr_words
from .part import Part, Testbed

BASE_IMAGE = "localhost/medweave-base:1"
# What role images need and no registry can give: Python as the worker environment has it, Java and ssh for COMPSs.
BASE_PACKAGES = (
    "python3", "python3-venv", "default-jre-headless", "openssh-server", "openssh-client", "procps", "uuid-runtime",
    "util-linux", "tar", "ca-certificates", "libgomp1", "iproute2",
)  # fmt: skip
PAUSE_SOURCE = ROOT / "deployments" / "testbed" / "images" / "pause.c"


def buildah_words(layout: Layout, *words: str | Path) -> list[str]:
    """A buildah command line with storage of the testbed's own."""
    storage = layout.cache / "buildah"
    options = ["--root", str(storage / "root"), "--runroot", str(storage / "run"), "--storage-driver", "overlay"]
    return ["unshare", "--mount", "buildah", *options, *map(str, words)]


def build_words(layout: Layout, name: str, file: Path, context: Path, arguments: Mapping[str, str]) -> list[str]:
    """The command line that builds a Containerfile; never asks a registry."""
    given = [word for key, value in arguments.items() for word in ("--build-arg", f"{key}={value}")]
    options = ["--isolation", "chroot", "--pull-never", "--layers", "--file", str(file), "--tag", name]
    return buildah_words(layout, "build", *options, *given, context)


def archive(layout: Layout, name: str) -> Path:
    """Where an image is kept for the next start of containerd."""
    return layout.cache / "images" / (name.replace("/", "_").replace(":", "_") + ".tar")


def archives(layout: Layout) -> dict[str, Path]:
    """All kept images by name."""
    folder = layout.cache / "images"
    return {file.with_suffix(".name").read_text(encoding="utf-8"): file for file in sorted(folder.glob("*.tar"))}


def mirror_of(targets: str, codename: str) -> str | None:
    """The mirror that this machine's apt uses for a release, from `apt-get indextargets`, "URL CODENAME COMPONENT" a line."""
    rows = [line.split() for line in targets.splitlines()]
    return next((row[0] for row in rows if len(row) == 3 and row[1:] == [codename, "main"]), None)


def keep(layout: Layout, commands: Commands, name: str) -> None:
    """Writes an image of buildah's storage to its archive."""
    file = archive(layout, name)
    file.parent.mkdir(parents=True, exist_ok=True)
    aside = file.with_suffix(".new")
    aside.unlink(missing_ok=True)
    commands.run(buildah_words(layout, "push", "--quiet", name, f"docker-archive:{aside}:{name}"))
    file.with_suffix(".name").write_text(name, encoding="utf-8")
    aside.replace(file)


def load(layout: Layout, commands: Commands, name: str) -> None:
    """Gives a kept image to the testbed's containerd."""
    commands.run(ctr_words(layout, "images", "import", str(archive(layout, name))))


def from_folder(layout: Layout, commands: Commands, name: str, folder: Path, config: Sequence[str]) -> None:
    """Makes an image of a folder's content."""
    container = commands.run(buildah_words(layout, "from", "scratch")).strip()
    try:
        commands.run(buildah_words(layout, "add", "--quiet", container, folder, "/"))
        commands.run(buildah_words(layout, "config", *config, container))
        commands.run(buildah_words(layout, "commit", "--quiet", container, name))
    finally:
        commands.outcome(buildah_words(layout, "rm", container))
    keep(layout, commands, name)


def build(testbed: Testbed, name: str, file: Path, context: Path, arguments: Mapping[str, str]) -> None:
    """Builds an image from a Containerfile, keeps it, and gives it to the testbed's containerd if that runs.

    Raises:
        TestbedError: the name cannot be looked up without a registry, or the build failed.
    """
    if not name.startswith("localhost/") or ":" not in name:
        raise TestbedError(
            "the image has a name that a registry would be asked for.",
            seen=name,
            expected="localhost/NAME:TAG",
            do=f"call it localhost/{name.split('/')[-1].split(':')[0]}:1",
        )
    layout = testbed.layout
    log = layout.log / f"image-{archive(layout, name).stem}.log"
    testbed.commands.run(build_words(layout, name, file, context, arguments), log=log, timeout_s=3600)
    keep(layout, testbed.commands, name)
    if testbed.daemons.pid("containerd") is not None:
        load(layout, testbed.commands, name)


def recipe() -> str:
    """What decides how the base and pause images come out."""
    return binaries.fingerprint([PAUSE_SOURCE], " ".join(BASE_PACKAGES) + str(_release()))


def _release() -> str:
    fields = machine.system_of(Path("/etc/os-release").read_text(encoding="utf-8"))
    return fields.get("VERSION_CODENAME", "")


def base_trouble(testbed: Testbed) -> str | None:
    """Why the base images have to be made."""
    made = testbed.layout.cache / "images" / ".made"
    if not made.exists():
        return "they were not made yet"
    return None if made.read_text(encoding="utf-8") == recipe() else "their recipe changed"


def start_base(testbed: Testbed) -> None:
    """Makes the base image by debootstrap from the machine's own mirror, and the pause image."""
    layout, commands = testbed.layout, testbed.commands
    work = layout.cache / "base"
    commands.run(["rm", "-rf", work])
    (work / "pause").mkdir(parents=True)
    commands.run(["gcc", "-Os", "-static", "-o", work / "pause" / "pause", PAUSE_SOURCE])
    from_folder(layout, commands, PAUSE_IMAGE, work / "pause", ["--entrypoint", '["/pause"]', "--user", "65535:65535"])
    _bootstrap(layout, commands, work / "root")
    from_folder(layout, commands, BASE_IMAGE, work / "root", ["--cmd", "/bin/bash", "--env", "LANG=C.UTF-8"])
    commands.run(["rm", "-rf", work])
    (layout.cache / "images" / ".made").write_text(recipe(), encoding="utf-8")


def _bootstrap(layout: Layout, commands: Commands, root: Path) -> None:
    """Debian's own installer of minimal systems; the release is this machine's, so its Python fits the worker environment."""
    release = _release()
    words = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(CODENAME) $(COMPONENT)", "Created-By: Packages"]
    mirror = mirror_of(commands.run(words), release)
    include = ",".join(BASE_PACKAGES)
    target = [release, str(root), *([mirror] if mirror else [])]
    bootstrap = ["debootstrap", "--variant=minbase", f"--include={include}", *target]
    commands.run(["unshare", "--mount", *bootstrap], log=layout.log / "base-image.log")
    unneeded = " ".join(
        shlex.quote(f"{root}/{path}") for path in ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc")
    )
    commands.run(["/bin/sh", "-c", f"rm -rf {unneeded}; mkdir -p {shlex.quote(str(root))}/var/lib/apt/lists/partial"])


def images_trouble(testbed: Testbed) -> str | None:
    """Which kept image containerd lacks."""
    code, said, errors = testbed.commands.outcome(ctr_words(testbed.layout, "images", "list", "--quiet"), timeout_s=10)
    if code != 0:
        return " ".join(errors.split())[:200]
    lacking = [name for name in archives(testbed.layout) if name not in said.split()]
    return f"containerd lacks {', '.join(lacking)}" if lacking else None


def start_images(testbed: Testbed) -> None:
    """Gives containerd the kept images that it lacks."""
    have = testbed.commands.run(ctr_words(testbed.layout, "images", "list", "--quiet")).split()
    for name in archives(testbed.layout):
        if name not in have:
            load(testbed.layout, testbed.commands, name)


def parts() -> list[Part]:
    """The images' parts."""
    slow = "debootstrap of the base image"
    return [
        Part(name="base-image", needs=("packages",), trouble=base_trouble, start=start_base, slow=slow),
        Part(name="images", needs=("containerd", "base-image"), trouble=images_trouble, start=start_images),
    ]
