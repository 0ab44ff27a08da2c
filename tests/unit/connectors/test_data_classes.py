"""What may be sent where, and what is remembered of a file."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from streamflow.core.deployment import ExecutionLocation

from medweave_connectors.host.errors import TransferForbidden
from medweave_connectors.policy.data_classes import Known, Port, Rules, port_of, wraps_of
from medweave_connectors.policy.data_rules import CLASSES
from medweave_connectors.policy.transfer_rules import Guard, carrying

HERE = ExecutionLocation(name="__LOCAL__", deployment="__LOCAL__", local=True)
LOGIN = ExecutionLocation(name="node", deployment="login")
QUEUE = ExecutionLocation(name="queue", deployment="slurm", wraps=LOGIN)
CONTAINER = ExecutionLocation(name="box", deployment="docker-1", wraps=HERE)
SETTINGS = {
    "carries": {"/": {"scans": "identified"}, "/train": {"set": ["derived", "model"]}, "/outer": {"a": "identified"}},
    "mayHold": {"slurm": ["derived", "model"], "cloud": ["model"]},
    "driver": ["model"],
}
GUARD = {"settings": SETTINGS, "wraps": {"slurm": "login"}}
NAMES = st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map(lambda parts: "/" + "/".join(parts))
NOTES = st.lists(st.tuples(st.sampled_from(["here", "there"]), NAMES, st.sampled_from(CLASSES)), max_size=8)

PURE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a machine may be busy


@pytest.mark.parametrize(
    ("name", "port"),
    [
        ("/train/__transfer__/set", Port("/train", "set")),
        ("/a/b/__transfer__/x-collector", Port("/a/b", "x-collector")),
        ("/model-collector", Port("/", "model")),
        ("/train", None),
        ("/", None),
    ],
)
def test_a_transfer_step_of_the_engine_names_its_port(name: str, port: Port | None) -> None:
    assert port_of(name) == port


def test_who_wraps_whom_stands_in_the_file() -> None:
    file = {"deployments": {"a": {"wraps": "b"}, "b": {"wraps": {"deployment": "c", "service": "s"}}, "c": {}}}
    assert wraps_of(file) == {"a": "b", "b": "c"}
    assert wraps_of({}) == {}


@pytest.mark.slow
@PURE
@given(NOTES, st.sampled_from(["here", "there"]), NAMES)
def test_a_path_has_the_classes_of_all_that_it_lies_in_and_holds(
    notes: list[tuple[str, str, str]], place: str, path: str
) -> None:
    known = Known()
    for each in notes:
        known.note(each[0], each[1], [each[2]])

    def on_one_branch(other: str) -> bool:
        return PurePosixPath(other).is_relative_to(path) or PurePosixPath(path).is_relative_to(other)

    assert known.of(place, path) == {each[2] for each in notes if each[0] == place and on_one_branch(each[1])}


@PURE
@given(st.sets(st.sampled_from(CLASSES)), st.sets(st.sampled_from(CLASSES)))
def test_a_place_gets_what_it_may_hold_all_of(classes: set[str], may_hold: set[str]) -> None:
    rules = Rules(carries={}, may_hold={"site": may_hold})
    fault = rules.fault(None, classes, ["site"], on_driver=False)
    assert (fault is None) == (bool(classes) and classes <= may_hold)


@pytest.mark.parametrize(
    ("place", "allowed"),
    [
        (QUEUE, True),  # its own line
        (LOGIN, True),  # the same machine as the queue's
        (ExecutionLocation(name="pod", deployment="cloud"), False),
        (ExecutionLocation(name="x", deployment="unnamed"), False),
        (HERE, False),
        (CONTAINER, False),  # on this machine
    ],
    ids=lambda value: getattr(value, "deployment", ""),
)
def test_deployments_of_one_place_may_hold_the_same(place: ExecutionLocation, allowed: bool) -> None:
    guard = Guard(**GUARD)
    with carrying(Port("/train", "set")):
        if allowed:
            assert guard.admit([(HERE, "/x")], [place]) == {"derived", "model"}
        else:
            with pytest.raises(TransferForbidden, match="/train: its input set was not sent"):
                guard.admit([(HERE, "/x")], [place])


def test_what_was_noted_at_the_login_node_is_known_in_the_queue() -> None:
    guard = Guard(**GUARD)
    guard.note([(LOGIN, "/data/x")], ["identified"])
    with carrying(Port("/train", "set")), pytest.raises(TransferForbidden, match="seen:     identified data"):
        guard.admit([(QUEUE, "/data")], [QUEUE])


def test_a_step_inside_another_carries_what_the_outer_one_does_unless_its_files_are_known() -> None:
    guard = Guard(**GUARD)
    with carrying(Port("/outer/inner", "x")):
        with pytest.raises(TransferForbidden, match="seen:     identified data"):
            guard.admit([(HERE, "/y")], [QUEUE])
        guard.note([(HERE, "/y")], ["model"])
        assert guard.admit([(HERE, "/y")], [QUEUE]) == {"model"}


def test_what_is_not_known_does_not_leave_its_place() -> None:
    guard = Guard(**GUARD)
    assert guard.admit([(LOGIN, "/x")], [QUEUE]) == frozenset()
    with pytest.raises(TransferForbidden, match="a file or folder was not sent: nothing says which data it carries"):
        guard.admit([(LOGIN, "/x")], [HERE])


def test_without_rules_nothing_is_refused_and_nothing_remembered() -> None:
    guard = Guard()
    guard.note([(HERE, "/x")], ["identified"])
    with carrying(Port("/train", "set")):
        assert guard.admit([(HERE, "/x")], [LOGIN]) == frozenset()
