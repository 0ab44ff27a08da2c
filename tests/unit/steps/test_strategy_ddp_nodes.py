"""`medweave-step train` with `ddp` and `hybrid` as a user meets it, on one node and on two that share this machine."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from medweave_steps.cli import main
from medweave_steps.io.model.folder import read_card
from medweave_steps.runtime.monitor import read_recordings
from support.processes import wait_for_line
from support.training_set import TINY, training_set
from support.weights import assert_equal_weights

pytestmark = pytest.mark.slow  # each starts training processes, or waits for a fixture that does


def words(folder: Path, *options: str, name: str = "model", data: Path | None = None) -> list[str]:
    values = ["train", "--training-set", str(data or folder / "data"), "--output", str(folder / name)]
    values += ["--training-log", str(folder / f"{name}_log"), "--run-report", str(folder / f"{name}_report.json")]
    return [*values, *TINY, "--num-threads", "1", *options]


def node(
    folder: Path, *options: str, rank: int, port: int, name: str = "model", data: Path | None = None
) -> subprocess.Popen[str]:
    """One of two nodes."""
    place = {
        "MEDWEAVE_NODE_RANK": str(rank),
        "MEDWEAVE_NUM_NODES": "2",
        "MEDWEAVE_RENDEZVOUS": f"127.0.0.1:{port}",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    return subprocess.Popen(
        [sys.executable, "-m", "medweave_steps", *words(folder, *options, name=name, data=data)],
        env=os.environ | place, cwd=folder, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def two_nodes(
    folder: Path, *options: str, name: str = "model", data: Path | None = None
) -> list[subprocess.Popen[str]]:
    port = free_port()
    return [node(folder, *options, rank=rank, port=port, name=name, data=data) for rank in range(2)]


FOUR = ("--batch-size", "4", "--strategy", "ddp", "--ranks", "4")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data/, and model/ trained by four ranks on one node."""
    folder = tmp_path_factory.mktemp("trained")
    training_set(folder / "data", ("train", "train", "validation", "validation", "validation"))
    saved = ("--checkpoint-folder", str(folder / "saved"), "--checkpoint-interval", "4")
    assert main(words(folder, *FOUR, *saved)) == 0
    return folder


def test_the_report_reports_what_each_rank_did(trained: Path) -> None:
    report = json.loads((trained / "model_report.json").read_text())
    assert [facts["rank"] for facts in report["ranks"]] == [0, 1, 2, 3]
    for facts in report["ranks"]:
        assert facts["host"] == socket.gethostname()
        assert (facts["device"], facts["num_threads"], facts["samples"]) == ("cpu", 1, 6)
        assert facts["seconds"] > 0
    assert [case["case_id"] for case in report["cases"]] == ["case-2", "case-3", "case-4"]
    assert {"torch", "monai"} <= set(report["versions"])
    card = read_card(trained / "model")
    assert (card.training["strategy"], card.training["world_size"]) == ("ddp", 4)
    assert [p["step"] for p in json.loads((trained / "model_log/curves.json").read_text()) if "dice" in p] == [2, 4, 6]


def test_two_nodes_resume_to_the_weights_of_an_uninterrupted_training_and_one_node_writes(
    trained: Path, tmp_path: Path
) -> None:
    # The checkpoint is that of step 4 of 6. test_strategy_search.py trains on two nodes from the first step.
    resumed = ("--threads-per-rank", "1", "--resume-from", str(trained / "saved"))
    nodes = two_nodes(tmp_path, *FOUR, *resumed, data=trained / "data")
    outputs = [process.communicate(timeout=180)[1] for process in nodes]
    assert [process.returncode for process in nodes] == [0, 0], outputs
    assert_equal_weights(trained / "model", tmp_path / "model")
    curves = [(folder / "model_log" / "curves.json").read_text() for folder in (trained, tmp_path)]
    assert curves[0] == curves[1]
    assert read_card(trained / "model").metrics == read_card(tmp_path / "model").metrics
    assert "epoch 3/3" in outputs[0]
    assert outputs[1] == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "model_log", "model_report.json"]
    recordings = read_recordings(tmp_path / "model_log")
    assert [recording.rank for recording in recordings] == [0, 1, 2, 3], "the second node's files come at the end"
    machine_wide = [any("network_sent_bytes" in sample for sample in recording.samples) for recording in recordings]
    assert machine_wide == [True, False, False, False], "both nodes are one machine here"
    assert all(recording.energy("processor") is not None for recording in recordings)


