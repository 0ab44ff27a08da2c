"""Text of a job or a site is data: whatever it holds, a parser returns a value or its own error, and nothing else.

The parsers of remote text, each fuzzed here: progress lines and notices (`record.output`), answers of a login node
(`slurm.answers`, `slurm.left_commands`, `slurm.site_look`), what pods, kubelets and the API server write (`pods.pod`,
`pods.exec`, `pods.api`, `kubernetes.job.script`), the machine of ssh (`ssh.hardware`), helm's records,
the agents of direct transfers (`transfer.direct.commands`), and the event log as the driver reads it (`medweave.history`).
"""

from __future__ import annotations

import base64
import contextlib
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from medweave.provision import command
from medweave_connectors.runlog.job_output import MOST_NOTICES, JobOutput
from medweave_connectors.runlog.run import RunRecord
from medweave_connectors.sites.helm import commands as helm_commands
from medweave_connectors.sites.kubernetes.job import script as job_script
from medweave_connectors.sites.pods.api.namespace_client import ApiServerError, read_pod, select_events
from medweave_connectors.sites.pods.exec import commands as pod_commands
from medweave_connectors.sites.pods.exec import execution
from medweave_connectors.sites.pods.objects.pod import ClusterEvent
from medweave_connectors.sites.pods.objects.pod_states import judge
from medweave_connectors.sites.pods.startup.messages import describe_pods
from medweave_connectors.sites.slurm import answers, reattach_commands, site_survey
from medweave_connectors.sites.slurm.messages import ServiceLabel, site_word
from medweave_connectors.sites.slurm.service import Allocation, Service
from medweave_connectors.sites.slurm.states import judge as judge_words
from medweave_connectors.sites.slurm.states import shell_exit_code
from medweave_connectors.sites.ssh.hardware import parse_hardware
from medweave_connectors.transfer.routes.direct import commands as direct
from medweave_core.contracts.progress import JSON_PREFIX, duration
from medweave_core.errors import UserInputError
from medweave_core.runlog.history import read_events
from medweave_core.runlog.run_folder import STDERR
from medweave_core.runlog.run_state import RunState, fold
from medweave_core.untrusted_text import load_json, number, plain, plain_line, plain_value, whole_number
from support.job_record import events_of, run_with_job

