"""`search`: single trials, and trials side by side by Ray. tests/cwl/test_search.py has the same search under workflow engines."""

from __future__ import annotations

import ipaddress
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from medweave_core.contracts import codec
from medweave_core.contracts.search import SearchGrid, Trial
from medweave_core.errors import BackendMissingError, UserInputError
from medweave_steps.cli import main
from medweave_steps.io.model.folder import WEIGHTS_FILE, read_card
from medweave_steps.search.grid import trials_of, words_of
from medweave_steps.search.side_by_side import LOST, Spread, run_side_by_side
from medweave_steps.search.trial import Training, TrialSettings, train_to_its_end
from support.engine import wait_until
from support.processes import interrupted, started
from support.searches import TINY, parent_of_the_training_with, table_in, write_grid
from support.training_set import training_set

pytestmark = pytest.mark.slow  # each starts training processes, or waits for a fixture that does

METRIC = "validation_dice"
SHORT_EPOCHS = {"steps": 4, "epoch-steps": 2}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training_set(tmp_path_factory.mktemp("data"))


def settings(data: Path, **changes: Any) -> TrialSettings:
    return TrialSettings(**{"training_set": data, "num_threads": 1, "metric": METRIC} | changes)


def trial(**options: Any) -> Trial:
    (result,) = trials_of(SearchGrid(trials=(TINY | options,)))
    return result


