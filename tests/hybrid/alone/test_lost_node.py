"""A node that is lost under a job: another attempt, on another node, in a clean folder."""

from __future__ import annotations

from pathlib import Path

from support.slurm_runs import begin, resources, sacct, write
from support.testbed import Sites


def test_a_job_whose_node_was_lost_is_tried_again(tmp_path: Path, testbed: Sites) -> None:
    script = (
        "[ ! -e half.txt ] || exit 65; echo half > half.txt; "
        'echo \'medweave-progress {"unit":"case","done":1,"total":2}\' >&2; sleep 15; echo done > result.txt'
    )
    write(tmp_path, {"first": (script, resources())}, reactions={"NodeFail": {"wait": 0}})
    going = begin(tmp_path, testbed)
    going.wait_for_line("case 1/2")
    (node,) = testbed.hpc("squeue", "--me", "--noheader", "--states=running", "--format=%N").stdout.split()
    testbed.inside("hpc", "scontrol", "update", f"nodename={node}", "state=down", "reason=a test")
    # Its slurmd still answers, and would bring it back at once.
    testbed.inside("hpc", "scontrol", "update", f"nodename={node}", "state=drain", "reason=a test")
    try:
        ended = going.wait(240)
    finally:
        testbed.inside("hpc", "scontrol", "update", f"nodename={node}", "state=resume")
    assert ended.exit_code == 0, ended.stderr
    ends = [event["data"]["site"] for event in ended.of_type("job.ended")]
    assert [sacct(testbed, end["slurm_job_id"])[0] for end in ends] == ["NODE_FAIL", "COMPLETED"]
    assert ends[0]["failure"] == "NodeFail"
    assert ends[1]["nodes"] != node
