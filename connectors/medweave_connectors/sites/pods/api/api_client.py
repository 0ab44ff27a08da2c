"""API clients configured by a kubeconfig and the environment: certificates, proxy and credentials."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode, urlsplit

import aiohttp
from kubernetes_asyncio.client import ApiClient, Configuration
from kubernetes_asyncio.config import ConfigException
from kubernetes_asyncio.config.kube_config import FileOrData, KubeConfigLoader, KubeConfigMerger
from kubernetes_asyncio.stream import WsApiClient
from kubernetes_asyncio.stream.ws_client import get_websocket_url

from medweave_connectors.sites.pods.api.channels import WebsocketChannels
from medweave_connectors.sites.pods.api.credentials import TOKEN, ExecCredentials, read_plugin, renew_token
from medweave_connectors.sites.pods.api.namespace_client import REQUEST_S
from medweave_connectors.sites.pods.api.spdy import UPGRADE, SpdyChannels

READ_BYTES = 2**21  # etcd's largest object is 1.5 MiB
_PROXIES = ("http", "https")
Opened = TypeVar("Opened")
_Connect = Callable[[str, dict[str, str]], Awaitable[Opened]]


class Kubeconfig(KubeConfigLoader):
    """kubernetes_asyncio's loader with our credential plugins: its own runs them once, and without a time limit."""

    credentials: ExecCredentials | None = None

    async def load_from_exec_plugin(self) -> bool:
        """Run the credential plugin of the user.

        Raises:
            PluginFailed: it returns no credential.
        """
        assert self._current_context is not None
        assert self._user is not None
        plugin = read_plugin(
            self._user["exec"].value,
            where=f"users[{self._current_context['context']['user']}].user.exec",
            folder=self._get_base_path(self._user.path),
        )
        self.credentials = ExecCredentials(plugin)
        credential = await self.credentials.first()
        if credential.token:
            self.token = f"Bearer {credential.token}"
        if credential.certificate:
            self.cert_file: str | None = _file(credential.certificate)
            self.key_file: str | None = _file(credential.key)
        return True


class UnknownContext(Exception):
    """A kubeconfig has no context of that name; the arguments are its contexts."""


def find_kubeconfig(configured: str | None) -> str:
    """Return the kubeconfig of a deployment: the configured one, else `KUBECONFIG`, else that of the home folder."""
    return configured or os.environ.get("KUBECONFIG") or str(Path("~/.kube/config").expanduser())


async def load_configuration(kubeconfig: str, context: str | None) -> Configuration:
    """Return the configuration of the clients, with the proxy that applies.

    Raises:
        UnknownContext: it has no such context.
        ConfigException, OSError, ValueError, KeyError, TypeError, AssertionError: the file cannot be used.
        PluginFailed: its credential plugin returns no credential.
    """
    merged = KubeConfigMerger(kubeconfig)
    if context is not None and merged.config is not None:
        known = [context["name"] for context in merged.config.value.get("contexts") or []]
        if context not in known:
            raise UnknownContext(*known)
    loader = Kubeconfig(
        config_dict=merged.config, config_base_path=None, active_context=context, config_persister=merged.save_changes
    )
    configuration = Configuration()
    await loader.load_and_set(configuration)
    configuration.refresh_api_key_hook = loader.credentials
    configuration.proxy = configuration.proxy or find_proxy(str(configuration.host), os.environ)
    if configuration.proxy and urlsplit(configuration.proxy).scheme not in _PROXIES:
        raise ConfigException(f"a {urlsplit(configuration.proxy).scheme}: proxy is not supported; http: and https: are")
    return configuration


def create_clients(configuration: Configuration, *, heartbeat_s: float) -> tuple[ApiClient, WsApiClient]:
    """Return the client for requests and the one for commands."""
    plain, websocket = ApiClient(configuration=configuration), _WebsocketClient(configuration, heartbeat_s=heartbeat_s)
    for client in (plain, websocket):
        # The session of kubernetes_asyncio would read proxies from the environment, and not for the websocket.
        rest = client.rest_client
        connector = rest.pool_manager.connector
        rest.pool_manager.detach()
        rest.pool_manager = aiohttp.ClientSession(connector=connector, read_bufsize=READ_BYTES)
    websocket.set_default_header("Connection", "upgrade,keep-alive")
    return plain, websocket


