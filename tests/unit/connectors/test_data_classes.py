"""Which data may be sent to which deployment, and which classes a file has."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from streamflow.core.deployment import ExecutionLocation

from medweave_connectors.host.errors import TransferForbidden
from medweave_connectors.policy.data_classes import FileClasses, Rules, StepPort, port_of, wraps_of
from medweave_connectors.policy.data_rules import CLASSES
from medweave_connectors.policy.transfer_rules import TransferGuard, carrying

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
        ("/train/__transfer__/set", StepPort("/train", "set")),
        ("/a/b/__transfer__/x-collector", StepPort("/a/b", "x-collector")),
        ("/model-collector", StepPort("/", "model")),
        ("/train", None),
        ("/", None),
    ],
)
def test_a_transfer_step_of_the_engine_names_its_port(name: str, port: StepPort | None) -> None:
    assert port_of(name) == port


def test_the_file_says_which_deployment_wraps_which() -> None:
    file = {"deployments": {"a": {"wraps": "b"}, "b": {"wraps": {"deployment": "c", "service": "s"}}, "c": {}}}
    assert wraps_of(file) == {"a": "b", "b": "c"}
    assert wraps_of({}) == {}


@pytest.mark.slow
@PURE
@given(NOTES, st.sampled_from(["here", "there"]), NAMES)
def test_a_path_has_the_classes_of_its_parents_and_contents(
    notes: list[tuple[str, str, str]], place: str, path: str
) -> None:
    known = FileClasses()
    for at, noted_path, data_class in notes:
        known.note(at, noted_path, [data_class])

    def on_one_branch(other: str) -> bool:
        return PurePosixPath(other).is_relative_to(path) or PurePosixPath(path).is_relative_to(other)

    assert known.of(place, path) == {
        data_class for at, noted_path, data_class in notes if at == place and on_one_branch(noted_path)
    }


@PURE
@given(st.sets(st.sampled_from(CLASSES)), st.sets(st.sampled_from(CLASSES)))
def test_a_deployment_may_hold_data_if_it_may_hold_all_their_classes(classes: set[str], may_hold: set[str]) -> None:
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
    guard = TransferGuard(**GUARD)
    with carrying(StepPort("/train", "set")):
        if allowed:
            assert guard.admit([(HERE, "/x")], [place]) == {"derived", "model"}
        else:
            with pytest.raises(TransferForbidden, match="/train: its input set was not sent"):
                guard.admit([(HERE, "/x")], [place])


def test_classes_noted_at_the_login_node_are_known_in_the_queue() -> None:
    guard = TransferGuard(**GUARD)
    guard.note([(LOGIN, "/data/x")], ["identified"])
    with carrying(StepPort("/train", "set")), pytest.raises(TransferForbidden, match="seen:     identified data"):
        guard.admit([(QUEUE, "/data")], [QUEUE])


def test_an_inner_step_has_the_classes_of_the_outer_one_unless_its_files_are_known() -> None:
    guard = TransferGuard(**GUARD)
    with carrying(StepPort("/outer/inner", "x")):
        with pytest.raises(TransferForbidden, match="seen:     identified data"):
            guard.admit([(HERE, "/y")], [QUEUE])
        guard.note([(HERE, "/y")], ["model"])
        assert guard.admit([(HERE, "/y")], [QUEUE]) == {"model"}


def test_data_without_a_known_class_stays_at_its_site() -> None:
    guard = TransferGuard(**GUARD)
    assert guard.admit([(LOGIN, "/x")], [QUEUE]) == frozenset()
    with pytest.raises(TransferForbidden, match="a file or folder was not sent: its data class is not declared"):
        guard.admit([(LOGIN, "/x")], [HERE])


def test_without_rules_nothing_is_refused_and_nothing_stored() -> None:
    guard = TransferGuard()
    guard.note([(HERE, "/x")], ["identified"])
    with carrying(StepPort("/train", "set")):
        assert guard.admit([(HERE, "/x")], [LOGIN]) == frozenset()
