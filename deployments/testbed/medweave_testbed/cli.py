"""Reads the command line and the environment, and calls the command."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from . import catalogue, down, images, machine, status, volumes
from .commands import Cancelled, Commands
from .daemons import Daemons
from .errors import TestbedError
from .layout import ROOT, Layout, layout_of
from .part import Part, Testbed
from .up import up
from .walls import HPC, Walls, laptop_command


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    top = argparse.ArgumentParser(prog="testbed.py", description="A real Slurm, Kubernetes and laptop on one machine.")
    commands = top.add_subparsers(dest="command", required=True)
    commands.add_parser("up", help="start the parts that are down; print a line and the seconds for each part")
    prepare = commands.add_parser("prepare", help="make what takes minutes the first time, and start nothing")
    prepare.add_argument(
        "parts", nargs="*", metavar="PART", help="such as binaries or packages (all that take minutes)"
    )
    end = commands.add_parser("down", help="end everything, but leave programs, environment and images for the next up")
    end.add_argument("--purge", action="store_true", help="remove these too, and the users that were made")
    status = commands.add_parser("status", help="which part is up, which is not, and why")
    status.add_argument("--json", action="store_true", help="for machines")
    image = commands.add_parser("image", help="build a container image and give it to the cluster")
    image.add_argument("name", help="localhost/NAME:TAG")
    image.add_argument("--file", type=Path, required=True, help="the Containerfile")
    image.add_argument("--context", type=Path, default=ROOT, help="the build's folder (the checkout)")
    image.add_argument("--build-arg", action="append", default=[], metavar="NAME=VALUE", help="for ARG NAME")
    volume = commands.add_parser("volume", help="make a folder readable for pods of both tenants by a claim")
    volume.add_argument("name", help="of the claim")
    volume.add_argument("folder", type=Path)
    for name, what in (("laptop", "laptop's user, behind its walls"), ("hpc", "HPC user on the login node")):
        inside = commands.add_parser(name, help=f"run a program as the {what}")
        inside.add_argument("words", nargs=argparse.REMAINDER, metavar="-- PROGRAM ...")
    return top


def existing_kubeconfig(layout: Layout, environment: Mapping[str, str]) -> Path | None:
    """Return the user's own cluster: as the environment says, else as the last `up` noted.

    Raises:
        TestbedError: the environment contradicts itself.
    """
    mode = environment.get("MEDWEAVE_TESTBED_KUBERNETES", "")
    note = layout.run / "existing-cluster.json"
    if mode == "":
        return Path(json.loads(note.read_text(encoding="utf-8"))["kubeconfig"]) if note.exists() else None
    config = Path(environment.get("KUBECONFIG", ""))
    if mode == "existing" and config.is_file():
        return config.resolve()
    raise TestbedError(
        "it is not clear which cluster is meant.",
        seen=f"MEDWEAVE_TESTBED_KUBERNETES={mode!r}, KUBECONFIG={environment.get('KUBECONFIG', '')!r}",
        expected="MEDWEAVE_TESTBED_KUBERNETES=existing and in KUBECONFIG one file, the administrator's; or neither",
        do="set both, or unset MEDWEAVE_TESTBED_KUBERNETES for a cluster of the testbed's own",
    )


def make_testbed(environment: Mapping[str, str]) -> Testbed:
    """Return the testbed that the environment names, with fresh tools."""
    layout, commands = layout_of(environment), Commands()
    walls = Walls(layout, commands)
    return Testbed(
        layout=layout, commands=commands, walls=walls, daemons=Daemons(layout, commands, walls),
        environment=environment, existing_kubeconfig=existing_kubeconfig(layout, environment),
    )  # fmt: skip


@contextmanager
def alone(layout: Layout) -> Iterator[None]:
    """Only one `up` or `down` at a time; the lock goes with the process, however that ends.

    The file of the lock is also the mark of a testbed's folder, from which `down` removes.

    Raises:
        TestbedError: another command is running, or the folder has another owner.
    """
    mark = layout.folder / ".lock"
    if layout.folder.is_dir() and not mark.exists() and any(layout.folder.iterdir()):
        raise TestbedError(
            "the folder of the testbed holds something else.",
            seen=f"{layout.folder}, without {mark.name}",
            expected="an empty folder, none, or one that `make testbed` has created",
            do="name another folder in MEDWEAVE_TESTBED",
        )
    layout.folder.mkdir(parents=True, exist_ok=True)
    with mark.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TestbedError(
                "another command works on this testbed.",
                seen=f"{mark} is locked",
                expected="one `up` or `down` at a time",
                do="wait until it has ended, then run again",
            ) from None
        yield


def bring_up(testbed: Testbed, parts: Sequence[Part], *, state: str) -> int:
    """Run `up` or `prepare`; return the exit code."""
    catalogue.check_machine(testbed)
    with alone(testbed.layout):
        testbed.layout.run.mkdir(parents=True, exist_ok=True)
        note = testbed.layout.run / "existing-cluster.json"
        if testbed.existing_kubeconfig is not None:
            note.write_text(json.dumps({"kubeconfig": str(testbed.existing_kubeconfig)}), encoding="utf-8")
        return up(parts, testbed, lambda begun: down.end_begun(begun, make_testbed(testbed.environment)), state=state)


def take_down(testbed: Testbed, *, purge: bool) -> int:
    """Run `down`; return the exit code."""
    with alone(testbed.layout):
        down.down(testbed, purge=purge)
    remaining = (
        "everything is removed" if purge else f"programs, environment and images stay in {testbed.layout.folder}"
    )
    print(f"testbed: down; {remaining}")
    return 0


def show_status(testbed: Testbed, parts: Sequence[Part], *, as_json: bool) -> int:
    """Run `status`; return exit code 1 if a part is down."""
    states = status.states_of(parts, testbed)
    folder = str(testbed.layout.folder)
    print(status.as_json(states, folder) if as_json else status.table(states, folder))
    return int(any(state.reason is not None for state in states))


def build_arguments(pairs: Sequence[str]) -> dict[str, str]:
    """NAME=VALUE words as a mapping."""
    arguments = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    if len(arguments) == len(pairs):
        return arguments
    raise TestbedError(
        "a --build-arg is not understood.",
        seen=" ".join(pairs),
        expected="NAME=VALUE, each name once",
        do="write for example --build-arg WITH_TORCH=0",
    )


def inside_words(testbed: Testbed, site: str, words: Sequence[str]) -> list[str]:
    """Return the command line that runs a program as a site's user, with that site's view of the machine."""
    layout = testbed.layout
    words = [word for index, word in enumerate(words) if index or word != "--"] or ["bash"]
    if site == "laptop":
        user, setup = layout.laptop_user, f". '{layout.laptop}/environment.sh'; cd"
    else:
        user, setup = layout.hpc_user, f"export HOME='{layout.hpc}/home' PATH='{layout.environment}/bin':\"$PATH\"; cd"
    identity = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "--", "env", f"USER={user}"]
    inner = [*identity, "/bin/sh", "-c", f'{setup} && exec "$@"', "sh", *words]
    return laptop_command(layout, inner) if site == "laptop" else [*testbed.walls.inside(HPC), *inner]


def run(arguments: argparse.Namespace) -> int:
    """Run the command that the arguments name."""
    machine.check_rights(os.geteuid())
    testbed = make_testbed(dict(os.environ))
    parts = catalogue.parts_of(testbed.layout, existing_cluster=testbed.existing_kubeconfig is not None)
    command = arguments.command
    if command == "up":
        return bring_up(testbed, parts, state="up")
    if command == "prepare":
        return bring_up(testbed, catalogue.slow_parts(parts, arguments.parts), state="prepared")
    if command == "down":
        return take_down(testbed, purge=arguments.purge)
    if command == "status":
        return show_status(testbed, parts, as_json=arguments.json)
    if testbed.walls.base is None and command != "image":
        raise TestbedError(
            "it is not up.", seen="no namespaces", expected="a testbed that is up", do="run `make testbed`"
        )
    if command == "image":
        build_args = build_arguments(arguments.build_arg)
        images.build(testbed, arguments.name, arguments.file.resolve(), arguments.context.resolve(), build_args)
    elif command == "volume":
        volumes.add(testbed, arguments.name, arguments.folder)
    else:
        words = inside_words(testbed, command, arguments.words)
        os.execvp(words[0], words)
    return 0


def main(words: Sequence[str]) -> int:
    """Entry point; returns the exit code."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return run(parser().parse_args(words))
    except TestbedError as error:
        print(error, file=sys.stderr)
        return 1
    except (KeyboardInterrupt, Cancelled):
        print("testbed: interrupted", file=sys.stderr)
        return 130
