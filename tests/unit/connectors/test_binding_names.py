"""Names in the bindings of a streamflow.yml: unknown names are reported with their line and the valid choices."""

from __future__ import annotations

from typing import Any

import pytest

from medweave_core.documents.binding_names import check_paths, check_targets
from medweave_core.documents.field_errors import FieldFault

STEPS = {"/train", "/infer/segment", "/infer/evaluate"}
PORTS = {"/series", "/train/model", "/infer/segment/mask"}


def config(*bindings: dict[str, Any]) -> dict[str, Any]:
    deployments = {
        "here": {"type": "medweave.local", "config": {}},
        "hpc": {"type": "medweave.slurm", "config": {"services": {"gpu4": {}, "cpu": {}}}},
        "pods": {"type": "medweave.kubernetes", "config": {}},
        "theirs": {"type": "slurm", "config": {"services": {"gpu4": {}}}},
    }
    return {"path": "/x/bound.yml", "workflows": {"lung": {"bindings": list(bindings)}}, "deployments": deployments}


def look(*bindings: dict[str, Any]) -> None:
    check_paths(config(*bindings), "lung", steps=STEPS, ports=PORTS, document="train.cwl")


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("step", "/"),
        ("step", "/train"),
        ("step", "/infer"),  # a sub-workflow
        ("step", "/infer/segment/"),
        ("port", "/series"),
        ("port", "/train/model"),
        ("port", "/infer"),  # of all ports below
    ],
)
def test_what_there_is_may_be_bound(kind: str, path: str) -> None:
    look({kind: path, "target": {"deployment": "here"}})


def test_the_root_may_be_bound_where_there_is_no_tool() -> None:
    # CWL's own suite has a workflow without steps.
    check_paths(
        config({"step": "/", "target": {"deployment": "here"}}), "lung", steps=(), ports=PORTS, document="train.cwl"
    )


@pytest.mark.parametrize("path", ["/trai", "/train/model", "/segment", "/infer/train"])
def test_an_unknown_step_is_reported_with_its_line(path: str) -> None:
    # The engine takes the beginning of a name for a step, and says nothing of the first two.
    with pytest.raises(FieldFault) as caught:
        look({"step": "/", "target": {}}, {"step": path, "target": {}})
    assert caught.value.what == f"/x/bound.yml: workflows.lung.bindings[1].step: there is no step '{path}'."


def test_the_nearest_names_come_first() -> None:
    with pytest.raises(FieldFault) as caught:
        look({"step": "/segmant", "target": {}})
    assert caught.value.seen == "step '/segmant'"
    assert caught.value.expected.startswith("a step of train.cwl: /infer/segment, ")
    assert set(caught.value.expected.partition(": ")[2].split(", ")) == {*STEPS, "/infer"}
    with pytest.raises(FieldFault) as caught:
        look({"step": "/trian", "target": {}})
    assert caught.value.do == "write '/train' (closest match)"


def test_an_input_of_a_step_is_no_port_that_can_be_bound() -> None:
    with pytest.raises(FieldFault, match=r"bindings\[0\]\.port: there is no port '/train/series'"):
        look({"port": "/train/series", "target": {}})


@pytest.mark.parametrize(
    ("target", "what", "expected"),
    [
        (
            {"deployment": "hcp"},
            "target.deployment: there is no deployment 'hcp'.",
            "a deployment in `deployments`: hpc, here, pods, theirs",
        ),
        (
            {"deployment": "hpc", "service": "gpu"},
            "target.service: there is no service 'gpu'.",
            "a service of deployment 'hpc': gpu4, cpu",
        ),
        (
            {"deployment": "hpc"},
            "target: deployment 'hpc' has services, but no service is chosen.",
            "one of gpu4, cpu",
        ),
        (
            {"deployment": "here", "service": "cpu"},
            "target.service: deployment 'here' has no services.",
            "a target without a service",
        ),
    ],
)
def test_a_deployment_or_service_that_there_is_not(target: dict[str, str], what: str, expected: str) -> None:
    with pytest.raises(FieldFault) as caught:
        check_targets(config({"step": "/", "target": target}))
    assert caught.value.what == f"/x/bound.yml: workflows.lung.bindings[0].{what}"
    assert caught.value.expected == expected


def test_more_nodes_than_hosts_are_refused() -> None:
    parsed = config({"step": "/", "target": {"deployment": "hosts", "locations": 3}})
    parsed["deployments"]["hosts"] = {"type": "medweave.ssh", "config": {"nodes": ["ws-1", "ws-2"]}}
    with pytest.raises(
        FieldFault, match=r"bindings\[0\]\.target\.locations: deployment 'hosts' has too few hosts"
    ) as caught:
        check_targets(parsed)
    assert caught.value.expected == "at most 2: its `nodes` are ws-1, ws-2"
    parsed["deployments"]["hosts"]["config"]["nodes"].append("ws-3")
    check_targets(parsed)


@pytest.mark.parametrize("wraps", ["logn", {"deployment": "logn", "service": "x"}])
def test_a_way_through_a_deployment_that_there_is_not(wraps: Any) -> None:
    # The engine ends with `KeyError: 'logn'`.
    parsed = config()
    parsed["deployments"] |= {"login": {"type": "medweave.ssh", "config": {}}}
    parsed["deployments"]["hpc"]["wraps"] = wraps
    with pytest.raises(
        FieldFault, match=r"bound\.yml: deployments\.hpc\.wraps: there is no deployment 'logn'"
    ) as caught:
        check_targets(parsed)
    assert caught.value.expected.startswith("a deployment in this file: login, ")


def test_in_a_list_of_targets_the_place_has_its_number() -> None:
    targets = [{"deployment": "hpc", "service": "cpu"}, {"deployment": "hpc", "service": "cup"}]
    with pytest.raises(FieldFault, match=r"bindings\[0\]\.target\[1\]\.service: there is no service 'cup'"):
        check_targets(config({"step": "/", "target": targets}))


@pytest.mark.parametrize("deployment", ["pods", "theirs"])
def test_the_containers_of_pods_and_other_types_are_not_judged(deployment: str) -> None:
    check_targets(config({"step": "/", "target": {"deployment": deployment, "service": "any"}}))
