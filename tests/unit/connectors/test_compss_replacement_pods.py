"""Files that the replacement of a lost pod gets, between two folders that represent those of two pods."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest
from streamflow.core.deployment import ExecutionLocation

from medweave_connectors.sites.compss import replacement_pods
from medweave_connectors.sites.compss.replacement_pods import copy_folder, copy_missing_files
from medweave_connectors.sites.pods.api.errors import PodLost
from medweave_connectors.sites.pods.api.namespace_client import ApiServerError
from medweave_connectors.sites.pods.objects.pod import Pod, parse_pod
from medweave_connectors.transfer.streams.local_programs import LocalReader, LocalWriter
from support.api_server import pod_document

ROOT = "/pod-work"


class Pods:
    """Replaces a connector: ROOT is a separate folder for every place, unless two places share one."""

    deployment_name, transferBufferSize = "pods", 2**16

    def __init__(self, folders: dict[str, Path]) -> None:
        self.folders, self.forgotten = folders, list[str]()

    def _there(self, words: Sequence[str], place: ExecutionLocation) -> list[str]:
        return [word.replace(ROOT, str(self.folders[place.name])) for word in words]

    async def alone(self, place: ExecutionLocation, words: Sequence[str]) -> tuple[str, int]:
        done = subprocess.run(["sh", "-c", *self._there(words, place)], capture_output=True, text=True, check=False)
        return done.stdout + done.stderr, done.returncode

    async def get_stream_reader(self, words: Sequence[str], place: ExecutionLocation) -> Any:
        return LocalReader(self._there(words, place), "tar")

    async def get_stream_writer(self, words: Sequence[str], place: ExecutionLocation) -> Any:
        return LocalWriter(self._there(words, place), "tar")

    async def while_reachable(self, places: Sequence[str], work: Coroutine[Any, Any, None]) -> None:
        await work

    async def close_shells(self, place: str) -> None:
        self.forgotten.append(place)


def place(number: int) -> ExecutionLocation:
    return ExecutionLocation(name=f"w-{number}:worker", deployment="pods")


@pytest.fixture
def pods(tmp_path: Path) -> Pods:
    """Three pods; the first has a step's input and its output folder with a checkpoint, the second the input, the third nothing."""
    folders = {f"w-{number}:worker": tmp_path / str(number) for number in range(3)}
    for number in (0, 1):
        (tmp_path / str(number) / "in").mkdir(parents=True)
        (tmp_path / str(number) / "in" / "a case.npy").write_bytes(os.urandom(300_000))
        (tmp_path / str(number) / "out" / "saved").mkdir(parents=True)
    (tmp_path / "0" / "in" / "same").symlink_to("a case.npy")
    (tmp_path / "0" / "out" / "saved" / "checkpoint.pt").write_bytes(os.urandom(70_000))
    (tmp_path / "1" / "out" / "saved" / "older.pt").write_text("of an attempt before")
    return Pods(folders)


def tree(folder: Path) -> dict[str, bytes | str]:
    found: dict[str, bytes | str] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            found[str(path.relative_to(folder))] = str(path.readlink())
        elif path.is_file():
            found[str(path.relative_to(folder))] = path.read_bytes()
    return found


def test_a_new_pod_gets_everything_and_the_others_the_checkpoints(pods: Pods, tmp_path: Path) -> None:
    places, second = [place(number) for number in range(3)], tree(tmp_path / "1" / "in")
    asyncio.run(copy_missing_files(pods, places, {"w-2:"}, places, f"{ROOT}/out", "saved"))
    first = tree(tmp_path / "0")
    assert len(first) == 3
    assert tree(tmp_path / "2") == first
    assert tree(tmp_path / "1" / "in") == second, "its files are unchanged"
    assert tree(tmp_path / "1" / "out") == {"saved/checkpoint.pt": first["out/saved/checkpoint.pt"]}
    assert pods.forgotten == ["w-2:worker"]


def test_a_step_in_one_place_gives_its_checkpoints_to_nobody(pods: Pods, tmp_path: Path) -> None:
    before = tree(tmp_path / "1")
    places = [place(number) for number in range(3)]
    asyncio.run(copy_missing_files(pods, places, {"w-2:"}, [place(0)], f"{ROOT}/out", "saved"))
    assert tree(tmp_path / "1") == before
    assert tree(tmp_path / "2") == tree(tmp_path / "0")


def test_where_the_first_pod_is_new_the_next_one_gives(pods: Pods, tmp_path: Path) -> None:
    places, second = [place(1), place(0)], tree(tmp_path / "0")
    for path in sorted((tmp_path / "1").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    asyncio.run(copy_missing_files(pods, places, {"w-1:"}, places, f"{ROOT}/out", "saved"))
    assert tree(tmp_path / "1") == tree(tmp_path / "0") == second


def test_pods_that_are_all_new_are_an_error(pods: Pods) -> None:
    with pytest.raises(PodLost, match="all its pods were replaced"):
        asyncio.run(copy_missing_files(pods, [place(0)], {"w-0:"}, [place(0)], f"{ROOT}/out", "saved"))


def test_a_folder_that_both_see_is_left_as_it_is(pods: Pods, tmp_path: Path) -> None:
    before = tree(tmp_path / "0")
    pods.folders["w-1:worker"] = pods.folders["w-0:worker"]
    asyncio.run(copy_folder(pods, place(0), place(1), ROOT))
    asyncio.run(copy_folder(pods, place(0), place(1), f"{ROOT}/out", ["saved"]))
    assert tree(tmp_path / "0") == before


def test_a_failed_copy_is_an_error(pods: Pods, tmp_path: Path) -> None:
    (tmp_path / "2").write_text("no folder")
    with pytest.raises(PodLost, match="w-2:worker"):
        asyncio.run(copy_folder(pods, place(0), place(2), ROOT))


def pod(name: str, *, ready: bool = True) -> Pod:
    document = pod_document(name)
    if not ready:
        document["status"] = {"phase": "Pending"}
    return parse_pod(document)


class Answers:
    """Replaces the API server: the second pod is gone, unknown, starting, and then ready."""

    def __init__(self) -> None:
        self.of_second = [None, ApiServerError(0, "no answer"), pod("w-1", ready=False), pod("w-1")]

    async def pod(self, name: str) -> Pod | None:
        if name == "w-0":
            return pod(name)
        answer = self.of_second.pop(0)
        if isinstance(answer, ApiServerError):
            raise answer
        return answer


def test_the_wait_before_another_attempt_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(replacement_pods, "POLL_S", 0.0)
    monkeypatch.setattr(replacement_pods, "NOTICE_S", -1.0)
    cluster: Any = Answers()
    before = [pod("w-0"), pod("w-1")]
    pods = asyncio.run(
        replacement_pods.wait_until_ready(cluster, before, within_s=60, deployment="cluster", closing=lambda: False)
    )
    assert [pod.name for pod in pods] == ["w-0", "w-1"]
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" s: ")[2] for line in lines] == ["w-1: gone", "w-1: no answer", "w-1: starting, Pending"]
    assert all(line.startswith("medweave: cluster: 1 of 2 pods ready; waits for up to ") for line in lines)
