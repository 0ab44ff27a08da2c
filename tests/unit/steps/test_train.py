"""`medweave-step train` as a user meets it: outputs, determinism, errors and exit codes."""

from __future__ import annotations

import io
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import types
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from medweave_core.errors import InternalError
from medweave_steps.cli import main
from medweave_steps.io.model.folder import read_card
from medweave_steps.io.model.network import load_network
from medweave_steps.train.loop import Trainer
from support.damaged import with_a_flipped_bit
from support.processes import interrupted, nearly_full_disk, started, wait_for_line
from support.training_set import TINY, training_set
from support.weights import assert_equal_weights, weights


def words(folder: Path, *options: str, data: Path | None = None, name: str = "model") -> list[str]:
    """Return the command line of a tiny training."""
    files = ["--training-set", str(data or folder / "data"), "--output", str(folder / name)]
    files += ["--training-log", str(folder / f"{name}_log"), "--run-report", str(folder / f"{name}_report.json")]
    return ["train", *files, *TINY, *options]


def train(folder: Path, *options: str, data: Path | None = None, name: str = "model") -> int:
    """Runs the verb in this process."""
    return main([*words(folder, *options, data=data, name=name), "--num-threads", "1"])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data/, model/, model_log/ and the report of one tiny training."""
    folder = tmp_path_factory.mktemp("trained")
    training_set(folder / "data")
    assert train(folder) == 0
    return folder


def test_the_card_says_what_was_trained(trained: Path) -> None:
    card = read_card(trained / "model")
    assert card.synthetic_data is True
    assert card.input.spacing_mm == (2.0, 2.0, 2.0)
    assert card.input.patch_shape == (24, 20, 16)
    assert card.data_sha256 == "ab" * 32
    assert card.precision == "float32"
    assert set(card.metrics) == {
        "validation_dice", "validation_sensitivity", "validation_sensitivity_6mm", "validation_sensitivity_10mm",
        "validation_false_positives_per_scan",
    }  # fmt: skip
    assert card.training["strategy"] == "single"
    assert card.training["precision"] == "float32"
    assert card.training["steps_done"] == 6
    assert card.training["num_training_cases"] == 2
    assert card.training["num_training_lesions"] == 4


def test_the_last_validation_counts_what_a_pass_of_its_own_would(trained: Path, tmp_path: Path) -> None:
    # Limited to some cases, even to as many as there are, the last validation is not used again.
    assert train(tmp_path, "--validation-cases", "9", data=trained / "data") == 0
    alone, reused = (json.loads((folder / "model_report.json").read_text()) for folder in (tmp_path, trained))
    assert reused["results"]["training"]["best_step"] == reused["results"]["training"]["steps_done"]
    assert alone["cases"] == reused["cases"]
    assert alone["results"]["postprocessing"] == reused["results"]["postprocessing"]
    assert alone["results"]["metrics"] == reused["results"]["metrics"]


def test_the_report_counts_the_validation_cases(trained: Path) -> None:
    report = json.loads((trained / "model_report.json").read_text())
    assert [case["case_id"] for case in report["cases"]] == ["case-2"]
    assert report["cases"][0]["lesions"] == 2
    assert report["config"]["seed"] == 0


def test_curves_and_tensorboard_events_tell_the_same(trained: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    points = json.loads((trained / "model_log" / "curves.json").read_text())
    losses = {point["step"]: point["loss"] for point in points if "loss" in point}
    dices = {point["step"]: point["dice"] for point in points if "dice" in point}
    assert list(losses) == [2, 4, 6]
    assert list(dices) == [2, 4, 6]
    events = EventAccumulator(str(trained / "model_log"))
    events.Reload()
    assert {e.step: pytest.approx(e.value, rel=1e-5) for e in events.Scalars("training/loss")} == losses
    assert {e.step: pytest.approx(e.value, rel=1e-5) for e in events.Scalars("validation/dice")} == dices


def test_the_training_log_does_not_name_the_machine(trained: Path) -> None:
    names = sorted(path.name for path in (trained / "model_log").iterdir())
    assert names == ["curves.json", "events.out.tfevents.0.medweave", "hardware-rank-0.jsonl"]
    assert socket.gethostname() not in (trained / "model_log" / "hardware-rank-0.jsonl").read_text()


@pytest.mark.slow
def test_monai_reads_the_model_folder_as_a_bundle(trained: Path) -> None:
    import torch
    from monai.bundle import ConfigParser

    folder = trained / "model"
    parser = ConfigParser()
    parser.read_config(str(folder / "configs" / "inference.json"))
    parser.read_meta(str(folder / "configs" / "metadata.json"))
    network = parser.get_parsed_content("network_def")
    network.load_state_dict(torch.load(folder / "models" / "model.pt", weights_only=True))
    image = torch.rand(1, 1, 16, 16, 16, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        torch.testing.assert_close(
            network.eval()(image), load_network(folder, read_card(folder))(image), rtol=0, atol=0
        )
    assert parser["_meta_"]["network_data_format"]["inputs"]["image"]["num_channels"] == 1


def test_the_same_seed_gives_the_same_weights(trained: Path, tmp_path: Path) -> None:
    assert train(tmp_path, data=trained / "data") == 0
    assert_equal_weights(trained / "model", tmp_path / "model")


def test_another_seed_gives_other_weights(trained: Path, tmp_path: Path) -> None:
    assert train(tmp_path, "--seed", "1", data=trained / "data") == 0
    first, second = weights(trained / "model"), weights(tmp_path / "model")
    assert any((first[name] != second[name]).any() for name in first)


@pytest.fixture(scope="module")
def checkpoints(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The checkpoints of steps 3 and 6 of a training like `trained`, each under its own name.

    The one of step 3 lies between the ends of two epochs: losses are pending and Adam has moments.
    """
    import medweave_steps.training.loop.checkpoint as checkpoint

    folder = tmp_path_factory.mktemp("checkpoints")
    retained: list[Path] = []
    original = checkpoint.write_checkpoint

    def keep(into: Path, content: Mapping[str, Any]) -> Path:
        path = original(into, content)
        retained.append(folder / f"step-{content['state']['step']}.pt")
        retained[-1].write_bytes(path.read_bytes())
        return path

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "write_checkpoint", keep)
        options = ("--checkpoint-folder", str(folder), "--checkpoint-interval", "3")
        assert train(folder, *options, data=trained / "data") == 0
    assert_equal_weights(trained / "model", folder / "model")
    return retained


