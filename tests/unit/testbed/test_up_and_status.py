"""`up` starts parts in the order of their needs and leaves healthy ones alone; `status` names the first cause."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from medweave_testbed import catalogue, cli, machine, status
from medweave_testbed.commands import Cancelled, Commands
from medweave_testbed.daemons import Daemons
from medweave_testbed.errors import TestbedError
from medweave_testbed.layout import Layout
from medweave_testbed.part import Part, Testbed, bring_up, reason
from medweave_testbed.up import Upbringing
from medweave_testbed.walls import Walls


@pytest.fixture
def bed(tmp_path: Path) -> Testbed:
    """A testbed of which nothing runs."""
    layout, commands = Layout(folder=tmp_path, instance=0), Commands()
    walls = Walls(layout, commands)
    daemons = Daemons(layout, commands, walls)
    return Testbed(layout=layout, commands=commands, walls=walls, daemons=daemons, environment={})


class World:
    """Parts that are up once they were started."""

    def __init__(self) -> None:
        self.up: set[str] = set()
        self.order: list[str] = []
        self._lock = threading.Lock()

    def part(self, name: str, *needs: str, broken: bool = False) -> Part:
        """A part of that name; a broken one raises when it is started."""

        def start(bed: Testbed) -> None:
            if broken:
                raise TestbedError("it cannot start.", seen="smoke", expected="none", do="look")
            with self._lock:
                self.order.append(name)
                self.up.add(name)

        return Part(
            name=name,
            needs=needs,
            start=start,
            trouble=lambda bed: None if name in self.up else "it is off",
            patience_s=1,
        )


def test_parts_come_up_after_what_they_need(bed: Testbed) -> None:
    world = World()
    parts = [
        world.part("api", "etcd"),
        world.part("etcd"),
        world.part("kubelet", "api", "runtime"),
        world.part("runtime"),
    ]
    upbringing = Upbringing(parts, bed, report=lambda line: None)
    upbringing.run()
    assert not upbringing.failed
    assert world.order.index("etcd") < world.order.index("api") < world.order.index("kubelet")
    assert world.order.index("runtime") < world.order.index("kubelet")
    assert sorted(upbringing.started) == ["api", "etcd", "kubelet", "runtime"]


def test_healthy_parts_are_left_alone(bed: Testbed) -> None:
    world = World()
    parts = [world.part("etcd"), world.part("api", "etcd")]
    world.up.add("etcd")
    lines: list[str] = []
    upbringing = Upbringing(parts, bed, report=lines.append)
    upbringing.run()
    assert world.order == ["api"]
    assert upbringing.started == ["api"]
    assert [line.split()[:2] for line in lines] == [["etcd", "was"], ["api", "up"]]


def test_a_part_that_fails_stops_those_that_need_it_and_no_others(bed: Testbed) -> None:
    world = World()
    parts = [world.part("etcd", broken=True), world.part("api", "etcd"), world.part("node", "api"), world.part("slurm")]
    upbringing = Upbringing(parts, bed, report=lambda line: None)
    upbringing.run()
    assert world.order == ["slurm"]
    assert list(upbringing.failed) == ["etcd"]
    assert upbringing.not_tried == ["api", "node"]
    assert str(upbringing.failed["etcd"]).startswith("testbed: etcd: it cannot start.\n  seen:     smoke\n")


def test_a_part_that_never_becomes_healthy_is_an_error_with_its_reason(bed: Testbed) -> None:
    part = Part(name="dns", trouble=lambda bed: "no answer", start=lambda bed: None, patience_s=0.2)
    with pytest.raises(TestbedError) as refusal:
        bring_up(part, bed)
    assert refusal.value.seen == "no answer"
    assert "dns: it is not healthy" in str(refusal.value)


def test_waiting_ends_at_once_when_all_is_cancelled(bed: Testbed) -> None:
    part = Part(name="dns", trouble=lambda bed: "no answer", start=lambda bed: bed.commands.cancel(), patience_s=60)
    with pytest.raises(Cancelled):
        bring_up(part, bed)


def test_a_check_that_fails_itself_is_a_reason(bed: Testbed) -> None:
    def trouble(bed: Testbed) -> str | None:
        raise TestbedError("the question failed.", seen="a broken\npipe", expected="", do="")

    part = Part(name="dns", trouble=trouble, start=lambda bed: None)
    assert reason(part, bed) == "the question failed. a broken pipe"


def test_a_daemon_that_was_never_started_is_told_from_one_that_is_gone(bed: Testbed) -> None:
    part = Part(name="dns", daemon="dns", trouble=lambda bed: None, start=lambda bed: None)
    assert reason(part, bed) == "it was never started"
    bed.layout.run.mkdir()
    (bed.layout.run / "dns.pid").write_text("4711 99\n", encoding="utf-8")
    bed.layout.log.mkdir()
    bed.daemons.log("dns").write_text("serving\nlost the certificate\n", encoding="utf-8")
    assert reason(part, bed) == "its process 4711 is gone (stale pid file); its log ends: lost the certificate"


def test_status_puts_the_cause_first(bed: Testbed) -> None:
    world = World()
    parts = [world.part("etcd"), world.part("api", "etcd"), world.part("slurm")]
    world.up.add("slurm")
    states = status.states_of(parts, bed)
    assert [(state.name, state.reason) for state in states] == [
        ("etcd", "it is off"), ("api", "needs etcd; it is off"), ("slurm", None),
    ]  # fmt: skip
    table = status.table(states, "/opt/bed")
    assert table.startswith("testbed in /opt/bed: 2 of 3 parts are down\n  etcd           DOWN  it is off\n")
    document = json.loads(status.as_json(states, "/opt/bed"))
    assert document["up"] is False
    assert document["parts"][2] == {"name": "slurm", "up": True, "reason": None}


def test_status_of_a_testbed_that_is_up(bed: Testbed) -> None:
    world = World()
    world.up.add("etcd")
    states = status.states_of([world.part("etcd")], bed)
    assert status.table(states, "/opt/bed") == "testbed in /opt/bed: all 1 parts are up\n  etcd           up"
    assert json.loads(status.as_json(states, "/opt/bed"))["up"] is True


@pytest.mark.parametrize("existing_cluster", [False, True])
def test_what_is_prepared_leaves_nothing_running(bed: Testbed, existing_cluster: bool) -> None:
    parts = catalogue.slow_parts(catalogue.parts_of(bed.layout, existing_cluster=existing_cluster))
    assert {"packages", "binaries", "environment"} <= {part.name for part in parts}
    assert all(part.daemon is None and part.port is None for part in parts)


def test_some_are_prepared_with_what_they_need(bed: Testbed) -> None:
    parts = catalogue.parts_of(bed.layout, existing_cluster=False)
    assert [part.name for part in catalogue.slow_parts(parts, ["binaries"])] == ["machine", "binaries"]
    with pytest.raises(TestbedError, match="there is no such part to prepare") as refused:
        catalogue.slow_parts(parts, ["binaries", "etcd"])
    assert "seen:     etcd\n" in str(refused.value)


def test_status_names_a_disk_that_has_filled_up(bed: Testbed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "check_system", lambda release: None)
    monkeypatch.setattr(machine, "check_rights", lambda user_id: None)
    monkeypatch.setattr(machine, "is_first", lambda layout: False)
    monkeypatch.setattr(machine, "free_mib", lambda folder: 4_999)
    parts = catalogue.parts_of(bed.layout, existing_cluster=False)
    (state,) = status.states_of([part for part in parts if part.name == "machine"], bed)
    assert state.reason == f"too little room on the disk of {bed.layout.folder}. 4999 MiB free"


@pytest.mark.parametrize("existing_cluster", [False, True])
def test_every_part_needs_only_parts_that_come_before_it(existing_cluster: bool) -> None:
    layout = Layout(folder=Path("/opt/bed"), instance=0)
    names = [part.name for part in catalogue.parts_of(layout, existing_cluster=existing_cluster)]
    assert {"slurmctld", "slurmd-n1", "slurmd-n2", "tenants", "login", "laptop", "environment"} <= set(names)
    assert ("apiserver" in names) != existing_cluster
    assert ("cluster" in names) == existing_cluster


def test_the_catalogue_refuses_a_need_that_comes_later() -> None:
    world = World()
    with pytest.raises(AssertionError, match="api needs"):
        catalogue.in_order([world.part("api", "etcd"), world.part("etcd")])


def test_a_folder_of_somebody_else_is_no_testbed(tmp_path: Path) -> None:
    layout = Layout(folder=tmp_path / "home", instance=1)
    (layout.folder / "run").mkdir(parents=True)
    with pytest.raises(TestbedError, match="holds something else"), cli.alone(layout):
        pytest.fail("`down` would remove from it")
    assert [path.name for path in layout.folder.iterdir()] == ["run"]


@pytest.mark.parametrize("before", ["nothing", "empty", "testbed"])
def test_a_folder_that_the_testbed_has_created_is_used(tmp_path: Path, before: str) -> None:
    layout = Layout(folder=tmp_path / "bed", instance=1)
    if before != "nothing":
        layout.folder.mkdir()
    if before == "testbed":
        (layout.folder / ".lock").touch()
        (layout.folder / "bin").mkdir()
    with cli.alone(layout):
        assert (layout.folder / ".lock").exists()
