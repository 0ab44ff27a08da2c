"""What follows from a failed step on a machine without a scheduler: this one, and one behind real ssh."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.engine import Run, run, start, write_workflow
from support.engine_file import engine_file, ssh_site
from support.ssh_server import ssh_server

Write = Callable[..., None]
SAVES = {"hints": {"urn:medweave:cwl#Checkpoint": {"folder": "saved"}}}
# The second start must not find what the first has left.
TWICE = (
    "echo x >> {folder}/starts; [ ! -e half ] || exit 65; touch half; "
    "[ $(wc -l < {folder}/starts) = 2 ] || {{ mkdir -p saved; echo 7 > saved/at; exit 75; }}; "
    'cat "$MEDWEAVE_RESUME_FROM/at" > result.txt || echo none > result.txt'
)


@pytest.fixture(params=["local", "ssh"])
def write(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Write]:
    """Writes a workflow of one step, bound to the machine."""

    def on(site: dict[str, Any]) -> Write:
        def written(script: str, keys: dict[str, Any] | None = None, **row: Any) -> None:
            site["config"] |= {"reactions": {"StepFailed": {"wait": 0} | row}}
            text = script.format(folder=tmp_path)
            write_workflow(tmp_path, {"works": (text, keys or {})}, file=engine_file({"machine": site}))

        return written

    if request.param == "local":
        yield on({"type": "medweave.local", "config": {}})
    else:
        with ssh_server(tmp_path / "server") as server:
            yield on(ssh_site(server.port, str(tmp_path / "site")))


def reactions(ended: Run) -> list[tuple[str, int, bool]]:
    return [
        (event["data"]["failure"], event["data"]["exit_code"], event["data"]["again"])
        for event in ended.of_type("job.reaction")
    ]


def ends(ended: Run) -> list[tuple[int, str]]:
    return [(event["data"]["attempt"], event["data"]["state"]) for event in ended.of_type("job.ended")]


@pytest.mark.slow
@pytest.mark.parametrize(("keys", "checkpoint"), [({}, "none"), (SAVES, "7")])
def test_a_step_with_exit_code_75_is_retried_in_a_clean_folder(
    tmp_path: Path, write: Write, keys: dict[str, Any], checkpoint: str
) -> None:
    write(TWICE, keys)
    ended = run(tmp_path)
    assert ended.exit_code == 0, ended.stderr
    assert ends(ended) == [(1, "failed"), (2, "completed")]
    assert reactions(ended) == [("StepFailed", 75, True)]
    assert f"note: StepFailed: attempt 2{' from its newest checkpoint' if keys else ''}" in ended.stderr
    assert (tmp_path / "results" / "result.txt").read_text() == f"{checkpoint}\n"


@pytest.mark.slow
def test_staged_files_are_restored(tmp_path: Path, write: Write) -> None:
    listing = [{"entryname": "staged.txt", "entry": "whole", "writable": True}]
    keys = {"requirements": {"InitialWorkDirRequirement": {"listing": listing}}}
    write(
        "[ ! -e {folder}/once ] && echo spoilt > staged.txt && touch {folder}/once && exit 75; mv staged.txt result.txt",
        keys,
    )
    ended = run(tmp_path)
    assert ended.exit_code == 0, ended.stderr
    assert (tmp_path / "results" / "result.txt").read_text() == "whole"


@pytest.mark.slow
@pytest.mark.parametrize(("code", "row", "tries"), [(65, {}, 1), (75, {"do": "stop"}, 1), (75, {"retries": 1}, 2)])
def test_repeated_failures_end_the_step(
    tmp_path: Path, write: Write, code: int, row: dict[str, Any], tries: int
) -> None:
    write(f"exit {code}", **row)
    ended = run(tmp_path)
    assert ended.exit_code == 1
    assert reactions(ended) == [*[("StepFailed", code, True)] * (tries - 1), ("StepFailed", code, False)]


@pytest.mark.slow
def test_ctrl_c_ends_the_wait_for_a_retry(tmp_path: Path, write: Write) -> None:
    write("exit 75", wait=3000)
    going = start(tmp_path)
    going.wait_for_line("attempt 2 in 3000 s")
    going.signal(signal.SIGINT)
    ended = going.wait(60)
    assert ended.exit_code != 0
    assert [event["type"] for event in ended.events][-1] == "run.ended"