def below(process: int) -> set[int]:
    """All processes below one, from /proc."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    result = {process}
    while more := {child for child, parent in parents.items() if parent in result} - result:
        result |= more
    return result - {process}


def listening(processes: set[int]) -> set[str]:
    """Addresses on which some processes wait for connections."""
    owned = set()
    for process in processes:
        for file in Path(f"/proc/{process}/fd").glob("*"):
            try:
                owned.add(str(file.readlink()).removeprefix("socket:[").removesuffix("]"))
            except OSError:
                continue
    result = set()
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in owned:
                digits = bytes.fromhex(words[1].partition(":")[0])
                packed = b"".join(
                    struct.pack("=I", *struct.unpack(">I", digits[i : i + 4])) for i in range(0, len(digits), 4)
                )
                result.add(socket.inet_ntop(family, packed))
    return result


# -- one trial --------------------------------------------------------------------------------------------------------


def test_a_killed_training_is_a_failed_row_and_leaves_no_half_model(data: Path, tmp_path: Path) -> None:
    training = Training(trial(**SHORT_EPOCHS | {"steps": 4000}), settings(data), tmp_path / "t")
    assert training.next_point() is not None
    os.kill(training._process.pid, signal.SIGKILL)
    while training.next_point() is not None:
        pass
    row = training.row()
    assert (row.state, row.exit_code, row.score) == ("failed", -9, None)
    assert row.cause == "ended by signal 9: perhaps the machine was out of memory"
    assert [path.name for path in (tmp_path / "t").iterdir()] == ["trial.json"]


def test_a_trial_on_two_nodes_has_the_weights_of_one_and_one_node_reports_of_it(data: Path, tmp_path: Path) -> None:
    on_two = trial(**SHORT_EPOCHS | {"strategy": "ddp", "ranks": 2})
    # The same on one node, where each rank has one of two threads, too.
    alone = ["train", *words_of(on_two.options), "--training-set", str(data), "--output", str(tmp_path / "alone")]
    alone += ["--training-log", str(tmp_path / "log"), "--run-report", str(tmp_path / "r.json"), "--num-threads", "2"]
    assert main(alone) == 0
    planned = tmp_path / "trial.json"
    planned.write_text(codec.dumps(on_two))
    words = ["search", "--part", "trial", "--trial", str(planned), "--training-set", str(data), "--output", "found"]
    (tmp_path / "gang").mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        meet = f"127.0.0.1:{probe.getsockname()[1]}"
    gang = {"MEDWEAVE_NUM_NODES": "2", "MEDWEAVE_RENDEZVOUS": meet, "PYTHONPATH": os.pathsep.join(sys.path)}
    nodes = [
        subprocess.Popen(
            [sys.executable, "-m", "medweave_steps", *words, "--threads-per-trial", "2"], cwd=tmp_path / "gang",
            env=os.environ | gang | {"MEDWEAVE_NODE_RANK": str(rank)}, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    message = [node.communicate(timeout=240)[1] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], message
    (row,) = table_in(tmp_path / "gang" / "found").rows
    assert (row.state, row.ranks) == ("completed", 2), row.cause
    assert row.weights_sha256 == read_card(tmp_path / "alone").files[WEIGHTS_FILE] != ""
    assert sorted(path.name for path in (tmp_path / "gang").iterdir()) == ["found", "run_report.json"]
    report = json.loads(next((tmp_path / "gang").glob("found/trials/*/run_report.json")).read_text())
    assert len(report["ranks"]) == 2


def test_a_trial_without_the_metric_has_failed_and_says_which_there_are(data: Path, tmp_path: Path) -> None:
    row = train_to_its_end(trial(**SHORT_EPOCHS), settings(data, metric="validation_nsd"), tmp_path / "t")
    assert row.state == "failed"
    assert row.cause.startswith("no metric validation_nsd; the metrics are ")
    assert METRIC in row.cause


def test_the_cause_is_what_train_says(data: Path, tmp_path: Path) -> None:
    wrong = train_to_its_end(trial(strides=[2, 2]), settings(data), tmp_path / "t")
    assert wrong.exit_code == 2
    assert wrong.cause.startswith("invalid value of --strides. seen: 2 2 expected: 1 numbers")
    unknown = train_to_its_end(trial(learnig=1), settings(data), tmp_path / "u")
    assert "unrecognized arguments: --learnig=1" in unknown.cause
    absent = train_to_its_end(trial(), settings(tmp_path / "none"), tmp_path / "v")
    assert absent.exit_code == 65
    assert str(tmp_path) not in absent.cause


def test_collect_refuses_what_is_no_result_and_the_same_trial_twice(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    grid = str(write_grid(tmp_path / "grid.json", rates=[-1.0]))
    assert main(["search", "--part", "plan", "--grid", grid, "--output", "planned"]) == 0
    one = ["search", "--part", "trial", "--trial", "planned/trial-0000.json", "--training-set", str(data)]
    assert main([*one, "--output", "one"]) == 0
    assert "note: trial" in capsys.readouterr().err
    collect = ["search", "--part", "collect", "--grid", grid, "--output", "all", "--results"]
    for results, message in (
        (["planned"], "is not the result of a search"), (["one", "one"], "belong to the same trial"),
        (["one"], "no trial of the search completed"),
    ):  # fmt: skip
        assert main([*collect, *results]) == UserInputError.exit_code
        assert message in capsys.readouterr().err
    assert not Path("all").exists()
    report = json.loads(Path("run_report.json").read_text())
    (row,) = report["results"]["rows"]
    assert row["state"] == "failed"
    assert row["started_at"] < row["ended_at"]


# -- side by side -----------------------------------------------------------------------------------------------------


def test_without_ray_it_is_reported_what_to_install(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    spread = Spread(slots=1, scheduler="all", grace_epochs=1, reduction_factor=2)
    with pytest.raises(BackendMissingError, match="ray") as message:
        run_side_by_side([trial()], settings(data), tmp_path, spread, lambda _: None)
    assert "medweave[search]" in message.value.do


def test_asha_stops_what_others_are_better_than_and_a_lost_process_is_a_row(data: Path, tmp_path: Path) -> None:
    # One after the other: the first would never end; the last learns nothing, which is visible after its first epoch.
    options = {name: value for name, value in TINY.items() if name != "steps"}
    endless = {"steps": 10**6, "learning-rate": 1e-9, "seed": 123456}
    grid = {
        "options": options | {"batch-size": 4, "patch-shape": [16, 16, 16]},
        "trials": [endless, *({"steps": 120, "learning-rate": rate} for rate in (0.02, 1e-9))],
    }
    (tmp_path / "grid.json").write_text(json.dumps(grid))
    words = ["search", "--grid", "grid.json", "--training-set", str(data), "--output", "o"]
    process = started([*words, "--scheduler", "asha", "--reduction-factor", "2"], folder=tmp_path)
    os.kill(parent_of_the_training_with("--seed=123456", process), signal.SIGKILL)
    _, message = process.communicate(timeout=400)
    assert process.returncode == 0, message
    assert "Traceback" not in message
    table = table_in(tmp_path / "o")
    lost, learnt, stopped = table.rows
    assert (lost.state, lost.cause) == ("failed", LOST)
    assert (learnt.state, learnt.epochs, table.best) == ("completed", 4, learnt.trial_id)
    assert learnt.score is not None
    assert learnt.score > 0.5
    assert (stopped.state, stopped.score, stopped.weights_sha256) == ("stopped", 0.0, "")
    assert 1 <= stopped.epochs < 4
    assert [path.name for path in (tmp_path / "o" / "trials" / stopped.trial_id).iterdir()] == ["trial.json"]
    assert table.most_at_once == 1


def test_ray_is_heard_on_this_machine_only_keeps_the_priority_and_ctrl_c_leaves_nothing(
    data: Path, tmp_path: Path
) -> None:
    grid = write_grid(tmp_path / "grid.json", rates=[0.001, 0.002], steps=4000)
    words = ["search", "--grid", str(grid), "--training-set", str(data), "--output", "o", "--slots", "2"]
    process = started(words, folder=tmp_path)
    deadline = time.monotonic() + 200
    while len(list(tmp_path.glob(".o.partial-*/trials/*"))) < 2:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.1)
    (session,) = Path("/tmp").glob(f"mw-*/session_*_{process.pid}")
    family = below(process.pid)
    heard = listening(family)
    worker = parent_of_the_training_with("--learning-rate=0.001", process)
    assert os.getpriority(os.PRIO_PROCESS, worker) == os.getpriority(os.PRIO_PROCESS, 0)
    code, message = interrupted(process)
    assert code == 130, message
    assert "interrupted; removed partial outputs" in message
    assert heard
    assert all(ipaddress.ip_address(address).is_loopback for address in map(plain, heard)), heard
    wait_until(lambda: not any(map(lives, family)), timeout_s=30)  # a killed process takes a moment to end
    assert [item for item in family if lives(item)] == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["grid.json"]
    assert not session.parent.exists()


def plain(address: str) -> str:
    return address.removeprefix("::ffff:")


def lives(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
