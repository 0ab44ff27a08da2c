"""A training that a scheduler stops and restarts: checkpoints on signals, and the next attempt resumes from them."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from medweave_steps.cli import main
from medweave_steps.training.loop.checkpoint import newest_complete, read_checkpoint, write_checkpoint
from support.damaged import with_a_flipped_bit
from support.engine import wait_until
from support.processes import started, wait_for_line
from support.training_set import TINY, training_set
from support.weights import assert_equal_weights


def words(folder: Path, data: Path, *options: str) -> list[str]:
    values = ["train", "--training-set", str(data), "--output", str(folder / "model"), *TINY]
    return [*values, "--training-log", str(folder / "log"), "--run-report", str(folder / "report.json"), *options]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training of six steps, with the checkpoints of step 6 and, before it, of step 3."""
    folder = tmp_path_factory.mktemp("trained")
    training_set(folder / "data")
    saves = ("--checkpoint-folder", str(folder / "saved"), "--checkpoint-interval", "3", "--num-threads", "1")
    assert main(words(folder, folder / "data", *saves)) == 0
    return folder


def test_the_checkpoint_before_the_newest_is_kept(trained: Path) -> None:
    saved = trained / "saved"
    assert sorted(path.name for path in saved.iterdir()) == ["checkpoint-before.pt", "checkpoint.pt"]
    steps = [read_checkpoint(saved / name)["state"]["step"] for name in ("checkpoint-before.pt", "checkpoint.pt")]
    assert steps == [3, 6]


@pytest.mark.parametrize(
    ("newest", "before", "step"),
    [("whole", "whole", 6), (None, "whole", 3), ("damaged", "whole", 3), ("cut", "whole", 3), ("cut", "damaged", None)],
)
def test_another_attempt_continues_from_the_newest_whole_checkpoint(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
    newest: str | None, before: str | None, step: int | None,
) -> None:  # fmt: skip
    saved = tmp_path / "saved"
    shutil.copytree(trained / "saved", saved)
    for name, state in (("checkpoint.pt", newest), ("checkpoint-before.pt", before)):
        content = (saved / name).read_bytes()
        (saved / name).unlink()
        if state:
            changed = {"whole": content, "cut": content[:-100], "damaged": with_a_flipped_bit(content)}
            (saved / name).write_bytes(changed[state])
    monkeypatch.setenv("MEDWEAVE_RESUME_FROM", str(saved))
    assert main(words(tmp_path, trained / "data", "--num-threads", "1")) == 0
    assert_equal_weights(trained / "model", tmp_path / "model")
    message = capfd.readouterr().err
    assert (f"resumed from a checkpoint at step {step} of 6" in message) is (step is not None)
    assert ("; training starts from the beginning" in message) is (step is None)


def test_what_the_command_line_says_comes_first(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MEDWEAVE_RESUME_FROM", str(trained / "saved"))
    values = ("--resume-from", str(trained / "saved" / "checkpoint-before.pt"), "--num-threads", "1")
    assert main(words(tmp_path, trained / "data", *values)) == 0
    assert "resumed from a checkpoint at step 3" in capfd.readouterr().err


def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint(tmp_path, {"step": 1})

    def full(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space"):
        write_checkpoint(tmp_path, {"step": 2})
    assert newest_complete(tmp_path) == tmp_path / "checkpoint.pt"
    assert read_checkpoint(tmp_path)["step"] == 1


@pytest.mark.slow
def test_a_scheduler_that_announces_its_time_limit_gets_a_checkpoint_and_ends_nothing(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    long = ("--steps", "100000", "--epoch-steps", "5", "--validation-interval", "1000")
    options = ("--checkpoint-folder", str(saved), "--checkpoint-interval", "100000", *long)
    process = started(words(tmp_path, training_set(tmp_path / "data"), *options), folder=tmp_path)
    wait_for_line(process, "epoch 2/")
    assert not saved.exists()
    process.send_signal(signal.SIGUSR1)
    wait_until(lambda: newest_complete(saved) is not None, 30)
    assert read_checkpoint(saved)["state"]["step"] >= 10
    for _ in range(3):  # it is running; a line may have been in transit
        wait_for_line(process, "epoch ")
    process.kill()
    process.communicate()