HUGE = "9" * 5000
DEEP = "[" * 20000
WORDS = st.sampled_from(
    ["0", "1", "-1", "255", "256", HUGE, "inf", "nan", "1e999", "1.2.3", "٣", "²", "COMPLETED", "RUNNING", "UNKNOWN", "None",
     "|", " ", "", "=", ":", ",", "\t", "\r", "\x0b", "\x0c", "\x1c", "\x1e", "\x85", "\u2028", "\0", "\x1b[2J", "\x1b]0;x\x07",
     "�", "é", "medweave-end", "2026-01-01T00:00:00", "2026-01-01T00:00:00+02:00", "Unknown", "99999999999-00:00:00",
     "1-1:2:3:4:5", "K", "12K", base64.b64encode(b"x").decode()]
)  # fmt: skip
MARKS = st.sampled_from(
    ["job ", "text ", "ended ", "squeue ", "sacct ", "scontrol ", "file ", "tail ", "of ", "code ", "missing ", "partition ",
     "name ", "trial ", "JobState=", "ExitCode=", "RunTime=", "TimeLimit=", ""]
)  # fmt: skip
LINES = st.lists(
    st.tuples(MARKS, st.lists(WORDS, max_size=14).map("|".join) | st.lists(WORDS, max_size=7).map(" ".join)), max_size=6
).map(lambda lines: "\n".join(mark + text for mark, text in lines))
TEXT = LINES | st.text(max_size=80)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([HUGE, "inf", "Ki", "1m"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FAST = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunRecord:
    return run_with_job(tmp_path, monkeypatch)


@FAST
@given(
    data=st.lists(
        st.binary(max_size=200) | st.sampled_from([b"medweave-progress ", b"x: note: ", b"\n", b"\r", b"\0"]),
        max_size=8,
    )
)
def test_any_bytes_of_a_job_are_lines(run: RunRecord, data: list[bytes]) -> None:
    output = JobOutput("/train/0")
    for piece in data:
        output.stderr(piece)
        output.stdout(piece)
    output.close()
    outcome = output.outcome(exit_code=1, seconds=1.0)
    assert outcome.cause == plain(outcome.cause)
    assert not any(ord(character) < 32 for line in output.stderr_tail for character in line.replace("\t", ""))


def test_a_hundred_megabytes_without_a_line_feed_are_cut(run: RunRecord) -> None:
    output = JobOutput("/train/0")
    for _ in range(1600):
        output.stderr(b"x" * 65536)
    output.close()
    assert sum(map(len, output.stderr_tail)) < 2**20


def test_a_flood_of_lines_is_not_a_flood_of_events(run: RunRecord, capsys: pytest.CaptureFixture[str]) -> None:
    output = JobOutput("/train/0")
    output.stderr(b'medweave-progress {"unit":"x","done":1,"total":2,"seconds_left":1}\ntrain: note: again\n' * 5000)
    kinds = [event["type"] for event in events_of(run)]
    assert kinds.count("notice") == MOST_NOTICES
    assert kinds.count("job.progress") < 500
    assert len(capsys.readouterr().err.splitlines()) < 1000


def test_control_characters_of_a_job_reach_neither_terminal_nor_log(
    run: RunRecord, capsys: pytest.CaptureFixture[str]
) -> None:
    output = JobOutput("/train/0")
    attack = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202edcm.exe\x00 end"
    progress = json.dumps({"unit": attack, "done": 1, "total": 2, "seconds_left": 1.0, "detail": attack})
    output.stderr(f"train: note: {attack}\n{JSON_PREFIX}{progress}\nmedweave-step train: {attack}\n".encode())
    run.command_ended("/train/0", output.outcome(exit_code=65, seconds=1.0))
    run.job_ended("/train/0", "failed")
    printed = capsys.readouterr().err
    logged = (run.folder / "events.jsonl").read_text()
    followed = (run.work / STDERR / "train").read_text()
    for text in (printed, json.loads(logged.splitlines()[-1])["data"]["message"], followed):
        assert "end" in text
        assert text == plain(text)
    assert "\\u001b" not in logged


@FAST
@given(text=st.text(max_size=60))
def test_plain_text_stays_plain(text: str) -> None:
    assert plain(plain(text)) == plain(text)
    assert len(plain_line(text * 50, most=100)) <= 100
    assert "\n" not in plain_line(text)
    plain(text).encode()


@pytest.mark.parametrize("text", [DEEP, HUGE, "NaN", "[1e999]", "\ud800", b"\xff\xfe", "", "{"])
def test_any_json_is_a_value_or_a_value_error(text: str | bytes) -> None:
    with contextlib.suppress(ValueError):
        json.dumps(load_json(text), allow_nan=False)


def test_values_for_the_event_log_are_bounded() -> None:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    assert json.dumps(plain_value({"a": math.inf, "b": deep, "\x1b[2J": "\x00"}), allow_nan=False)


@pytest.mark.parametrize("text", [HUGE, "inf", "nan", "1e999", "", "²", "1_0", "x"])
def test_a_number_is_bounded_or_none(text: str) -> None:
    assert whole_number(text) is None
    value = number(text)
    assert value is None or abs(value) < 100


@pytest.mark.parametrize("seconds", [math.inf, -math.inf, math.nan, 1e308, -5.0])
def test_a_duration_is_always_a_text(seconds: float) -> None:
    assert duration(seconds)


@FAST
@given(text=TEXT)
def test_answers_of_a_login_node(text: str) -> None:
    """An incomplete answer is a ValueError; all other text is data, and exit codes are in bounds."""
    for answer in (text, f"{text}\n{answers.END}\n"):
        with contextlib.suppress(ValueError):
            job_id, _ = answers.parse_submission(answer)
            assert job_id == "" or job_id.isascii()
            answers.parse_poll(answer)
            answers.read_checkpoint(answer)
            reattach_commands.parse_status(answer)
            reattach_commands.read_move(answer)
            site_survey.parse_survey(answer, {"gpu": Service(partition="p")})
            for part in (answer, *answers.split_by_job(answer).values()):
                end = answers.parse_final_report(part, "1", "token")
                word = judge_words(end.sacct, end.scontrol, end.exit_file, purged=end.purged)
                if word is not None:
                    assert 0 <= shell_exit_code(word, end.scontrol, end.exit_file) <= 255
                    allocation = Allocation(num_nodes=1, cores=1, memory_mib=1, gpus=0, minutes=None)
                    text_of_site = site_word(
                        "1", word, allocation, ServiceLabel(name="hpc", setting="s"), out_of_memory=False
                    )
                    assert text_of_site == plain(text_of_site)
    answers.mebibytes(text)
    seconds = answers.seconds(text)
    assert seconds is None or math.isfinite(seconds)


def test_line_separators_in_a_jobs_words_make_no_further_lines() -> None:
    spoof = f"file exit 1 1 2 n1\x0cscontrol JobState=COMPLETED ExitCode=0:0\u2028of 2\n{answers.END}"
    end = answers.parse_final_report(spoof, "1")
    assert end.scontrol is None
    assert end.exit_file is not None
    assert end.exit_file.exit_code == 1


POD: dict[str, Any] = {
    "metadata": {"name": "w-0", "uid": "1"},
    "spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}], "volumes": [{"name": "v"}]},
    "status": {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [{"name": "c", "state": {"terminated": {"exitCode": 1, "message": "bye"}}}],
    },
}  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to all parts of a document."""
    keys: Any = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [path, *(below for key in keys for below in places(value[key], (*path, key)))]


@FAST
@given(where=st.sampled_from([path for path in places(POD) if path]), value=VALUES)
def test_a_pod_with_any_value_in_any_place(where: tuple[Any, ...], value: Any) -> None:
    document = json.loads(json.dumps(POD))
    part = document
    for key in where[:-1]:
        part = part[key]
    part[where[-1]] = value
    with contextlib.suppress(ApiServerError):
        pod = read_pod(document)
        with contextlib.suppress(AttributeError, TypeError):  # a kind that the API server does not send
            judge(pod)
            for line in describe_pods([pod]):
                assert line == plain(line)


@FAST
@given(data=st.binary(max_size=60) | VALUES.map(lambda value: json.dumps(value).encode()))
def test_a_kubelets_words_about_an_end(data: bytes) -> None:
    code, message = execution.read_status(data)
    assert code is None or code >= 0
    assert message == plain_line(message)
    own = execution.ExitCodeFilter(b"mark ")
    own.feed(b"x mark " + data + b"\n")
    assert own.exit_code is None or own.exit_code >= 0


def test_a_status_that_is_nested_deeply_is_an_unknown_end() -> None:
    assert execution.read_status(DEEP.encode())[0] is None


@FAST
@given(
    text=st.lists(
        st.sampled_from(
            ["pid", "memory.events", "oom_kill", "cpu.stat", "usage_usec", "memory.max", "max", "cpuacct.usage"]
        )
        | WORDS,
        max_size=5,
    )
)
def test_counters_of_a_container(text: list[str]) -> None:
    counters = pod_commands.parse_counters([pod_commands.MARK + " ".join(text)])
    assert pod_commands.explain_failure(137, pod_commands.Counters(), counters) is not None
    job_script.read_end(f"code {' '.join(text)}\n{pod_commands.MARK}{' '.join(text)}")


def test_a_job_cannot_name_another_process_as_its_own() -> None:
    counters = pod_commands.parse_counters([f"{pod_commands.MARK}pid 7 8", f"{pod_commands.MARK}pid 1 1"])
    assert counters.group is not None
    assert (counters.group.number, counters.command) == (7, 8)


@FAST
@given(text=TEXT)
def test_other_parsers_of_a_sites_text(text: str) -> None:
    with contextlib.suppress(ValueError):
        parse_hardware(text)
    facts = direct.parse_message(f"medweave-direct {text}".encode())
    assert facts is None or isinstance(facts, dict)
    helm_commands.parse_releases([{"labels": {"name": text, "version": text}}])


def test_events_without_a_time_zone_are_compared() -> None:
    import datetime

    since = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    moments = [
        (moment, ClusterEvent("w-0", "Killing", "")) for moment in ("", "2026-02-01T00:00:00", "2026-02-01T00:00:00Z")
    ]
    assert len(select_events(moments, ["w-0"], since)) == 2


@FAST
@given(
    value=VALUES,
    kind=st.sampled_from(["job.progress", "job.ended", "notice", "transfer.ended", "transfer.progress", "run.ended"]),
)
def test_an_event_log_with_odd_data_is_followed_or_called_damaged(value: Any, kind: str) -> None:
    names = (
        "done",
        "total",
        "text",
        "state",
        "seconds",
        "bytes",
        "message",
        "site",
        "left_out",
        "attempt",
        "exit_code",
    )
    line = {
        "sequence": 2,
        "time": "2026-01-01T00:00:01+00:00",
        "run_id": "r",
        "type": kind,
        "job": "/a/0",
        "step": "/a",
    }
    data = dict.fromkeys(names, value)
    first = {**line, "sequence": 1, "type": "job.scheduled", "data": {}}
    with contextlib.suppress(UserInputError):
        for item in (first, {**line, "data": data}):
            text = json.dumps(item)
            for event in read_events(text + "\n"):
                fold(RunState(), event)


@pytest.mark.parametrize("text", ["", "{", "[]", DEEP, '{"version": 3}', '{"executable": "x"}', "welcome"])
def test_a_site_that_prints_no_python_is_no_internal_error(text: str) -> None:
    assert command._python_of(text) is None
    assert command._last_object(text) in (None, {"version": 3}, {"executable": "x"})
