"""`medweave-step train-distributed`: the same outputs under each engine, and refusals."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from medweave_core.contracts import codec
from medweave_steps.cli import main
from medweave_steps.io.model.folder import card_sha256, read_card, write_card
from support import fake_pycompss
from support.continued import folder_to_continue, words
from support.model_folders import tiny_card, trained_model
from support.weights import assert_equal_weights, weights

pytestmark = pytest.mark.slow  # each starts training processes, or waits for a fixture that does


@pytest.fixture(scope="module")
def continued(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data/, parent/, and model/ continued in order."""
    folder = folder_to_continue(tmp_path_factory.mktemp("continued"))
    assert main(words(folder)) == 0
    return folder


def report_of(folder: Path, name: str = "model") -> dict[str, object]:
    result: dict[str, object] = json.loads((folder / f"{name}_report.json").read_text())
    return result


def test_the_card_names_its_parent_and_how_it_was_trained(continued: Path) -> None:
    parent, card = read_card(continued / "parent"), read_card(continued / "model")
    assert card.parent_sha256 == card_sha256(parent)
    assert (card.architecture, card.input, card.labels) == (parent.architecture, parent.input, parent.labels)
    assert card.data_sha256 == "ab" * 32
    assert card.synthetic_data is True
    message = card.training
    assert (message["strategy"], message["engine"], message["rounds"], message["replicas"]) == (
        "local-sgd",
        "in-order",
        3,
        2,
    )
    assert message["steps_done"] == 40 + 2 * message["best_round"]
    assert "validation_dice" in card.metrics
    assert any(
        (weights(continued / "parent")[n] != weights(continued / "model")[n]).any()
        for n in weights(continued / "parent")
    )


def test_the_report_reports_rounds_and_replicas(continued: Path) -> None:
    report = report_of(continued)
    ranks, results = report["ranks"], report["results"]
    num_bytes = sum(array.nbytes for array in weights(continued / "model").values())
    # Three patches a step for two replicas: two for the first, one for the second, in six steps each.
    assert [(facts["rank"], facts["host"], facts["samples"]) for facts in ranks] == [
        (0, socket.gethostname(), 12), (1, socket.gethostname(), 6),
    ]  # fmt: skip
    assert results["engine"] == "in-order"
    assert [record["round"] for record in results["rounds"]] == [1, 2, 3]
    for record in results["rounds"]:
        assert record["hosts"] == [socket.gethostname()] * 2
        assert record["divergence"] > 0
        assert record["synchronised_bytes"] == 2 * num_bytes, "what two replicas give, once"
    assert [case["case_id"] for case in report["cases"]] == ["case-2", "case-3", "case-4"]
    message = results["training"]
    assert message["synchronised_bytes"] == 3 * 2 * num_bytes
    assert message["step_seconds"] == pytest.approx(ranks[0]["seconds"], abs=1e-3)
    assert 0 <= message["data_wait_seconds"] <= message["step_seconds"]
    in_rounds = sum(record["seconds"] for record in results["rounds"])
    assert message["patches_per_second"] == pytest.approx(18 / in_rounds, rel=1e-2)


