"""Programs that a kubeconfig names to get a token (`users[].user.exec`): asked at the start, and before the token expires."""

from __future__ import annotations

import asyncio
import datetime
import itertools
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medweave_connectors.host import programs
from medweave_connectors.sites.pods.api.masking import without_secrets

PLUGIN_S = 60.0
AGAIN_S = 5.0  # a program that has just answered, or failed, is not asked again at once
EARLY_S = 30.0  # before the end of a token, or a fifth of its life
LAST_LINES = 5
TOKEN = "BearerToken"  # the name of the API key in kubernetes_asyncio
_SECRET_NAME = re.compile(r"(?i)token|secret|passw|key$")


class PluginFailed(ConnectionError):
    """The program gave no credential: there is no way to the cluster. The text has its last words, and no secret.

    Attributes:
        hint: what the kubeconfig says about its installation; empty where it says nothing.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """What a program printed.

    Attributes:
        certificate, key: PEM; empty where it gave a token.
        expires: s since the epoch; None where it did not say.
    """

    token: str = ""
    certificate: str = ""
    key: str = ""
    expires: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """A program, as the kubeconfig describes it.

    Attributes:
        where: its field and file, for messages.
        environment: variables that it gets besides ours.
        hint: how to install it.
    """

    where: str
    command: Sequence[str]
    environment: Mapping[str, str]
    version: str
    hint: str = ""

    async def ask(self) -> Credential:
        """Runs it.

        Raises:
            PluginFailed: it is missing, fails, does not end, or prints something else.
        """
        info = {"apiVersion": self.version, "kind": "ExecCredential", "spec": {"interactive": False}}
        try:
            ended = await programs.run(
                self.command,
                timeout_s=PLUGIN_S,
                environment={**self.environment, "KUBERNETES_EXEC_INFO": json.dumps(info)},
            )
        except TimeoutError:
            raise self._failed(f"'{self.command[0]}' did not end within {PLUGIN_S:.0f} s") from None
        except OSError as error:
            raise self._failed(f"'{self.command[0]}' cannot be started: {error.strerror}") from error
        if ended.code:
            words = "\n".join(ended.stderr.decode(errors="replace").strip().splitlines()[-LAST_LINES:])
            words = without_secrets(words, self._secrets())
            raise self._failed(f"'{self.command[0]}' ended with {ended.code}: {words or 'it said nothing'}")
        try:
            return read_credential(ended.stdout.decode(errors="replace"), self.version)
        except ValueError as error:
            raise self._failed(f"'{self.command[0]}' printed no usable ExecCredential: {error}") from None

    def _secrets(self) -> list[str]:
        named = [*self.environment.items(), *itertools.pairwise(self.command)]
        return [value for name, value in named if _SECRET_NAME.search(name)]

    def _failed(self, what: str) -> PluginFailed:
        return PluginFailed(f"{self.where}: {what}", self.hint)


def read_plugin(given: Mapping[str, Any], *, where: str, folder: str) -> Plugin:
    """The program of a user's `exec`.

    Args:
        folder: of the kubeconfig; a command with a `/` starts there.

    Raises:
        PluginFailed: a key is missing or of the wrong type.
    """
    command, version = given.get("command"), given.get("apiVersion")
    arguments, variables = given.get("args") or [], given.get("env") or []
    if not (isinstance(command, str) and command and isinstance(version, str)):
        raise PluginFailed(f"{where}: there must be a `command` and an `apiVersion`")
    try:
        environment = {str(each["name"]): str(each["value"]) for each in variables}
        words = [str(each) for each in arguments]
    except (TypeError, KeyError):
        raise PluginFailed(f"{where}: `args` is a list of texts, `env` one of names and values") from None
    if "/" in command:
        command = str(Path(folder) / command)
    hint = " ".join(str(given.get("installHint") or "").split())
    return Plugin(where=where, command=(command, *words), environment=environment, version=version, hint=hint)


def read_credential(text: str, version: str) -> Credential:
    """The credential that a program printed.

    Raises:
        ValueError: it is none; the message quotes nothing of it, because there may be a token in it.
    """
    try:
        document = json.loads(text)
    except ValueError:
        raise ValueError("no JSON") from None
    status = document.get("status") if isinstance(document, dict) else None
    if not isinstance(status, dict) or document.get("kind") != "ExecCredential":
        raise ValueError("no ExecCredential with a `status`")
    if document.get("apiVersion") != version:
        raise ValueError(f"its apiVersion is not that of the kubeconfig, {version}")
    credential = Credential(
        token=str(status.get("token") or ""),
        certificate=str(status.get("clientCertificateData") or ""),
        key=str(status.get("clientKeyData") or ""),
        expires=_moment(status.get("expirationTimestamp")),
    )
    if not credential.token and not (credential.certificate and credential.key):
        raise ValueError("neither a token nor a certificate with its key")
    return credential


class Credentials:
    """The token of a user, as a hook of kubernetes_asyncio that looks before each request whether it is time for a new one.

    A certificate is asked for at the start only: connections keep the one with which they were opened.
    """

    def __init__(self, plugin: Plugin) -> None:
        self._plugin = plugin
        self._asking = asyncio.Lock()
        self._asked = -AGAIN_S
        self._due: float | None = None
        self._failure: PluginFailed | None = None

    async def __call__(self, configuration: Any) -> None:
        """Before a request.

        Raises:
            PluginFailed: the token has expired, and there is no new one.
        """
        if self._due is not None and time.time() >= self._due:
            await self.renew(configuration)

    async def first(self) -> Credential:
        """The credential to begin with."""
        self._asked = time.monotonic()
        credential = await self._plugin.ask()
        self._keep(credential)
        return credential

    async def renew(self, configuration: Any) -> None:
        """Asks for another token, if the last one is not of this moment.

        Raises:
            PluginFailed: there is none.
        """
        async with self._asking:
            if time.monotonic() - self._asked < AGAIN_S:
                if self._failure is not None:
                    raise self._failure
                return
            self._asked, self._failure = time.monotonic(), None
            try:
                credential = await self._plugin.ask()
            except PluginFailed as error:
                self._failure = error
                raise
            self._keep(credential)
            if credential.token:
                configuration.api_key[TOKEN] = f"Bearer {credential.token}"

    def _keep(self, credential: Credential) -> None:
        now = time.time()
        if credential.expires is not None:
            self._due = credential.expires - min(EARLY_S, max(credential.expires - now, 0.0) / 5)


async def renewed(configuration: Any) -> bool:
    """After an answer 401: True where another try may do; False where no program gives tokens.

    Raises:
        PluginFailed: its program fails.
    """
    hook = configuration.refresh_api_key_hook
    if not isinstance(hook, Credentials):
        return False
    await hook.renew(configuration)
    return True


def _moment(text: object) -> float | None:
    if text is None:
        return None
    try:
        return datetime.datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        raise ValueError("its expirationTimestamp is no moment") from None
