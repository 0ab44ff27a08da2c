"""What follows from the key, and which files are one."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest

from medweave_core.errors import UserInputError
from medweave_steps.deidentify.pseudonyms import Pseudonyms, is_standard_uid, new_key, read_key, write_private

KEY = bytes(range(32))


def test_a_uid_is_valid_stable_and_the_keys_own() -> None:
    first = Pseudonyms(KEY).uid("1.2.3")
    root, _, number = first.rpartition(".")
    assert root == "2.25"
    assert len(first) <= 64
    assert uuid.UUID(int=int(number)).version == 8
    assert uuid.UUID(int=int(number)).variant == uuid.RFC_4122
    assert Pseudonyms(KEY).uid("1.2.3") == first
    assert Pseudonyms(bytes(32)).uid("1.2.3") != first
    assert Pseudonyms(KEY).uid("1.2.4") != first


def test_purposes_do_not_meet() -> None:
    pseudonyms = Pseudonyms(KEY)
    assert pseudonyms.token("series", "1.2.3", digits=12) != pseudonyms.token("instance", "1.2.3", digits=12)


def test_uids_of_the_standard() -> None:
    assert is_standard_uid("1.2.840.10008.5.1.4.1.1.2")
    assert not is_standard_uid("1.2.840.100085.1")


def test_a_key_is_read_back(tmp_path: Path) -> None:
    key = new_key()
    write_private(tmp_path / "key", key)
    assert read_key(tmp_path / "key") == key
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        write_private(tmp_path / "key", key)


@pytest.mark.parametrize("content", [b"", b"short", bytes(32), bytes(range(32)) * 200])
def test_what_is_no_key(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(UserInputError, match="is not a valid key file"):
        read_key(tmp_path / "key")


def test_a_folder_or_a_pipe_is_no_key(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserInputError, match="is not a valid key file"):
        read_key(tmp_path / "pipe")
    with pytest.raises((UserInputError, OSError)):
        read_key(tmp_path)
