"""Model folders: digests, and networks that a card may and may not name."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from medweave_core.errors import UserInputError
from medweave_steps.io.model.folder import (
    BUNDLE_WEIGHTS_FILE,
    CARD_FILE,
    WEIGHTS_FILE,
    card_sha256,
    copy_files,
    listed_file,
    read_card,
    write_card,
)
from medweave_steps.io.model.network import build_network, load_network
from support.model_folders import TINY_UNET, seeded_network, tiny_card, trained_model


def small_folder(folder: Path) -> Path:
    """A folder with two files and a card, without weights of any network."""
    (folder / "models").mkdir(parents=True)
    (folder / "models/a.bin").write_bytes(b"weights")
    (folder / "note.txt").write_text("note")
    write_card(folder, tiny_card())
    return folder


def test_the_card_lists_every_file_with_its_digest(tmp_path: Path) -> None:
    card = read_card(small_folder(tmp_path))
    assert set(card.files) == {"models/a.bin", "note.txt"}
    assert card.files["models/a.bin"] == hashlib.sha256(b"weights").hexdigest()


def test_a_flipped_byte_is_refused(tmp_path: Path) -> None:
    small_folder(tmp_path)
    (tmp_path / "models/a.bin").write_bytes(b"Weights")
    with pytest.raises(UserInputError, match="was modified after its model card was written") as caught:
        read_card(tmp_path)
    assert "models/a.bin" in caught.value.seen
    assert read_card(tmp_path, verify=False).name == "tiny"


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    small_folder(tmp_path)
    (tmp_path / "note.txt").unlink()
    with pytest.raises(UserInputError, match="is incomplete") as caught:
        read_card(tmp_path)
    assert "note.txt" in caught.value.seen


def test_a_folder_without_card_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserInputError, match=r"model_card\.json"):
        read_card(tmp_path)


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname"])
def test_a_card_that_lists_files_outside_its_folder_is_refused(tmp_path: Path, name: str) -> None:
    small_folder(tmp_path)
    card = read_card(tmp_path)
    text = (tmp_path / CARD_FILE).read_text().replace('"note.txt"', f'"{name}"')
    (tmp_path / CARD_FILE).write_text(text)
    with pytest.raises(UserInputError, match="outside its folder"):
        read_card(tmp_path)
    assert "note.txt" in card.files


def test_a_file_that_is_not_listed_is_not_opened(tmp_path: Path) -> None:
    card = read_card(small_folder(tmp_path))
    (tmp_path / "models/int8.xml").write_text("put here later")
    with pytest.raises(UserInputError, match=r"has no models/int8\.xml") as caught:
        listed_file(tmp_path, card, "models/int8.xml", made_by="quantize")
    assert "medweave-step quantize" in caught.value.do


def test_only_listed_files_are_copied(tmp_path: Path) -> None:
    card = read_card(small_folder(tmp_path / "one"))
    (tmp_path / "one/stray").write_text("stray")
    copy_files(tmp_path / "one", card, tmp_path / "two", leave_out=["note.txt"])
    assert [path.name for path in (tmp_path / "two").rglob("*") if path.is_file()] == ["a.bin"]


def test_the_digest_of_a_card_covers_its_files(tmp_path: Path) -> None:
    card = read_card(small_folder(tmp_path))
    assert card_sha256(card) == card_sha256(tmp_path)
    changed = dataclasses.replace(card, files={**card.files, "note.txt": "0" * 64})
    assert card_sha256(changed) != card_sha256(card)


def test_weights_come_back_as_they_were_written(tmp_path: Path) -> None:
    import torch

    card = trained_model(tmp_path, seed=3)
    image = torch.rand(1, 1, 8, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected, seen = seeded_network(seed=3)(image), load_network(tmp_path, card)(image)
        other = seeded_network(seed=4)(image)
    np.testing.assert_array_equal(seen.numpy(), expected.numpy())
    assert float((other - expected).abs().max()) > 1e-3
    assert set(torch.load(tmp_path / BUNDLE_WEIGHTS_FILE, weights_only=True)) == set(seeded_network().state_dict())


def test_weights_of_another_architecture_name_the_first_key_that_differs(tmp_path: Path) -> None:
    card = trained_model(tmp_path)
    wider = {**TINY_UNET, "arguments": {**TINY_UNET["arguments"], "channels": [6, 8]}}
    with pytest.raises(UserInputError, match="do not match its architecture") as caught:
        load_network(tmp_path, dataclasses.replace(card, architecture=wider))
    # In order of name the one PReLU weight comes first; it has the same shape in both.
    first = "model.0.conv.unit0.adn.N.bias"
    assert f"'{first}' of shape (4," in caught.value.seen
    assert f"'{first}' of shape (6," in caught.value.expected


def test_truncated_weights_are_refused(tmp_path: Path) -> None:
    trained_model(tmp_path)
    whole = (tmp_path / WEIGHTS_FILE).read_bytes()
    (tmp_path / WEIGHTS_FILE).write_bytes(whole[:-100])
    card = write_card(tmp_path, tiny_card())
    with pytest.raises(UserInputError, match="cannot be read"):
        load_network(tmp_path, card)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("os.system", {}),
        ("monai.networks.nets.UNet.__init__", {}),
        ("monai.networks.nets.NoSuchNetwork", {}),
        ("monai.networks.nets.UNet", {"spatial_dims": 3, "no_such_option": 1}),
        ("monai.networks.nets.UNet", "spatial_dims=3"),
        (None, {}),
    ],
)
def test_a_card_names_only_networks_of_monai(name: Any, arguments: Any) -> None:
    with pytest.raises(UserInputError, match="network of the model card cannot be built"):
        build_network({"class": name, "arguments": arguments})