def find_proxy(server: str, environment: Mapping[str, str]) -> str | None:
    """Return the proxy of the environment for a server, by the rules of kubectl and helm; None for none.

    Args:
        server: URL of the API server.
        environment: HTTPS_PROXY, HTTP_PROXY and NO_PROXY count, in capitals or not.
    """
    parts = urlsplit(server)
    host, kind = parts.hostname or "", parts.scheme
    proxy = environment.get(f"{kind.upper()}_PROXY") or environment.get(f"{kind}_proxy")
    if not proxy or host == "localhost" or _is_loopback(host):
        return None
    port = parts.port or (443 if kind == "https" else 80)
    without = environment.get("NO_PROXY") or environment.get("no_proxy") or ""
    if any(_matches(rule.strip().lower(), host, port) for rule in without.split(",")):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


class _WebsocketClient(WsApiClient):
    """Websocket client with proxy, TLS server name and SPDY, which kubernetes_asyncio's lacks."""

    def __init__(self, configuration: Configuration, *, heartbeat_s: float) -> None:
        super().__init__(configuration)
        self._heartbeat_s = heartbeat_s

    async def request(
        self,
        method: str,
        url: str,
        query_params: Any = None,
        headers: Any = None,
        post_params: Any = None,
        body: Any = None,
        _preload_content: bool = True,
        _request_timeout: Any = None,
    ) -> Any:
        """Return an awaitable that opens the channels, over a websocket (GET) or over SPDY (POST)."""
        words = [(key, text) for key, value in query_params or [] for text in (value if key == "command" else [value])]
        if method == "POST":
            return self._open(self._upgraded, f"{url}?{urlencode(words)}", dict(headers))
        return self._open(self._connect, f"{get_websocket_url(url)}?{urlencode(words)}", dict(headers))

    async def _open(self, connect: _Connect[Opened], url: str, headers: dict[str, str]) -> Opened:
        try:
            return await connect(url, headers)
        except aiohttp.ClientResponseError as error:
            # Refused before the command was started.
            if error.status != 401 or not await renew_token(self.configuration):
                raise
        token = self.configuration.api_key[TOKEN]
        return await connect(
            url, {key: token if key.lower() == "authorization" else value for key, value in headers.items()}
        )

    async def _connect(self, url: str, headers: dict[str, str]) -> WebsocketChannels:
        rest = self.rest_client
        socket = await rest.pool_manager.ws_connect(
            url, headers=headers, autoping=False, proxy=rest.proxy, server_hostname=rest.server_hostname
        )
        return WebsocketChannels(socket, heartbeat_s=self._heartbeat_s)

    async def _upgraded(self, url: str, headers: dict[str, str]) -> SpdyChannels:
        rest = self.rest_client
        response = await rest.pool_manager.post(
            url,
            headers=headers | UPGRADE,
            proxy=rest.proxy,
            server_hostname=rest.server_hostname,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=REQUEST_S, sock_read=REQUEST_S),
        )
        if response.status != HTTPStatus.SWITCHING_PROTOCOLS:
            response.close()
            raise aiohttp.ClientResponseError(
                response.request_info, response.history, status=response.status, message=response.reason or ""
            )
        return SpdyChannels(response, heartbeat_s=self._heartbeat_s)


def _matches(rule: str, host: str, port: int) -> bool:
    if rule in ("", "*"):
        return rule == "*"
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(rule, strict=False)
    except ValueError:
        pass
    name, colon, number = rule.rpartition(":")
    if colon and number.isdecimal():
        return int(number) == port and _matches(name, host, port)
    name = rule.removeprefix("*")
    return host.endswith(name) if name.startswith(".") else host == name or host.endswith(f".{name}")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _file(pem: str) -> str | None:
    return FileOrData({"pem": pem}, None, data_key_name="pem", base64_file_content=False).as_file()