def test_stages_on_two_nodes_give_the_weights_of_one_node(trained: Path, tmp_path: Path) -> None:
    stages = ("--batch-size", "4", "--strategy", "hybrid", "--ranks", "2", "--stages", "2", "--threads-per-rank", "1")
    nodes = two_nodes(tmp_path, *stages, data=trained / "data")
    outputs = [process.communicate(timeout=180)[1] for process in nodes]
    assert [process.returncode for process in nodes] == [0, 0], outputs
    assert "train: note: hybrid: 2 stages x 1 replica; stage 0: model.0" in outputs[0]
    assert outputs[1] == ""
    assert main(words(tmp_path, *stages, name="one node", data=trained / "data")) == 0
    assert_equal_weights(tmp_path / "model", tmp_path / "one node")
    assert read_card(tmp_path / "model").metrics == read_card(tmp_path / "one node").metrics


def test_ddp_of_one_rank_is_single_bit_for_bit(trained: Path, tmp_path: Path) -> None:
    for name, options in (("single", ()), ("ddp", ("--strategy", "ddp"))):
        assert main(words(tmp_path, *options, name=name, data=trained / "data")) == 0
    assert_equal_weights(tmp_path / "single", tmp_path / "ddp")
    curves = [(tmp_path / f"{name}_log" / "curves.json").read_text() for name in ("single", "ddp")]
    assert curves[0] == curves[1]


LONG = (
    "--strategy",
    "ddp",
    "--ranks",
    "2",
    "--steps",
    "100000",
    "--epoch-steps",
    "20",
    "--validation-interval",
    "100000",
)


def test_a_signal_to_one_node_ends_both_with_a_checkpoint(trained: Path, tmp_path: Path) -> None:
    nodes = two_nodes(tmp_path, *LONG, "--checkpoint-folder", str(tmp_path / "saved"), data=trained / "data")
    wait_for_line(nodes[0], "epoch 2/")
    nodes[1].send_signal(signal.SIGTERM)
    outputs = [process.communicate(timeout=60)[1] for process in nodes]
    assert [process.returncode for process in nodes] == [143, 143], outputs
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model_log", "saved"]

    from medweave_steps.training.loop.checkpoint import read_checkpoint

    assert read_checkpoint(tmp_path / "saved")["state"]["step"] >= 40


def test_a_node_that_is_killed_ends_the_other_within_a_minute_with_its_error(trained: Path, tmp_path: Path) -> None:
    nodes = two_nodes(tmp_path, *LONG, data=trained / "data")
    wait_for_line(nodes[0], "epoch 1/")
    nodes[1].kill()
    killed = time.monotonic()
    outputs = nodes[0].communicate(timeout=60)[1]
    assert time.monotonic() - killed < 60
    assert nodes[0].returncode == 75
    assert "medweave-step train: rank 0 on " in outputs
    assert "lost the connection to the other ranks" in outputs
    assert [path.name for path in tmp_path.iterdir()] == ["model_log"], "the curves so far"


def test_a_loss_that_is_not_a_number_ends_all_ranks_and_leaves_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    training_set(tmp_path / "data")
    volume = np.load(tmp_path / "data/cases/case-0/volume.npy")
    volume[:] = np.nan
    np.save(tmp_path / "data/cases/case-0/volume.npy", volume)
    assert main(words(tmp_path, "--batch-size", "8", "--strategy", "ddp", "--ranks", "2")) == 70
    message = capfd.readouterr().err
    assert "the loss is NaN or infinite at step 1." in message
    assert re.search(
        r"on patches of case-0 \(\d of 8 patches\); the volume of case-0 contains NaN or infinite values", message
    ), message
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--ranks", "2"), "1, or choose --strategy ddp"),
        (("--strategy", "ddp", "--ranks", "3"), "1 to 2: every rank needs at least one patch of --batch-size"),
        (("--strategy", "ddp", "--ranks", "0"), "1 to 2"),
        (("--threads-per-rank", "0"), "at least 1"),
    ],
)
def test_ranks_that_cannot_be_are_refused(
    trained: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], options: tuple[str, ...], expected: str
) -> None:
    assert main(words(tmp_path, *options, data=trained / "data")) == 2
    assert expected in capfd.readouterr().err


def test_single_on_several_nodes_computes_on_the_first_one(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MEDWEAVE_NUM_NODES", "2")
    monkeypatch.setenv("MEDWEAVE_RENDEZVOUS", "127.0.0.1:1")
    monkeypatch.setenv("MEDWEAVE_NODE_RANK", "1")
    assert main(words(tmp_path, data=trained / "data")) == 0
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("MEDWEAVE_NODE_RANK", "0")
    assert main(words(tmp_path, data=trained / "data")) == 0
    assert "2 nodes were started, but --strategy single uses only the first node" in capfd.readouterr().err
    report = json.loads((tmp_path / "model_report.json").read_text())
    assert [facts["samples"] for facts in report["ranks"]] == [12]
