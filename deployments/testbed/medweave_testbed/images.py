"""Container images without a registry: a base of this machine's own Debian release, a pause image, and role images on demand.

buildah builds them below `cache/`, in a separate mount namespace, so that a killed build leaves no mount.
"""

from __future__ import annotations

import fcntl
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from . import binaries, machine, package_index
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
    """Return a buildah command line with storage of the testbed's own."""
    storage = layout.cache / "buildah"
    options = ["--root", str(storage / "root"), "--runroot", str(storage / "run"), "--storage-driver", "overlay"]
    return ["unshare", "--mount", "buildah", *options, *map(str, words)]


def build_words(
    layout: Layout, name: str, file: Path, context: Path, arguments: Mapping[str, str], secrets: Sequence[str] = ()
) -> list[str]:
    """Return the command line that builds a Containerfile; never asks a registry for an image.

    Args:
        secrets: options that give the build files which do not stay in the image.
    """
    build_args = [word for key, value in arguments.items() for word in ("--build-arg", f"{key}={value}")]
    options = ["--isolation", "chroot", "--pull-never", "--layers", "--file", str(file), "--tag", name]
    return buildah_words(layout, "build", *options, *secrets, *build_args, context)


def built(layout: Layout, commands: Commands) -> dict[str, str]:
    """Return the ids of all images in buildah's storage by name."""
    words = ["images", "--no-trunc", "--format", "{{.Name}}:{{.Tag}} {{.ID}}"]
    rows = [line.split() for line in commands.run(buildah_words(layout, *words)).splitlines()]
    return {row[0]: row[1] for row in rows if len(row) == 2 and row[0].startswith("localhost/")}


def note_of(layout: Layout, name: str) -> Path:
    """Return the file that records which image of that name was imported into containerd."""
    return layout.cache / "images" / name.replace("/", "_").replace(":", "_")


def mirror_of(targets: str, codename: str) -> str | None:
    """The mirror that this machine's apt uses for a release, from `apt-get indextargets`, "URL CODENAME COMPONENT" a line."""
    rows = [line.split() for line in targets.splitlines()]
    return next((row[0] for row in rows if len(row) == 3 and row[1:] == [codename, "main"]), None)


def load(layout: Layout, commands: Commands, name: str) -> None:
    """Give an image of buildah's storage to the testbed's containerd; one at a time, for the archive has the image's name."""
    note = note_of(layout, name)
    note.parent.mkdir(parents=True, exist_ok=True)
    archive = note.with_name(note.name + ".tar")
    with archive.with_suffix(".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            archive.unlink(missing_ok=True)
            commands.run(buildah_words(layout, "push", "--quiet", name, f"docker-archive:{archive}:{name}"))
            commands.run(ctr_words(layout, "images", "import", str(archive)))
        finally:
            archive.unlink(missing_ok=True)
        note.write_text(built(layout, commands)[name], encoding="utf-8")


def lacking(layout: Layout, commands: Commands) -> list[str]:
    """Return the names of built images that containerd has not, or has of an earlier build."""
    have = commands.run(ctr_words(layout, "images", "list", "--quiet")).split()

    def current(name: str, identity: str) -> bool:
        note = note_of(layout, name)
        return name in have and note.exists() and note.read_text(encoding="utf-8") == identity

    return [name for name, identity in built(layout, commands).items() if not current(name, identity)]


def from_folder(layout: Layout, commands: Commands, name: str, folder: Path, config: Sequence[str]) -> None:
    """Create an image of a folder's content."""
    container = commands.run(buildah_words(layout, "from", "scratch")).strip()
    try:
        commands.run(buildah_words(layout, "add", "--quiet", container, folder, "/"))
        commands.run(buildah_words(layout, "config", *config, container))
        commands.run(buildah_words(layout, "commit", "--quiet", container, name))
    finally:
        commands.outcome(buildah_words(layout, "rm", container))


def build(testbed: Testbed, name: str, file: Path, context: Path, arguments: Mapping[str, str]) -> None:
    """Build an image from a Containerfile and give it to the testbed's containerd.

    Raises:
        TestbedError: the name cannot be looked up without a registry, the testbed is not up, or the build failed.
    """
    if not name.startswith("localhost/") or ":" not in name:
        raise TestbedError(
            "the image has a name that would be pulled from a registry.",
            seen=name,
            expected="localhost/NAME:TAG",
            do=f"call it localhost/{name.split('/')[-1].split(':')[0]}:1",
        )
    layout = testbed.layout
    log = layout.log / f"image-{note_of(layout, name).name}.log"
    secrets = package_index.secrets(layout, testbed.commands, testbed.environment)
    testbed.commands.run(build_words(layout, name, file, context, arguments, secrets), log=log, timeout_s=3600)
    load(layout, testbed.commands, name)


def forget_old(testbed: Testbed) -> None:
    """Remove what earlier builds left in buildah's storage: half a gigabyte for every change of the steps. Not during builds."""
    if (testbed.layout.cache / "buildah" / "root").exists():
        testbed.commands.outcome(buildah_words(testbed.layout, "rmi", "--prune"))


def recipe() -> str:
    """Return what decides how the base and pause images come out."""
    return binaries.fingerprint([PAUSE_SOURCE], " ".join(BASE_PACKAGES) + str(_release()))


def _release() -> str:
    fields = machine.system_of(Path("/etc/os-release").read_text(encoding="utf-8"))
    return fields.get("VERSION_CODENAME", "")


def base_trouble(testbed: Testbed) -> str | None:
    """Return why the base images have to be made."""
    made = testbed.layout.cache / "buildah" / ".made"
    if not made.exists():
        return "they were not made yet"
    return None if made.read_text(encoding="utf-8") == recipe() else "their recipe changed"


def start_base(testbed: Testbed) -> None:
    """Create the base image by debootstrap from the machine's own mirror, and the pause image."""
    layout, commands = testbed.layout, testbed.commands
    work = layout.cache / "base"
    commands.run(["rm", "-rf", work])
    (work / "pause").mkdir(parents=True)
    commands.run(["gcc", "-Os", "-static", "-o", work / "pause" / "pause", PAUSE_SOURCE])
    from_folder(layout, commands, PAUSE_IMAGE, work / "pause", ["--entrypoint", '["/pause"]', "--user", "65535:65535"])
    _bootstrap(layout, commands, work / "root")
    from_folder(layout, commands, BASE_IMAGE, work / "root", ["--cmd", "/bin/bash", "--env", "LANG=C.UTF-8"])
    commands.run(["rm", "-rf", work])
    (layout.cache / "buildah" / ".made").write_text(recipe(), encoding="utf-8")


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
    """Which built image containerd lacks."""
    names = lacking(testbed.layout, testbed.commands)
    return f"containerd lacks {', '.join(names)}" if names else None


def start_images(testbed: Testbed) -> None:
    """Give containerd the images that it lacks; it keeps them over a `down`."""
    for name in lacking(testbed.layout, testbed.commands):
        load(testbed.layout, testbed.commands, name)


def parts() -> list[Part]:
    """Return the images' parts."""
    slow = "debootstrap of the base image"
    return [
        Part(name="base-image", needs=("packages",), trouble=base_trouble, start=start_base, slow=slow),
        Part(name="images", needs=("containerd", "base-image"), trouble=images_trouble, start=start_images),
    ]
