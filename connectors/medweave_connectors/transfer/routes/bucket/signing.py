"""URLs that authorize one request of S3 for some minutes (AWS Signature Version 4, in the query). Pure.

Source: AWS, "Authenticating Requests: Using Query Parameters (AWS Signature Version 4)", whose example is a test.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
from dataclasses import dataclass, field
from urllib.parse import quote, urlsplit

_ALGORITHM = "AWS4-HMAC-SHA256"
_UNRESERVED = "-_.~"


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketCredentials:
    """The credentials of an account; the representation of the object shows none of them.

    Attributes:
        token: of a temporary account; empty for others.
    """

    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    token: str = field(default="", repr=False)


def presigned(
    method: str, url: str, credentials: BucketCredentials, *, region: str, now: datetime.datetime, valid_s: int
) -> str:
    """Return the URL of an object, signed for one method.

    Args:
        url: https, without a query; its path unquoted.
        now: in UTC.
        valid_s: seconds from now, at most a week.
    """
    parts = urlsplit(url)
    host, path = parts.netloc.removesuffix(":443"), quote(parts.path, safe="/" + _UNRESERVED)
    stamp = now.strftime("%Y%m%dT%H%M%SZ")
    scope = f"{stamp[:8]}/{region}/s3/aws4_request"
    values = {
        "X-Amz-Algorithm": _ALGORITHM,
        "X-Amz-Credential": f"{credentials.access_key}/{scope}",
        "X-Amz-Date": stamp,
        "X-Amz-Expires": str(valid_s),
        "X-Amz-SignedHeaders": "host",
        **({"X-Amz-Security-Token": credentials.token} if credentials.token else {}),
    }
    query = "&".join(f"{name}={quote(value, safe=_UNRESERVED)}" for name, value in sorted(values.items()))
    request = "\n".join((method, path, query, f"host:{host}", "", "host", "UNSIGNED-PAYLOAD"))
    text = "\n".join((_ALGORITHM, stamp, scope, hashlib.sha256(request.encode()).hexdigest()))
    key = f"AWS4{credentials.secret_key}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    return f"https://{host}{path}?{query}&X-Amz-Signature={signature}"
