"""Credential plugins of a kubeconfig (`users[].user.exec`): run at the start, and before their token expires."""

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
AGAIN_S = 5.0  # shortest time between two runs of a plugin
EARLY_S = 30.0  # before the end of a token, or a fifth of its life
LAST_LINES = 5
TOKEN = "BearerToken"  # the name of the API key in kubernetes_asyncio
_SECRET_NAME = re.compile(r"(?i)token|secret|passw|key$")


class PluginFailed(ConnectionError):
    """A credential plugin returned no credential. The message has the end of its output, without secrets.

    Attributes:
        hint: the kubeconfig's `installHint`; empty if it has none.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """Credential that a plugin printed.

    Attributes:
        certificate, key: PEM; empty with a token.
        expires: s since the epoch; None if not stated.
    """

    token: str = ""
    certificate: str = ""
    key: str = ""
    expires: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """Credential plugin, as the kubeconfig describes it.

    Attributes:
        where: its field and file, for messages.
        environment: variables that are added to the driver's.
        hint: how to install it.
    """

    where: str
    command: Sequence[str]
    environment: Mapping[str, str]
    version: str
    hint: str = ""

    async def run(self) -> Credential:
        """Run the plugin and return its credential.

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
            raise self._failed(f"'{self.command[0]}' ended with {ended.code}: {words or 'without a message'}")
        try:
            return read_credential(ended.stdout.decode(errors="replace"), self.version)
        except ValueError as error:
            raise self._failed(f"'{self.command[0]}' printed no usable ExecCredential: {error}") from None

    def _secrets(self) -> list[str]:
        named = [*self.environment.items(), *itertools.pairwise(self.command)]
        return [value for name, value in named if _SECRET_NAME.search(name)]

    def _failed(self, what: str) -> PluginFailed:
        return PluginFailed(f"{self.where}: {what}", self.hint)


def read_plugin(settings: Mapping[str, Any], *, where: str, folder: str) -> Plugin:
    """Return the plugin in a user's `exec`.

    Args:
        folder: of the kubeconfig; a command with a `/` starts there.

    Raises:
        PluginFailed: a key is missing or of the wrong type.
    """
    command, version = settings.get("command"), settings.get("apiVersion")
    arguments, variables = settings.get("args") or [], settings.get("env") or []
    if not (isinstance(command, str) and command and isinstance(version, str)):
        raise PluginFailed(f"{where}: there must be a `command` and an `apiVersion`")
    try:
        environment = {str(variable["name"]): str(variable["value"]) for variable in variables}
        words = [str(argument) for argument in arguments]
    except (TypeError, KeyError):
        raise PluginFailed(f"{where}: `args` must be a list of strings, `env` a list of names and values") from None
    if "/" in command:
        command = str(Path(folder) / command)
    hint = " ".join(str(settings.get("installHint") or "").split())
    return Plugin(where=where, command=(command, *words), environment=environment, version=version, hint=hint)


def read_credential(text: str, version: str) -> Credential:
    """Return the credential that a plugin printed.

    Raises:
        ValueError: the text is no credential; the message does not quote it, because it may contain a token.
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


class ExecCredentials:
    """The token of a user, as a hook of kubernetes_asyncio that renews it before a request once it is due.

    A certificate is requested only at the start: open connections use the one they were opened with.
    """

    def __init__(self, plugin: Plugin) -> None:
        self._plugin = plugin
        self._request_lock = asyncio.Lock()
        self._requested_s = -AGAIN_S
        self._due: float | None = None
        self._failure: PluginFailed | None = None

    async def __call__(self, configuration: Any) -> None:
        """Renew a token that is due, before a request.

        Raises:
            PluginFailed: the plugin returned no new token.
        """
        if self._due is not None and time.time() >= self._due:
            await self.renew(configuration)

    async def first(self) -> Credential:
        """Return the first credential."""
        self._requested_s = time.monotonic()
        credential = await self._plugin.run()
        self._keep(credential)
        return credential

    async def renew(self, configuration: Any) -> None:
        """Request another token, unless the last one is at most `AGAIN_S` old.

        Raises:
            PluginFailed: the plugin returned none.
        """
        async with self._request_lock:
            if time.monotonic() - self._requested_s < AGAIN_S:
                if self._failure is not None:
                    raise self._failure
                return
            self._requested_s, self._failure = time.monotonic(), None
            try:
                credential = await self._plugin.run()
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


async def renew_token(configuration: Any) -> bool:
    """Renew the token after an answer 401; return False if no plugin provides tokens.

    Raises:
        PluginFailed: its program fails.
    """
    hook = configuration.refresh_api_key_hook
    if not isinstance(hook, ExecCredentials):
        return False
    await hook.renew(configuration)
    return True


def _moment(text: object) -> float | None:
    if text is None:
        return None
    try:
        return datetime.datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        raise ValueError("its expirationTimestamp is not a time") from None
