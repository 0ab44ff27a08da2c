"""Several ranks on one node or two: start, agreement on options, and end when one is lost."""

from __future__ import annotations

import datetime
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from medweave_core.errors import TryAgainError, UsageError, UserInputError
from medweave_steps.runtime import environment
from medweave_steps.runtime.environment import NodeGroup, RankPlace
from medweave_steps.training.device import choose_device
from medweave_steps.training.distributed import failures, launch, ranks, watch
from medweave_steps.training.distributed.group import Alone
from medweave_steps.training.distributed.launch import ranks_here, run_ranks
from support import rank_work
from support.engine import wait_until
from support.processes import alive


def run(work: Any, job: Any, *, num: int = 2) -> Any:
    return run_ranks(work, job, num_here=num, num_threads=1, device="cpu", node_group=NodeGroup())


@pytest.mark.slow
def test_ranks_hear_each_other_and_sum_in_their_order_though_another_training_has_taken_the_first_port(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        ports = iter([other.getsockname()[1], launch._free_port()])
        monkeypatch.setattr(launch, "_free_port", lambda: next(ports))
        job, world_size, mean, heard = run(rank_work.talk, "a job", num=3)
    assert list(ports) == []
    assert (job, world_size) == ("a job", 3)
    assert [rank for rank, _, _ in heard] == [0, 1, 2]
    assert {threads for _, threads, _ in heard} == {1}
    assert len({pid for _, _, pid in heard} | {os.getpid()}) == 4
    total = np.array(rank_work.SUMMANDS[0]) + np.array(rank_work.SUMMANDS[1]) + np.array(rank_work.SUMMANDS[2])
    assert mean == (total / 3).tolist()


def test_one_process_is_a_group_of_its_own() -> None:
    alone = Alone()
    assert alone.gather("x") == ["x"]
    assert alone.mean(np.array([1.5])).tolist() == [1.5]


@pytest.mark.slow
def test_the_error_of_one_rank_is_the_error_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(UserInputError, match=r"rank 1 on .*: the mask is missing\.") as caught:
        run(rank_work.refuse, 1)
    assert (caught.value.seen, caught.value.expected, caught.value.do) == ("none", "one", "add it")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_rank_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from support import rank_work\n"
        "from medweave_steps.runtime.environment import NodeGroup\n"
        "from medweave_steps.training.distributed.launch import run_ranks\n"
        "if __name__ == '__main__':\n"
        " run_ranks(rank_work.stall, Path(sys.argv[1]), num_here=1, num_threads=1, device='cpu', node_group=NodeGroup())"
    )
    (tmp_path / "main.py").write_text(code)
    paths = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, str(tmp_path / "main.py"), str(tmp_path)], env=paths)
    file = tmp_path / "pid-0"
    while not (file.exists() and file.read_text()):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    rank = int(file.read_text())
    wait_until(lambda: not alive(rank))
    assert not alive(rank)


@pytest.mark.parametrize(("ranks", "nodes", "here"), [(4, 2, 2), (3, 1, 3), (2, 2, 1)])
def test_ranks_are_spread_evenly(ranks: int, nodes: int, here: int) -> None:
    assert ranks_here(ranks, NodeGroup(num_nodes=nodes), option="ranks") == here


def test_ranks_that_cannot_be_spread_evenly_are_refused() -> None:
    with pytest.raises(UsageError, match="--replicas is not divisible by the number of nodes") as caught:
        ranks_here(3, NodeGroup(num_nodes=2), option="replicas")
    assert caught.value.seen == "3 for 2 nodes"


def test_a_rank_has_the_gpu_of_its_place_on_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device("auto", local_rank=1) == torch.device("cuda", 1)
    assert choose_device("cpu", local_rank=1) == torch.device("cpu")
    with pytest.raises(UsageError, match="more ranks on this node than GPUs"):
        choose_device("auto", local_rank=2)


GANG = ("MEDWEAVE_NODE_RANK", "MEDWEAVE_NUM_NODES", "MEDWEAVE_RENDEZVOUS")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (("", "", ""), NodeGroup()),
        (("1", "2", "node-a:29500"), NodeGroup(node_rank=1, num_nodes=2, rendezvous=("node-a", 29500))),
        (("0", "2", "[fd00::1]:29500"), NodeGroup(num_nodes=2, rendezvous=("fd00::1", 29500))),
        (("0", "1", ""), NodeGroup()),
    ],
)
def test_the_place_in_the_gang_is_read_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, values: tuple[str, ...], expected: NodeGroup
) -> None:
    for name, value in zip(GANG, values, strict=True):
        monkeypatch.setenv(name, value)
    assert environment.node_group() == expected


@pytest.mark.parametrize(
    "values",
    [("2", "2", "a:1"), ("0", "2", ""), ("x", "2", "a:1"), ("0", "2", "a:99999"), ("0", "", "a:1"), ("0", "2", ":1")],
)
def test_a_place_that_makes_no_sense_is_refused(monkeypatch: pytest.MonkeyPatch, values: tuple[str, ...]) -> None:
    for name, value in zip(GANG, values, strict=True):
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match="invalid node-group environment variables") as caught:
        environment.node_group()
    assert f"MEDWEAVE_NUM_NODES={values[1]!r}" in caught.value.seen


