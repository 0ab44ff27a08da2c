"""The bucket of a site file, and its credentials from a file or the environment, never from the site file."""

from __future__ import annotations

import configparser
import os
import ssl
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medweave_connectors.transfer.routes.bucket.signing import BucketCredentials
from medweave_core.errors import UsageError

WHERE = "dataManager.config.bucket"
REGION, PREFIX = "us-east-1", "medweave"
VARIABLES = {
    "accessKey": "AWS_ACCESS_KEY_ID",
    "secretKey": "AWS_SECRET_ACCESS_KEY",
    "sessionToken": "AWS_SESSION_TOKEN",
}
_IN_FILE = {"accessKey": "aws_access_key_id", "secretKey": "aws_secret_access_key", "sessionToken": "aws_session_token"}
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketSettings:
    """The bucket that copies may use.

    Attributes:
        url: https; the last part of its path is the bucket's name.
        prefix: before the keys of all objects; no slash at its ends.
        ca: PEM certificates that sign the endpoint's; empty for the authorities that each machine trusts.
    """

    url: str
    prefix: str
    region: str
    credentials: BucketCredentials
    ca: str

    def url_of(self, key: str) -> str:
        """Return the URL of an object, without a signature."""
        return "/".join(filter(None, (self.url, self.prefix, key)))


def parse_bucket(
    settings: Mapping[str, Any], *, folder: Path, environment: Mapping[str, str] = os.environ
) -> BucketSettings:
    """Return the bucket that a site file declares (its schema has been checked).

    Args:
        folder: of the site file; relative paths start there.

    Raises:
        UsageError: the credentials or certificates are missing; the message names the key.
    """
    ca_file = _path(settings["ca"], folder, environment) if settings.get("ca") else None
    ca = _text(ca_file, f"{WHERE}.ca") if ca_file else ""
    try:
        tls(ca)
    except (ssl.SSLError, ValueError):
        raise UsageError(
            f"{WHERE}.ca: {ca_file} has no certificate.",
            seen="something else",
            expected="one or more blocks from BEGIN CERTIFICATE to END CERTIFICATE",
            do="name the file of the CA that signed the endpoint's certificate",
        ) from None
    return BucketSettings(
        url=f"{settings['endpoint'].rstrip('/')}/{settings['bucket']}",
        prefix=settings.get("prefix", PREFIX).strip("/"),
        region=settings.get("region", REGION),
        credentials=_credentials(settings.get("credentials", VARIABLES), folder, environment),
        ca=ca,
    )


def tls(ca: str) -> ssl.SSLContext:
    """Return the TLS context for an endpoint."""
    return ssl.create_default_context(cadata=ca or None)


def _credentials(source: str | Mapping[str, str], folder: Path, environment: Mapping[str, str]) -> BucketCredentials:
    if isinstance(source, str):
        values, names, where = _in_file(_path(source, folder, environment)), _IN_FILE, "in the file, in [default]"
    else:
        names, where = {**VARIABLES, **source}, "variables of the environment"
        values = {key: environment.get(name, "") for key, name in names.items()}
    if missing := [names[key] for key in ("accessKey", "secretKey") if not values[key]]:
        raise UsageError(
            f"{WHERE}.credentials: there are no credentials for the bucket.",
            seen=f"no {' and no '.join(missing)}",
            expected=f"{names['accessKey']} and {names['secretKey']}, {where}",
            do="set them where medweave runs, or name a file that has them",
        )
    return BucketCredentials(
        access_key=values["accessKey"], secret_key=values["secretKey"], token=values["sessionToken"]
    )


def _in_file(path: Path) -> dict[str, str]:
    """Return the values of a file in the format of ~/.aws/credentials."""
    text, what = _text(path, f"{WHERE}.credentials"), f"{WHERE}.credentials: {path}"
    if (mode := path.stat().st_mode) & _OTHERS:
        raise UsageError(
            f"{what} can be read by others.",
            seen=f"mode {stat.S_IMODE(mode):o}",
            expected="mode 600",
            do=f"chmod 600 {path}, and ask for another key if others have used this machine",
        )
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(text)
    except configparser.Error:  # its message quotes lines of the file
        raise UsageError(
            f"{what} is not in the form of an AWS credentials file.",
            seen="something else",
            expected="[default], then aws_access_key_id = … and aws_secret_access_key = …",
            do="write it so",
        ) from None
    section = parser["default"] if parser.has_section("default") else {}
    return {key: section.get(name, "") for key, name in _IN_FILE.items()}


def _path(text: str, folder: Path, environment: Mapping[str, str]) -> Path:
    for name, value in environment.items():
        text = text.replace(f"${{{name}}}", value)
    return folder / Path(text).expanduser()


def _text(path: Path, where: str) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{where}: {path} cannot be read.",
            seen=(error.strerror or "no reason") if isinstance(error, OSError) else "no text",
            expected="a file of text",
            do="correct the path",
        ) from None
