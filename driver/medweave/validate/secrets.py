"""Plaintext secrets: in text files by their form, in YAML also by their key."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from medweave.validate.findings import ValidationFinding, finding_at
from medweave.validate.images import RECIPES
from medweave_core.documents.line_numbers import FieldPath
from medweave_core.documents.source_documents import SourceDocument

MOST_BYTES = 1 << 20
EXPECTED = "a variable (${NAME}), a file outside the repository, or a Secret of the cluster"
FIX = "remove it and revoke it: everyone who can read the git history has it"
# Kind, texts of which one is contained, regular expression. The texts make the search fast.
_FORMS = (
    (
        "a private key",
        ("PRIVATE KEY-----",),
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----\s+(?:[\w-]+: [^\n]*\s+)*[A-Za-z0-9+/=]{20,}",
    ),
    ("an AWS access key", ("AKIA",), r"AKIA[0-9A-Z]{16}\b"),
    ("a GitHub token", ("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), r"gh[pousr]_[A-Za-z0-9]{36,}"),
    ("a GitHub token", ("github_pat_",), r"github_pat_[A-Za-z0-9_]{60,}"),
    ("a GitLab token", ("glpat-",), r"glpat-[A-Za-z0-9_-]{20,}"),
    ("a Slack token", ("xox",), r"xox[abprs]-[A-Za-z0-9-]{20,}"),
    ("a Slack webhook", ("hooks.slack.com/",), r"hooks\.slack\.com/(?:services|workflows)/[A-Za-z0-9+/]{30,}"),
    ("a Teams webhook", (".webhook.office.com/",), r"\.webhook\.office\.com/webhookb2/[0-9a-f-]{36}@"),
    ("a Docker Hub token", ("dckr_pat_",), r"dckr_pat_[A-Za-z0-9_-]{20,}"),
    ("a Google API key", ("AIza",), r"\bAIza[0-9A-Za-z_-]{35}"),
    ("an Azure storage key", ("AccountKey=",), r"AccountKey=[A-Za-z0-9+/]{40,}={0,2}"),
    ("a Hugging Face token", ("hf_",), r"\bhf_[A-Za-z]{34,}\b"),
    ("a token (JWT)", (".eyJ",), r"eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}"),
    ("a password in a URL", ("://",), r"://[A-Za-z0-9._-]+:(?!\$|<|\{|%|\*|…)[^\s/:@\"'<>{}$]{4,}@[A-Za-z0-9]"),
)
_COMPILED = tuple((name, hints, re.compile(form)) for name, hints, form in _FORMS)
_KEY = re.compile(
    r"(?i)(?:^|[a-z_-])(?:password|passwd|passphrase|secret|token|api-?_?key|access-?_?key(?:-?_?id)?|private-?_?key|client-key-data)$"
)
_SETTING = re.compile(
    r"(?im)^\s*(?:export\s+)?[A-Z0-9_]*(?:PASSWORD|PASSWD|SECRET|TOKEN|API_KEY)[A-Z0-9_]*\s*=\s*[\"']?(?![$<{/~])([^\s\"'#]{8,})"
)
# Settings in a recipe of an image: `ENV NAME=VALUE`, `ENV NAME VALUE`, `ARG NAME=VALUE`.
_OF_RECIPE = re.compile(
    r"(?im)^\s*(?:ENV|ARG)\s+(?:\S+=\S+\s+)*[A-Z0-9_]*(?:PASSWORD|PASSWD|SECRET|TOKEN|API_KEY)(?:\s*=\s*|[ \t]+)"
    r"[\"']?(?![$<{/~])([^\s\"'#]{4,})"
)
_OF_JSON = re.compile(r'"(?P<key>[\w.-]+)"\s*:\s*"(?P<value>[^"]+)"')
_AUTH = re.compile(r"[A-Za-z0-9+/]{12,}={0,2}")  # login of Docker: user and password in base64
SETTINGS = (".env", ".sh", ".ini", ".cfg", ".conf", ".properties", ".toml")


def check_text(path: Path) -> Iterator[ValidationFinding]:
    """Yield secrets in a text file, by their form."""
    try:
        if path.stat().st_size > MOST_BYTES:
            return
        text = path.read_bytes()
    except OSError:
        return
    if b"\0" in text[:4096]:
        return
    decoded = text.decode("utf-8", "replace")
    for name, offset in _with_form(decoded):
        yield _at(path, decoded, offset, f"this file contains {name}.", name)
    for offset, what in _secret_settings(path, decoded):
        yield _at(path, decoded, offset, "this file contains a password or token.", what)


def _secret_settings(path: Path, text: str) -> Iterator[tuple[int, str]]:
    """Yield settings with the names of secrets, without values that have the form of a secret."""
    if path.suffix in SETTINGS or path.name.startswith(".env"):
        matches, kind = list(_SETTING.finditer(text)), "a key with a value"
    elif path.name.startswith(RECIPES) or path.suffix == ".Containerfile":
        matches, kind = list(_OF_RECIPE.finditer(text)), "an image variable with a value"
    elif path.suffix in (".json", ".dockerconfigjson", ".dockercfg") or path.name == ".dockercfg":
        pairs = _OF_JSON.finditer(text) if _hints_of_json(text) else ()
        for match in pairs:
            key, value = match["key"], match["value"]
            is_login = key == "auth" and _AUTH.fullmatch(value)
            if (is_login or (_KEY.search(key) and _is_value(value))) and not any(_with_form(value)):
                yield match.start("value"), f"'{key}' with a value"
        return
    else:
        return
    yield from ((match.start(1), kind) for match in matches if not any(_with_form(match[0])))


def _hints_of_json(text: str) -> bool:
    low = text.lower()
    return any(word in low for word in ("pass", "secret", "token", "key", '"auth"'))


def _is_value(text: str) -> bool:
    """Return whether the value of a secret setting is a secret: neither a variable nor a path."""
    return "${" not in text and not text.startswith(("/", "~", "./", "../", "$", "<"))


def _with_form(text: str) -> Iterator[tuple[str, int]]:
    """Yield kind and offset of each text with the form of a secret."""
    for name, hints, form in _COMPILED:
        if any(hint in text for hint in hints):
            yield from ((name, match.start()) for match in form.finditer(text))


def _at(path: Path, text: str, offset: int, what: str, seen: str) -> ValidationFinding:
    start = text.rfind("\n", 0, offset) + 1
    return ValidationFinding(
        file=path, line=text.count("\n", 0, offset) + 1, column=offset - start + 1, rule="secret-in-clear", what=what,
        seen=f"{seen} (not shown)", expected=EXPECTED, fix=FIX,
    )  # fmt: skip


def check_document(source: SourceDocument) -> Iterator[ValidationFinding]:
    """Yield values of secret keys in a document. Not for CWL, where such keys are names of inputs."""
    data = source.data
    if isinstance(data, Mapping) and data.get("kind") == "Secret" and "apiVersion" in data:
        for section in ("data", "stringData"):
            members = data.get(section)
            for key, value in members.items() if isinstance(members, Mapping) else ():
                if value and "${" not in str(value) and not any(_with_form(str(value))):
                    yield _finding(source, (section, key))
        return
    for field, value in _under_secret_keys(data, ()):
        if not any(_with_form(value)):  # reported by its form
            yield _finding(source, field)


def _finding(source: SourceDocument, field: FieldPath) -> ValidationFinding:
    return finding_at(
        source,
        "secret-in-clear",
        field,
        f"'{field[-1]}' is a plaintext secret.",
        seen="a value (not shown)",
        expected=EXPECTED,
        fix=FIX,
    )


def _under_secret_keys(value: Any, field: FieldPath) -> Iterable[tuple[FieldPath, str]]:
    if isinstance(value, Mapping):
        name, text_value = value.get("name"), value.get("value")  # an environment variable of a container
        if (
            isinstance(name, str)
            and isinstance(text_value, str)
            and text_value
            and _KEY.search(name)
            and _is_value(text_value)
        ):
            yield (*field, "value"), text_value
        for key, item in value.items():
            if isinstance(item, str) and item and isinstance(key, str) and _KEY.search(key):
                if _is_value(item):
                    yield (*field, key), item
            else:
                yield from _under_secret_keys(item, (*field, key))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _under_secret_keys(item, (*field, number))