def test_the_optimiser_of_a_replica_continues_from_round_to_round(
    continued: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With one replica there is nothing to average: six rounds of a step are one round of six.
    import medweave_steps.tasks.segmentation.validation as validate

    rising = iter(range(100))
    monkeypatch.setattr(validate, "score", lambda figures: float(next(rising)))
    for name, rounds, steps in (("six", "6", "1"), ("one", "1", "6")):
        options = ("--replicas", "1", "--rounds", rounds, "--steps-per-round", steps)
        assert main(words(tmp_path, *options, name=name, data=continued)) == 0
    assert_equal_weights(tmp_path / "six", tmp_path / "one")
    points = json.loads((tmp_path / "six_log/curves.json").read_text())
    assert [point["step"] for point in points if "dice" in point] == [41, 42, 43, 44, 45, 46]


def test_curves_continue_where_the_parents_ended(continued: Path, tmp_path: Path) -> None:
    before = [{"step": 40, "loss": 0.5, "learning_rate": 1e-4}, {"step": 40, "dice": 0.1}]
    (tmp_path / "log").mkdir()
    (tmp_path / "log/curves.json").write_text(json.dumps(before))
    assert main(words(tmp_path, "--continues-log", str(tmp_path / "log"), data=continued)) == 0
    points = json.loads((tmp_path / "model_log/curves.json").read_text())
    assert points[:2] == before
    assert [point["step"] for point in points[2:]] == [42, 42, 44, 44, 46, 46]
    own = json.loads((continued / "model_log/curves.json").read_text())
    assert points[2:] == own
    assert (tmp_path / "model_log/events.out.tfevents.0.medweave").is_file()


def test_in_order_twice_gives_the_same_weights(continued: Path, tmp_path: Path) -> None:
    assert main(words(tmp_path, data=continued)) == 0
    assert_equal_weights(continued / "model", tmp_path / "model")


def test_another_number_of_replicas_gives_other_weights(continued: Path, tmp_path: Path) -> None:
    assert main(words(tmp_path, "--replicas", "3", data=continued)) == 0
    first, second = weights(continued / "model"), weights(tmp_path / "model")
    assert any((first[name] != second[name]).any() for name in first)


def test_ranks_on_two_nodes_give_the_weights_of_in_order_bit_for_bit(continued: Path, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = os.environ | {
        "MEDWEAVE_NUM_NODES": "2", "MEDWEAVE_RENDEZVOUS": f"127.0.0.1:{port}", "MEDWEAVE_ENGINE": "ddp",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }  # fmt: skip
    command = [sys.executable, "-m", "medweave_steps", *words(tmp_path, "--threads-per-replica", "1", data=continued)]
    nodes = [
        subprocess.Popen(
            command, env=common | {"MEDWEAVE_NODE_RANK": str(rank)}, cwd=tmp_path, stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    message = [process.communicate(timeout=180)[1] for process in nodes]
    assert [process.returncode for process in nodes] == [0, 0], message
    assert_equal_weights(continued / "model", tmp_path / "model")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "model_log", "model_report.json"]
    report, in_order = report_of(tmp_path), report_of(continued)
    assert report["results"]["engine"] == "ddp"
    assert [facts["samples"] for facts in report["ranks"]] == [12, 6]
    assert report["results"]["metrics"] == in_order["results"]["metrics"]
    assert report["cases"] == in_order["cases"]
    assert (tmp_path / "model_log/curves.json").read_text() == (continued / "model_log/curves.json").read_text()
    assert "round 3/3" in message[0]
    assert message[1] == ""


def test_compss_submits_a_round_before_it_waits_and_gives_the_same_weights(
    continued: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = fake_pycompss.install(monkeypatch)
    monkeypatch.setenv("MEDWEAVE_ENGINE", "compss")
    assert main(words(tmp_path, data=continued)) == 0
    tally = ["task tally_task", "task tally_task", "wait", "wait", "delete", "delete"]
    # What a round deletes: the weights it started from, and the two memories that its tasks have read.
    train = ["task train_task", "task train_task", "wait", "wait", "delete", "delete", "delete"]
    start = ["task ability_task", "task ability_task", "wait", "wait"]
    assert calls == start + tally + (train + tally) * 3 + tally
    assert_equal_weights(continued / "model", tmp_path / "model")
    results = report_of(tmp_path)["results"]
    assert (results["engine"], results["compss_runtime"]) == ("compss", True)
    assert results["training"]["energy"]["missing"] == ["the work runs on COMPSs workers, whose counters are not read"]
    assert read_card(tmp_path / "model").training["engine"] == "compss"


def test_compss_without_its_runtime_runs_in_order_and_says_so(
    continued: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_pycompss.install(monkeypatch, in_runtime=False)
    assert main(words(tmp_path, "--engine", "compss", data=continued)) == 0
    assert_equal_weights(continued / "model", tmp_path / "model")
    results = report_of(tmp_path)["results"]
    assert (results["engine"], results["compss_runtime"]) == ("compss", False)


def test_the_error_of_a_task_is_raised_on_the_master_and_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    calls = fake_pycompss.install(monkeypatch)
    folder = folder_to_continue(tmp_path)
    volume = np.load(folder / "data/cases/case-0/volume.npy")
    volume[:] = np.nan
    np.save(folder / "data/cases/case-0/volume.npy", volume)
    assert main(words(folder, "--engine", "compss", "--batch-size", "16")) == 70
    message = capfd.readouterr().err
    assert "the loss is NaN or infinite at step 41." in message
    assert "do:       run preprocess again on these cases" in message, "the message comes from the task's process"
    assert calls.count("task train_task") == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "parent"]


def test_compss_that_is_not_installed_is_never_replaced(
    continued: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pycompss", None)
    assert main(words(tmp_path, "--engine", "compss", data=continued)) == 69
    message = capfd.readouterr().err
    assert "--engine compss is not available on this machine" in message
    assert "choose --engine ddp or in-order" in message
    assert list(tmp_path.iterdir()) == []


def test_the_model_that_was_given_is_kept_where_no_round_was_better(
    continued: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import medweave_steps.tasks.segmentation.validation as validate

    falling = iter(range(100, 0, -1))
    monkeypatch.setattr(validate, "score", lambda figures: float(next(falling)))
    assert main(words(tmp_path, data=continued)) == 0
    assert_equal_weights(continued / "parent", tmp_path / "model")
    card = read_card(tmp_path / "model")
    assert (card.training["best_round"], card.training["steps_done"]) == (0, 40)
    assert any("no round improved the validation score" in notice for notice in report_of(tmp_path)["notices"])


def test_other_engines_on_several_nodes_work_from_the_first_one(
    continued: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MEDWEAVE_NUM_NODES", "2")
    monkeypatch.setenv("MEDWEAVE_RENDEZVOUS", "127.0.0.1:1")
    monkeypatch.setenv("MEDWEAVE_NODE_RANK", "1")
    assert main(words(tmp_path, data=continued)) == 0
    assert list(tmp_path.iterdir()) == []
    assert "--engine in-order runs on the first node only" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--rounds", "0"), 2, "invalid value of --rounds"),
        (("--steps-per-round", "0"), 2, "invalid value of --steps-per-round"),
        (("--replicas", "4"), 2, "1 to 3: every replica needs at least one patch of --batch-size"),
        (("--threads-per-replica", "0"), 2, "invalid value of --threads-per-replica"),
        (("--learning-rate", "0"), 2, "invalid value of --learning-rate"),
        (("--patch-shape", "9", "8", "8"), 2, "multiples of 2, as in the model card"),
        (("--continues-log", "none"), 65, "the training log to extend (curves.json) cannot be read"),
    ],
)
def test_values_that_cannot_be_used_are_refused(
    continued: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    code: int,
    message: str,
) -> None:
    assert main(words(tmp_path, *options, data=continued)) == code
    assert message in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_patch_must_fit_the_strides_of_each_axis(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = {
        "in_channels": 1, "out_channels": 1, "channels": [4, 8, 8], "strides": [[1, 1, 1], [2, 2, 1], [2, 2, 2]],
        "kernels": [[3, 3, 3]] * 3, "blocks": [1, 1, 1],
    }  # fmt: skip
    architecture = {"class": "medweave_steps.networks.resenc.ResEncUnet", "arguments": arguments}
    folder_to_continue(tmp_path)
    shutil.rmtree(tmp_path / "parent")
    (tmp_path / "parent").mkdir()
    contract = dataclasses.replace(tiny_card().input, patch_shape=(24, 20, 16), patch_multiple=2)
    trained_model(tmp_path / "parent", architecture=architecture, input=contract)
    assert main(words(tmp_path, "--patch-shape", "8", "6", "8")) == 2
    assert "multiples of 4 4 2, as in the model card" in capfd.readouterr().err
    assert main(words(tmp_path, "--patch-shape", "8", "8", "6", "--rounds", "1")) == 0


def test_an_engine_that_the_deployment_misspells_is_refused(
    continued: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MEDWEAVE_ENGINE", "comps")
    assert main(words(tmp_path, data=continued)) == 2
    assert "MEDWEAVE_ENGINE='comps'" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"precision": "int8"}, "precision int8"),
        ({"input": {"spacing_mm": (1.0, 1.0, 1.0)}}, "spacing (2.0, 2.0, 2.0) mm"),
    ],
)
def test_models_that_cannot_be_continued_are_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], changes: dict[str, object], message: str
) -> None:
    folder = folder_to_continue(tmp_path)
    card = read_card(folder / "parent")
    if isinstance(changes.get("input"), dict):
        changes = {"input": dataclasses.replace(card.input, **changes["input"])}
    write_card(folder / "parent", dataclasses.replace(card, **changes))
    assert main(words(folder)) == 65
    assert message in capfd.readouterr().err


def test_a_changed_file_of_the_model_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = folder_to_continue(tmp_path)
    with (folder / "parent/models/model.safetensors").open("ab") as file:
        file.write(b"x")
    assert main(words(folder)) == 65
    assert "was modified after its model card was written" in capfd.readouterr().err


def test_a_network_with_two_channels_is_continued_with_both(tmp_path: Path) -> None:
    # A Bundle's softmax network: the difference of its channels is trained, the network is written.
    folder = folder_to_continue(tmp_path)
    from support.model_folders import TINY_UNET, trained_model

    card = read_card(folder / "parent")
    two = {**TINY_UNET, "arguments": {**TINY_UNET["arguments"], "out_channels": 2}, "output": "softmax"}
    trained_model(folder / "parent", architecture=two, input=card.input)
    assert main(words(folder, "--rounds", "1")) == 0
    before, after = weights(folder / "parent"), weights(folder / "model")
    assert before.keys() == after.keys()
    assert {name: array.shape for name, array in before.items()} == {name: array.shape for name, array in after.items()}


def test_its_model_is_exported_like_any_other(continued: Path, tmp_path: Path) -> None:
    words = ["export", "--trained-model", str(continued / "model"), "--output", str(tmp_path / "exported")]
    assert main([*words, "--run-report", str(tmp_path / "report.json"), "--num-threads", "1"]) == 0
    assert read_card(tmp_path / "exported").parent_sha256 == card_sha256(read_card(continued / "model"))


def test_the_report_fits_its_schema(continued: Path) -> None:
    import jsonschema

    from medweave_core.contracts.report import RunReport
    from medweave_core.contracts.schema import schema_of

    report = report_of(continued)
    jsonschema.validate(report, schema_of("run-report"))
    assert codec.from_json(RunReport, report, where="test").ranks[1].samples == 6


def test_help_needs_no_torch() -> None:
    code = (
        "import sys\nfrom medweave_steps.cli import main\n"
        "try:\n    main(['train-distributed', '--help'])\nexcept SystemExit:\n    pass\n"
        "assert not {'torch', 'monai', 'scipy', 'pycompss'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "weighted by the number of samples" in done.stdout


def test_what_runcompss_starts_can_be_imported_without_running(tmp_path: Path) -> None:
    # The runtime imports the file under its name, and then runs its text as the main program.
    from medweave_steps.compss import application

    code = (
        "import sys, importlib.machinery as m; path = sys.argv[1]; sys.argv = [path, 'phantom', '--help']\n"
        "m.SourceFileLoader('application', path).load_module(); print('imported')\n"
        "exec(compile(open(path).read(), path, 'exec'), {'__name__': '__main__'})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, application.__file__], capture_output=True, text=True, check=False, cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("imported\nusage: medweave-step phantom")
    assert sorted(path.name for path in Path(application.__file__).parent.glob("*.py")) == [
        "__init__.py",
        "application.py",
    ]