def test_gloo_takes_the_interface_that_leads_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    environment.prefer_interface_towards("127.0.0.1")
    assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    environment.prefer_interface_towards("127.0.0.1")
    assert os.environ["GLOO_SOCKET_IFNAME"] == "ib0"


@pytest.fixture
def store() -> Any:
    return torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def watched(store: Any, message: list[failures.Failure], lost_after_s: float | None = None) -> watch.Watch:
    """A watch of rank 0 of two."""
    place = RankPlace(rank=0, local_rank=0, world_size=2, store=("127.0.0.1", store.port))
    return watch.Watch(place, who="rank 0 on here", on_failure=message.append, lost_after_s=lost_after_s)


@pytest.mark.slow
@pytest.mark.parametrize(("beats", "message"), [(True, "for 0 s"), (False, "for 1 s")])
def test_a_rank_that_falls_silent_or_never_comes_is_reported(
    monkeypatch: pytest.MonkeyPatch, store: Any, beats: bool, message: str
) -> None:
    monkeypatch.setattr(watch, "BEAT_S", 0.02)
    monkeypatch.setattr(watch, "SILENCE_S", 0.2)
    monkeypatch.setattr(watch, "ARRIVAL_S", 1.0)
    if beats:
        store.set("medweave/beat/1", "1")
    seen: list[failures.Failure] = []
    started = time.monotonic()
    watched(store, seen)._thread.join(10)
    assert (time.monotonic() - started > 0.9) is not beats
    assert [failure.what for failure in seen] == ["rank 1 is unresponsive."]
    assert seen[0].seen == f"no heartbeat {message}, reported by rank 0 on here"
    assert seen[0].is_cause


def test_a_worker_that_falls_silent_is_lost_where_the_training_continues_without_it(
    monkeypatch: pytest.MonkeyPatch, store: Any
) -> None:
    monkeypatch.setattr(watch, "BEAT_S", 0.02)
    store.set("medweave/beat/1", "1")
    seen: list[failures.Failure] = []
    own = watched(store, seen, lost_after_s=0.2)
    wait_until(lambda: bool(own.lost))
    own.finish()
    assert (own.lost, seen) == ({1}, [])


def test_a_rank_shows_at_once_that_it_has_come(monkeypatch: pytest.MonkeyPatch, store: Any) -> None:
    # Who froze in its first two seconds was waited for like one that starts from a slow file system: five minutes.
    monkeypatch.setattr(watch, "BEAT_S", 3600.0)
    own = watched(store, [])
    store.wait(["medweave/beat/0"], datetime.timedelta(seconds=30))
    own.finish()


def test_a_rank_that_freezes_has_ended_the_others_within_a_minute() -> None:
    """Of the times that follow one another; a rank that gets SIGSTOP was seen to end the other after 45 s."""
    noticed_s = watch.SILENCE_S + 2 * watch.BEAT_S  # its last beat is seen late, and so is that none follows
    assert noticed_s + launch.EXIT_GRACE_S + launch.LINGER_S <= 60
    assert noticed_s + ranks.CAUSE_WAIT_S + launch.LINGER_S <= 60


def test_a_rank_that_has_finished_may_be_silent(monkeypatch: pytest.MonkeyPatch, store: Any) -> None:
    monkeypatch.setattr(watch, "BEAT_S", 0.02)
    monkeypatch.setattr(watch, "SILENCE_S", 0.1)
    store.set("medweave/beat/1", "finished")
    seen: list[failures.Failure] = []
    own = watched(store, seen)
    time.sleep(0.4)
    own.finish()
    assert seen == []
    assert store.get("medweave/beat/0") == b"finished"


def test_the_first_failure_stands_and_reaches_a_rank_that_waits_for_nothing(
    monkeypatch: pytest.MonkeyPatch, store: Any
) -> None:
    monkeypatch.setattr(watch, "BEAT_S", 0.02)
    first = failures.failure_of(UserInputError("bad mask."), who="rank 1 on there")
    failures.publish(store, first)
    failures.publish(store, failures.died("rank 0 on here", -9))
    seen: list[failures.Failure] = []
    watched(store, seen)._thread.join(10)
    assert seen == [first]
    assert str(seen[0].error()).startswith("rank 1 on there: bad mask.")
    assert isinstance(seen[0].error(), UserInputError)


@pytest.mark.slow
def test_a_node_that_meets_nobody_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("medweave_steps.training.distributed.launch.ARRIVAL_S", 1.0)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = free.getsockname()
    gang = NodeGroup(node_rank=1, num_nodes=2, rendezvous=address)
    with pytest.raises(TryAgainError, match="the nodes of the training could not connect") as caught:
        run_ranks(rank_work.talk, "", num_here=1, num_threads=1, device="cpu", node_group=gang)
    assert f"2 nodes at 127.0.0.1:{address[1]}" in caught.value.expected
