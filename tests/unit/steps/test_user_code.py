"""Networks that are code of the user: consent, digests, errors, and the steps that build them again."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from medweave_core.errors import UserInputError
from medweave_steps.cli import main
from medweave_steps.io.model.folder import read_card, write_card
from medweave_steps.networks.user_code import NetworkCode, read_code
from support.image_set import TINY as TINY_IMAGES
from support.image_set import image_set
from support.training_set import TINY, training_set

CODE = """\
import pathlib
import torch

pathlib.Path(__file__ and {mark!r}).touch()

class Tiny(torch.nn.Sequential):
    def __init__(self, *, in_channels, out_channels, input_shape):
        self.shape = tuple(input_shape)
        super().__init__(
            torch.nn.Conv3d(in_channels, 3, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv3d(3, out_channels, 1)
        )
"""
OWN = ("--network", "my_network:Tiny", "--network-code")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training_set(tmp_path_factory.mktemp("data"))


def code_in(folder: Path, text: str = CODE) -> Path:
    """Write the code of the user, which makes the file `ran` where it is run."""
    path = folder / "my_network.py"
    path.write_text(text.format(mark=str(folder / "ran")) if "{mark" in text else text)
    return path


def step(folder: Path, verb: str, *words: object) -> int:
    report = ("--run-report", folder / f"{verb}.json", "--num-threads", "1")
    return main([verb, *map(str, words), *map(str, report)])


def train(folder: Path, data: Path, *words: object, output: str = "model") -> int:
    files = ("--training-set", data, "--output", folder / output, "--training-log", folder / f"{output}_log")
    return step(folder, "train", *files, *TINY, *words)


def further(folder: Path, data: Path, *words: object) -> int:
    return step(
        folder, "train-distributed", "--training-set", data, "--trained-model", folder / "model", "--output",
        folder / "further", "--training-log", folder / "further_log", "--rounds", 1, "--steps-per-round", 2, "--batch-size", 2,
        "--patch-shape", 8, 8, 8, "--precision", "float32", *words,
    )  # fmt: skip


def export(folder: Path, *words: object) -> int:
    model = ("--trained-model", folder / "model", "--output", folder / "exported", "--parity-windows", 1)
    return step(folder, "export", *model, *words)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    """A folder with model/ of a network of the user; its file is gone."""
    folder = tmp_path_factory.mktemp("trained")
    path = code_in(folder)
    assert train(folder, data, *OWN, path, "--allow-code") == 0
    path.unlink()
    return folder


def test_without_consent_nothing_of_the_user_is_imported(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path, data, *OWN, code_in(tmp_path)) == 2
    shown = capfd.readouterr().err
    assert "the network 'my_network:Tiny' is code that is not part of medweave" in shown
    assert "--allow-code" in shown
    assert not (tmp_path / "ran").exists()


def test_the_card_has_the_digest_and_the_model_folder_a_copy(trained: Path) -> None:
    card = read_card(trained / "model")
    entry = card.architecture["code"]
    assert card.architecture["class"] == "my_network:Tiny"
    assert card.architecture["arguments"] == {"in_channels": 1, "out_channels": 1, "input_shape": [8, 8, 8]}
    assert entry == {"file": "scripts/my_network.py", "sha256": card.files["scripts/my_network.py"]}
    assert card.training["network_code_sha256"] == entry["sha256"]


def test_the_bundle_files_name_the_class_as_monai_finds_it(trained: Path) -> None:
    from monai.bundle import ConfigParser

    config = json.loads((trained / "model/configs/inference.json").read_text())
    sys.path.insert(0, str(trained / "model"))
    try:
        network = ConfigParser({"network_def": config["network_def"]}).get_parsed_content("network_def")
    finally:
        sys.path.remove(str(trained / "model"))
    assert type(network).__name__ == "Tiny"


def test_later_steps_need_consent_again(trained: Path, data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (trained / "ran").unlink(missing_ok=True)
    assert export(trained) == 2
    assert further(trained, data) == 2
    assert capfd.readouterr().err.count("--allow-code") >= 2
    assert not (trained / "ran").exists()


def test_later_steps_run_the_copy_with_consent(trained: Path, data: Path) -> None:
    assert export(trained, "--allow-code") == 0
    assert further(trained, data, "--allow-code") == 0
    for folder in ("exported", "further"):
        assert "scripts/my_network.py" in read_card(trained / folder).files


def test_changed_code_is_refused(trained: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    import shutil

    shutil.copytree(trained / "model", tmp_path / "model")
    copy = tmp_path / "model/scripts/my_network.py"
    copy.write_text(copy.read_text() + "\n# changed\n")
    assert export(tmp_path, "--allow-code") == 65
    assert "was modified after its model card was written" in capfd.readouterr().err
    # The digest of the architecture counts even where the list of files was made to fit.
    write_card(tmp_path / "model", read_card(tmp_path / "model", verify=False))
    assert export(tmp_path, "--allow-code") == 65
    assert "was changed after the model was trained" in capfd.readouterr().err


def test_a_training_is_not_resumed_with_changed_code(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = code_in(tmp_path)
    saving = ("--checkpoint-folder", tmp_path / "saved", "--checkpoint-interval", 2, "--allow-code")
    assert train(tmp_path, data, *OWN, path, *saving) == 0
    path.write_text(path.read_text() + "# changed\n")
    again = ("--allow-code", "--resume-from", tmp_path / "saved")
    assert train(tmp_path, data, *OWN, path, *again, output="again") == 65
    assert "network_code_sha256" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import torch\n\nraise OSError('no licence')\n", "OSError: no licence (line 3 of my_network.py)"),
        ("import torch\nclass Tiny(\n", "SyntaxError"),
        ("import no_such_library\n", "No module named 'no_such_library' (line 1 of my_network.py)"),
        ("class Small:\n    pass\n", "has no class Tiny"),
        ("class Tiny:\n    def __init__(self, **arguments): pass\n", "is not derived from torch.nn.Module"),
        ("import torch\nclass Tiny(torch.nn.Module):\n    pass\n", "unexpected keyword argument"),
    ],
)
def test_code_that_does_not_build_a_network_is_refused(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    assert train(tmp_path, data, *OWN, code_in(tmp_path, text), "--allow-code") == 65
    shown = capfd.readouterr().err
    assert "the code of the network 'my_network:Tiny'" in shown
    assert message in shown
    assert "Traceback" not in shown


LINEAR = """\
import torch

class Tiny(torch.nn.Module):
    def __init__(self, *, in_channels, out_channels, input_shape):
        super().__init__()
        self.dense = torch.nn.Linear(27, out_channels)

    def forward(self, image):
        return self.dense(image.reshape({reshape}))
"""


@pytest.mark.parametrize(
    ("reshape", "message"),
    [
        ("1, 27", "shape '[1, 27]' is invalid for input of size 512 (line 9 of my_network.py)"),
        ("-1, 512)[:, :27].reshape(-1, 27", "an output of shape (1, 1)"),
    ],
)
def test_a_network_of_another_shape_is_refused_before_the_training(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], reshape: str, message: str
) -> None:
    path = tmp_path / "my_network.py"
    path.write_text(LINEAR.replace("{reshape}", reshape))
    assert train(tmp_path, data, *OWN, path, "--allow-code") == 65
    shown = capfd.readouterr().err
    assert message in shown
    assert "epoch" not in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--network", "my_network:", "--allow-code"), "module:Class"),
        (("--network", "a b:Tiny", "--allow-code"), "module:Class"),
        (("--network", "a.b:Tiny", "--allow-code"), "no dot in the name"),
        (("--network", "unet"), "it applies only to --network module:Class"),
    ],
)
def test_options_of_code_that_do_not_fit_are_refused(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    assert train(tmp_path, data, "--network-code", code_in(tmp_path), *words) == 2
    assert message in capfd.readouterr().err


def test_missing_code_is_named(data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert train(tmp_path, data, *OWN, tmp_path / "my_network.py", "--allow-code") == 65
    assert "no file my_network.py" in capfd.readouterr().err
    assert train(tmp_path, data, "--network", "nowhere.at_all:Tiny", "--allow-code") == 65
    assert "no module nowhere.at_all is installed" in capfd.readouterr().err


def test_reading_the_code_of_an_installed_module_imports_none_of_its_packages(tmp_path: Path) -> None:
    package = tmp_path / "mine" / "inner"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (package / "net.py").write_text("raise RuntimeError('imported')\n")
    sys.path.insert(0, str(tmp_path))
    try:
        code = read_code("mine.inner.net:Net", None)
        with pytest.raises(UserInputError, match="is missing"):
            read_code("mine.inner.other:Net", None)
    finally:
        sys.path.remove(str(tmp_path))
    assert (code.module, code.source) == ("mine.inner.net", None)
    assert code.card_entry == {"sha256": code.sha256}


CLASSIFIER = """\
import torch

class Tiny(torch.nn.Sequential):
    def __init__(self, *, in_channels, out_channels, input_shape):
        columns, rows, slices = input_shape
        super().__init__(torch.nn.Flatten(), torch.nn.Linear(in_channels * columns * rows * slices, out_channels))
"""


@pytest.mark.slow
def test_a_class_of_an_installed_module_trains_in_several_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process has it in sys.path, and so have the ranks, which import MONAI for a segmentation only."""
    code_in(tmp_path, CLASSIFIER)
    monkeypatch.syspath_prepend(str(tmp_path))
    words = (*TINY_IMAGES, "--network", "my_network:Tiny", "--allow-code", "--strategy", "ddp", "--ranks", 2)
    assert train(tmp_path, image_set(tmp_path / "data"), *words) == 0
    sys.modules.pop("my_network", None)
    card = read_card(tmp_path / "model")
    assert set(card.architecture["code"]) == {"sha256"}


def test_code_that_failed_is_run_anew(tmp_path: Path) -> None:
    from medweave_steps.networks.user_code import load_class

    mark = tmp_path / "mark"
    source = f"import pathlib\nif not pathlib.Path({str(mark)!r}).exists():\n    raise ValueError\nclass Net: pass\n"
    code = NetworkCode(module="net", source=source.encode(), sha256="ab" * 32)
    with pytest.raises(UserInputError):
        load_class("net:Net", code)
    mark.touch()
    assert load_class("net:Net", code) is load_class("net:Net", code)
