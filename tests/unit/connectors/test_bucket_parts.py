"""Signed URLs, encrypted pieces, and the credentials of a bucket."""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from medweave_connectors.transfer.agent import program_text
from medweave_connectors.transfer.agent.bucket_peer import PieceCipher
from medweave_connectors.transfer.agent.direct_peer import PeerFailed
from medweave_connectors.transfer.routes.bucket.settings import parse_bucket
from medweave_connectors.transfer.routes.bucket.signing import BucketCredentials, presigned
from medweave_core.errors import UsageError
from support.old_python import assert_is_python

BUCKET = {"endpoint": "https://s3.example.org/", "bucket": "between"}
ACCOUNT = {"AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE", "AWS_SECRET_ACCESS_KEY": "secret%with(signs"}
FILE = (
    "[default]\naws_access_key_id = one\naws_secret_access_key = secret%with(signs\n[other]\naws_access_key_id = two\n"
)


def test_a_url_is_signed_as_in_the_aws_example() -> None:
    account = BucketCredentials(
        access_key="AKIAIOSFODNN7EXAMPLE", secret_key="wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
    )
    now = datetime.datetime(2013, 5, 24, tzinfo=datetime.UTC)
    url = presigned(
        "GET", "https://examplebucket.s3.amazonaws.com/test.txt", account, region="us-east-1", now=now, valid_s=86400
    )
    assert url.endswith("&X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404")
    assert "wJalr" not in repr(account)


def test_the_default_port_is_not_signed() -> None:
    account, now = BucketCredentials(access_key="a", secret_key="b", token="t/1"), datetime.datetime.now(datetime.UTC)
    with_port, without = (
        presigned("PUT", f"https://s3.example.org{port}/b/k", account, region="r", now=now, valid_s=9)
        for port in (":443", "")
    )
    assert with_port == without
    assert "X-Amz-Security-Token=t%2F1&" in without


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("size", [0, 1, 100_000])
def test_pieces_are_encrypted_with_aes_256_gcm(size: int, last: bool) -> None:
    key, data = os.urandom(32), os.urandom(size)
    encrypted = PieceCipher(key).encrypt(5, last, data)
    associated_data = b"last" if last else b"more"
    assert AESGCM(key).decrypt((5).to_bytes(12, "big"), encrypted, associated_data) == data
    assert PieceCipher(key).decrypt(5, last, encrypted) == data


@pytest.mark.parametrize("change", ["number", "last", "bit", "tag", "cut", "short", "key"])
def test_a_changed_piece_is_not_decrypted(change: str) -> None:
    key = os.urandom(32)
    encrypted = PieceCipher(key).encrypt(5, False, b"content")
    number, last = (6 if change == "number" else 5), change == "last"
    if change == "key":
        key = os.urandom(32)
    flipped = {"bit": 0, "tag": -1}
    if change in flipped:
        changed = bytearray(encrypted)
        changed[flipped[change]] ^= 1
        encrypted = bytes(changed)
    encrypted = {"cut": encrypted[:-1], "short": encrypted[:3]}.get(change, encrypted)
    with pytest.raises(PeerFailed, match="differs from the stored one"):
        PieceCipher(key).decrypt(number, last, encrypted)


def test_the_program_for_agents_is_valid_in_old_python_versions() -> None:
    text = program_text.of("bucket_peer")
    assert_is_python(text)
    assert "import medweave" not in text


# ---- credentials


@pytest.fixture
def account(tmp_path: Path) -> Path:
    file = tmp_path / "account"
    file.write_text(FILE)
    file.chmod(0o600)
    return file


def test_credentials_are_read_from_the_environment(tmp_path: Path) -> None:
    bucket = parse_bucket(BUCKET, folder=tmp_path, environment=ACCOUNT)
    assert (bucket.credentials.access_key, bucket.credentials.secret_key) == tuple(ACCOUNT.values())
    assert bucket.url_of("k") == "https://s3.example.org/between/medweave/k"
    names = {"accessKey": "MY_KEY", "secretKey": "MY_SECRET"}
    document = {**BUCKET, "credentials": names, "prefix": "/a/b/"}
    bucket = parse_bucket(document, folder=tmp_path, environment={"MY_KEY": "x", "MY_SECRET": "y"})
    assert (bucket.credentials.access_key, bucket.credentials.secret_key) == ("x", "y")
    assert bucket.url_of("k") == "https://s3.example.org/between/a/b/k"


@pytest.mark.parametrize("path", ["account", "${WHERE}/account"])
def test_credentials_are_read_from_a_file(account: Path, path: str) -> None:
    environment = {"WHERE": str(account.parent)}
    bucket = parse_bucket({**BUCKET, "credentials": path}, folder=account.parent, environment=environment)
    assert (bucket.credentials.access_key, bucket.credentials.secret_key) == ("one", "secret%with(signs")
    assert "secret" not in repr(bucket)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, "no AWS_ACCESS_KEY_ID and no AWS_SECRET_ACCESS_KEY"),
        ({"credentials": {"accessKey": "MY_KEY"}}, "no MY_KEY and no AWS_SECRET_ACCESS_KEY"),
        ({"credentials": "nowhere"}, "No such file"),
        ({"credentials": "open"}, "can be read by others"),
        ({"credentials": "none"}, "not in the form"),
        ({"credentials": "empty"}, "no aws_access_key_id and no aws_secret_access_key"),
        ({"ca": "nowhere"}, r"bucket.ca: .*nowhere cannot be read"),
        ({"ca": "none"}, r"bucket.ca: .*none has no certificate"),
    ],
)
def test_missing_credentials_and_certificates_are_reported(account: Path, change: dict[str, Any], why: str) -> None:
    for name, text, mode in (("open", FILE, 0o640), ("none", "a secret line", 0o600), ("empty", "", 0o600)):
        file = account.with_name(name)
        file.write_text(text)
        file.chmod(mode)
    environment = ACCOUNT if "ca" in change else {}
    with pytest.raises(UsageError, match=why) as raised:
        parse_bucket({**BUCKET, **change}, folder=account.parent, environment=environment)
    assert "secret line" not in str(raised.value)
    assert raised.value.__cause__ is None
