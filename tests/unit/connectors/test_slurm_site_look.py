"""Services of a site file are checked against the site when the run starts. Texts of Slurm 22.05 on Debian 12."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from medweave_connectors.sites.slurm.commands import END
from medweave_connectors.sites.slurm.service import Service
from medweave_connectors.sites.slurm.site_survey import SiteSurvey, check_services, parse_survey, survey_command
from medweave_core.errors import UsageError
from support.engine import start, write_workflow
from support.fake_cluster import NEVER_AGAIN, Cluster, fake_cluster

SITE = """\
missing scancel
partition normal* 2 8000 1-00:00:00 (null) (null)
partition gpu 8 64000 infinite gpu:a100:4(S:0-1),tpu:1 avx512,big
partition gpu 64 9 infinite gpu:a100:8 big
name qos usual
name qos long
trial 0 sbatch: Job 9 to start
code 0
"""
ONE = {"usual": Service(account="research")}
REFUSED = "allocation failure: "


def where(name: str) -> str:
    return f"deployments.hpc.config.services.{name}"


def refuse(service: Service, message: str = "") -> None:
    services = {"usual": service}
    text = SITE.replace("sbatch: Job 9 to start", message)
    check_services(parse_survey(text + END, services), services, where)


def test_a_survey_is_parsed() -> None:
    seen = parse_survey(SITE + END, ONE)
    assert (seen.missing, seen.default, seen.error) == (("scancel",), "normal", "")
    assert seen.partition("").nodes == ((2, 8000),)
    assert seen.partition("").limit_s == 86400
    gpu = seen.partition("gpu")
    assert (gpu.nodes, gpu.limit_s) == (((8, 64000), (64, 9)), None)
    assert gpu.names == {"gres": ("gpu:a100", "tpu"), "constraint": ("avx512", "big")}
    assert seen.names == {"partition": ("normal", "gpu"), "qos": ("usual", "long")}
    assert seen.trials == {"usual": "sbatch: Job 9 to start"}
    assert seen.partition("other").nodes == ()
    assert parse_survey(f"sinfo: error: no answer\ncode 1\n{END}", {}).error == "sinfo: error: no answer"
    with pytest.raises(ValueError, match="the answer is incomplete"):
        parse_survey(SITE, ONE)


def test_a_service_without_keys_is_not_tried() -> None:
    assert "test-only" not in survey_command({"usual": Service()})
    line = survey_command({"usual": Service(), "other": Service(account="it's", options=("--exclude=n7",))})
    assert line.count("--test-only") == 1
    assert "trial 1 " in line
    assert "--exclude=n7" in line


@pytest.mark.parametrize(
    ("keys", "message", "key", "choices"),
    [
        ({"partition": "gpuu"}, "", "partition", "one of normal, gpu"),
        ({"qos": "lang"}, "", "qos", "one of usual, long"),
        ({"time": "1-00:00:01"}, "", "time", "at most 1440 min"),
        (
            {"account": "unknown"},
            f"{REFUSED}Invalid account or account/partition combination specified",
            "account",
            "none",
        ),
        ({"qos": "long"}, f"{REFUSED}Invalid qos specification", "qos", "one of long, usual"),
        ({"reservation": "r"}, f"{REFUSED}Requested reservation is invalid", "reservation", "none"),
        (
            {"constraint": "a", "partition": "gpu"},
            f"{REFUSED}Invalid feature specification",
            "constraint",
            "avx512, big",
        ),
        (
            {"gres": "npu", "gpusPerNode": 1, "partition": "gpu"},
            "sbatch: error: Invalid generic resource (gres) specification",
            "gres",
            "one of gpu:a100, tpu",
        ),
        (
            {"gres": "gpu:h100", "gpusPerNode": 1, "partition": "gpu"},
            f"{REFUSED}Requested node configuration is not available",
            "gres",
            "one of gpu:a100, tpu",
        ),
        ({"options": ("--nowhere=n7",)}, "sbatch: unrecognized option '--nowhere=n7'", "options", "none"),
        (
            {"time": "01:00:00"},
            f"{REFUSED}Requested time limit is invalid (missing or exceeds some limit)",
            "time",
            "none",
        ),
    ],
)
def test_a_name_that_the_site_does_not_have_is_refused_with_its_key_and_the_choices(
    keys: dict[str, Any], message: str, key: str, choices: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(f"{where('usual')}.{key}: ")) as refused:
        refuse(Service(**keys), message)
    assert choices in refused.value.expected
    assert message in refused.value.seen


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"account": "research", "partition": "gpu", "qos": "long", "time": "9-00:00:00"}, "sbatch: Job 9 to start"),
        ({"account": "research"}, "sbatch: error: test-only is disabled here"),
        ({"account": "research"}, "sbatch: error: lua: invalid job: state your project"),
        ({"account": "research"}, f"{REFUSED}Invalid qos specification"),
        ({"account": "research"}, "sbatch: error: please ask for gres"),
        ({"account": "research"}, f"{REFUSED}Requested node configuration is not available"),
        (
            {"gres": "gpu", "gpusPerNode": 1, "partition": "gpu"},
            f"{REFUSED}Requested node configuration is not available",
        ),
        ({"partition": "normal", "qos": "long", "time": "9-00:00:00"}, ""),
        ({"account": "research"}, "sbatch: error: Unable to contact slurm controller (connect failure)"),
    ],
)
def test_other_messages_of_sbatch_are_left_to_the_submission(keys: dict[str, Any], message: str) -> None:
    refuse(Service(**keys), message)


def test_a_qos_is_left_to_slurm_if_accounting_lists_none() -> None:
    services = {"usual": Service(qos="any")}
    seen = parse_survey("partition normal* 2 8000 1-00:00:00 (null) (null)\ncode 0\n" + END, services)
    check_services(seen, services, where)
    assert SiteSurvey().partition("") == SiteSurvey().partition("x")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with fake_cluster(tmp_path) as made:
        yield made


@pytest.mark.slow
def test_a_wrong_account_ends_the_run_before_anything_is_submitted(cluster: Cluster) -> None:
    cluster.knob("trial", f"{REFUSED}Invalid account or account/partition combination specified")
    cluster.knob("accounts", "research\nteaching")
    cluster.config = {"reactions": NEVER_AGAIN, "services": {"usual": {"account": "unknown"}}}
    text = cluster.file.replace("deployment: hpc", "deployment: hpc, service: usual")
    write_workflow(cluster.folder, {"first": "echo done > result.txt"}, file=text)
    ended = start(cluster.folder).wait()
    assert ended.exit_code == 1
    assert ended.of_type("run.ended")[0]["data"]["refused"], "`medweave run` then exits with 65"
    assert "deployments.hpc.config.services.usual.account: the cluster has no such account." in ended.stderr
    assert "unknown: allocation failure: Invalid account" in ended.stderr
    assert "expected: one of research, teaching" in ended.stderr
    assert cluster.submitted == []