def test_a_resumed_training_equals_an_uninterrupted_one(trained: Path, checkpoints: list[Path], tmp_path: Path) -> None:
    assert [path.name for path in checkpoints] == ["step-3.pt", "step-6.pt"]
    assert train(tmp_path, "--resume-from", str(checkpoints[0]), data=trained / "data") == 0
    assert_equal_weights(trained / "model", tmp_path / "model")
    curves = [json.loads((folder / "model_log" / "curves.json").read_text()) for folder in (trained, tmp_path)]
    assert curves[0] == curves[1]
    assert (trained / "model/model_card.json").read_text().count("validation_dice") == 1
    assert read_card(trained / "model").metrics == read_card(tmp_path / "model").metrics
    state = torch.load(checkpoints[0], weights_only=True)["state"]
    before_s, resumed = state["train_seconds"] + state["validation_seconds"], read_card(tmp_path / "model").training
    assert resumed["best_step"] == 6
    assert resumed["best_seconds"] > max(before_s, resumed["step_seconds"]), (
        "with the earlier attempt and the validations"
    )


def test_a_training_is_resumed_from_the_folder_of_its_checkpoints(
    trained: Path, checkpoints: list[Path], tmp_path: Path
) -> None:
    assert train(tmp_path, "--resume-from", str(checkpoints[0].parent), data=trained / "data") == 0
    assert_equal_weights(trained / "model", tmp_path / "model")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--channels", "4", "16"), "channels = [4, 16]"),
        (("--learning-rate", "0.01"), "learning_rate = 0.01"),
        (("--steps", "8"), "steps = 8"),
        (("--precision", "bfloat16"), "precision = 'bfloat16'"),
    ],
)
def test_a_checkpoint_of_another_training_is_refused(
    trained: Path, checkpoints: list[Path], tmp_path: Path, capfd: pytest.CaptureFixture[str],
    options: tuple[str, ...], named: str,
) -> None:  # fmt: skip
    assert train(tmp_path, "--resume-from", str(checkpoints[0]), *options, data=trained / "data") == 65
    assert named in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_of_other_data_is_refused(
    checkpoints: list[Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data = training_set(tmp_path / "data")
    text = (data / "cohort.json").read_text()
    (data / "cohort.json").write_text(text.replace("ab" * 32, "cd" * 32))
    assert train(tmp_path, "--resume-from", str(checkpoints[0])) == 65
    assert "data digest abab" in capfd.readouterr().err


def other_archive() -> bytes:
    """A whole zip archive that is no checkpoint."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("readme.txt", "whole")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda whole: b"", "corrupt or truncated"),
        (lambda whole: b"no zip", "corrupt or truncated"),
        (lambda whole: whole[:-100], "corrupt or truncated"),
        (with_a_flipped_bit, "corrupt or truncated"),
        (lambda whole: other_archive(), "while reading it"),
    ],
    ids=["empty", "no zip", "cut off", "damaged", "another archive"],
)
def test_a_checkpoint_that_cannot_be_read_is_refused(
    trained: Path, checkpoints: list[Path], tmp_path: Path, capfd: pytest.CaptureFixture[str],
    broken: Callable[[bytes], bytes], message: str,
) -> None:  # fmt: skip
    (tmp_path / "broken.pt").write_bytes(broken(checkpoints[0].read_bytes()))
    assert train(tmp_path, "--resume-from", str(tmp_path / "broken.pt"), data=trained / "data") == 65
    messages = capfd.readouterr().err
    assert "--resume-from cannot be used" in messages
    assert message in messages


def test_a_missing_checkpoint_is_refused(trained: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert train(tmp_path, "--resume-from", str(tmp_path / "none"), data=trained / "data") == 65
    assert "no file" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("splits", "message"), [(("validation",), "no training case"), (("train", "train"), "no validation case")]
)
def test_an_empty_split_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], splits: tuple[str, ...], message: str
) -> None:
    training_set(tmp_path / "data", splits)
    assert train(tmp_path) == 65
    assert message in capfd.readouterr().err
    assert not (tmp_path / "model").exists()


def test_unlabelled_cases_are_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    training_set(tmp_path / "data", unlabelled=(1,))
    assert train(tmp_path) == 65
    assert "no label for case-1" in capfd.readouterr().err


def test_a_training_set_without_lesions_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    training_set(tmp_path / "data", balls=())
    assert train(tmp_path) == 65
    assert "no training case has a lesion" in capfd.readouterr().err


def test_a_loss_that_is_not_a_number_names_step_and_cases(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    training_set(tmp_path / "data")
    volume = np.load(tmp_path / "data/cases/case-0/volume.npy")
    volume[:] = np.nan
    np.save(tmp_path / "data/cases/case-0/volume.npy", volume)
    assert train(tmp_path, "--batch-size", "8") == 70
    message = capfd.readouterr().err
    assert "the loss is NaN or infinite at step 1." in message
    assert re.search(
        r"on patches of case-0 \(\d of 8 patches\); the volume of case-0 contains NaN or infinite values", message
    ), message
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]


def test_a_loss_that_explodes_names_step_cases_and_rate(
    trained: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path, "--learning-rate", "1e38", "--schedule", "constant", data=trained / "data") == 70
    message = capfd.readouterr().err
    assert re.search(r"the loss is NaN or infinite at step [2-6]\.", message), "the first step's weights are still good"
    assert re.search(r"seen: +loss (nan|inf) on patches of case-[01]", message)
    assert "do:       reduce --learning-rate (current value 1.00e+38)" in message
    assert {path.name for path in tmp_path.iterdir()} <= {"model_log"}, "curves of the epochs before"


def test_weights_that_explode_in_the_last_step_are_not_delivered() -> None:
    trainer: Any = types.SimpleNamespace(
        state=types.SimpleNamespace(step=7), stepper=types.SimpleNamespace(learning_rate=0.5)
    )
    weights = {"first": torch.ones(2), "second": torch.tensor([1.0, math.nan]), "num_batches": torch.tensor(3)}
    Trainer._check_weights(trainer, {**weights, "second": torch.zeros(2)})
    with pytest.raises(InternalError, match=r"the weights are NaN or infinite after step 7\.") as caught:
        Trainer._check_weights(trainer, weights)
    assert (caught.value.seen, caught.value.do) == (
        "1 of 3 tensors, the first is second", "reduce --learning-rate (current value 5.00e-01)",
    )  # fmt: skip


def test_arrays_of_different_shapes_are_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    training_set(tmp_path / "data")
    np.save(tmp_path / "data/cases/case-1/label.npy", np.zeros((3, 3, 3), np.uint8))
    assert train(tmp_path) == 65
    assert "the arrays of case-1 have different shapes" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--steps", "0"), "invalid value of --steps"),
        (("--patch-shape", "9", "8", "8"), "invalid value of --patch-shape"),
        (("--strides", "2", "2"), "invalid value of --strides"),
        (("--learning-rate", "nan"), "invalid value of --learning-rate"),
        (("--lesion-share", "1.5"), "invalid value of --lesion-share"),
        (("--monitor-interval", "0.05"), "invalid value of --monitor-interval"),
        (("--device", "cuda"), "--device cuda is not available"),
    ],
)
def test_values_that_cannot_be_used_are_refused(
    trained: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], options: tuple[str, ...], message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert train(tmp_path, *options, data=trained / "data") == 2
    assert message in capfd.readouterr().err


def test_an_output_that_exists_is_not_overwritten(trained: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = (trained / "model" / "model_card.json").read_bytes()
    assert train(trained) == 2
    assert "exists already" in capfd.readouterr().err
    assert (trained / "model" / "model_card.json").read_bytes() == before


def test_training_stops_when_patience_runs_out(trained: Path, tmp_path: Path) -> None:
    # A learning rate this small changes nothing, but ties count as better; so the score is made to fall.
    import medweave_steps.tasks.segmentation.validation as validate

    falling = iter(range(100, 0, -1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(validate, "score", lambda figures: float(next(falling)))
        assert train(tmp_path, "--patience", "1", data=trained / "data") == 0
    training = read_card(tmp_path / "model").training
    assert (training["steps_done"], training["best_step"], training["stopped_early"]) == (4, 2, True)
    assert 0 < training["best_seconds"] < training["seconds"]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_a_checkpoint_that_continues_exactly_and_the_curves_so_far(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    data = training_set(tmp_path / "data")
    long = ("--steps", "100000", "--epoch-steps", "5", "--validation-interval", "1000")
    saves = ("--checkpoint-folder", str(tmp_path / "saved"))
    process = started(words(tmp_path, *long, *saves, data=data), folder=tmp_path)
    wait_for_line(process, "epoch 2/")
    assert interrupted(process, number)[0] == code
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "model_log", "saved"], "the curves so far stay"
    assert [path.name for path in (tmp_path / "saved").iterdir()] == ["checkpoint.pt"]
    from medweave_steps.training.loop.checkpoint import read_checkpoint

    content = read_checkpoint(tmp_path / "saved")
    assert content["state"]["step"] >= 10
    assert content["schedule"]["last_epoch"] == content["state"]["step"]


def test_a_full_disk_ends_with_its_own_exit_code_and_leaves_only_events(tmp_path: Path) -> None:
    # A limit on the size of files fails a write as a full disk does, on every file system: the weights are larger.
    training_set(tmp_path / "data")
    with nearly_full_disk(tmp_path, 30_000) as output:
        code = train(tmp_path, "--channels", "16", "32")
    assert code == 74, output.getvalue()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "model_log"]
    names = sorted(path.name for path in (tmp_path / "model_log").iterdir())
    assert names == ["events.out.tfevents.0.medweave", "hardware-rank-0.jsonl"], "no whole log"


def test_help_needs_no_torch() -> None:
    code = (
        "import sys\nfrom medweave_steps.cli import main\n"
        "try:\n    main(['train', '--help'])\nexcept SystemExit:\n    pass\n"
        "assert not {'torch', 'monai', 'scipy'} & set(sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert "mm³" in done.stdout
