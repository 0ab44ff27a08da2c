"""Client for one namespace of an API server: pods, events and other objects, as plain JSON."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import aiohttp
from kubernetes_asyncio.client import ApiException

from medweave_connectors.sites.pods.api.credentials import renew_token
from medweave_connectors.sites.pods.api.masking import without_secrets
from medweave_connectors.sites.pods.objects.pod import ClusterEvent, Pod, parse_pod
from medweave_core.untrusted_text import load_json, plain_line

REQUEST_S = 15.0
PAGE = 250  # objects of a list in one answer
EVENTS_S = 2.0
RETRY_PAUSE_S = 1.0

T = TypeVar("T")
TimedEvent = tuple[str, ClusterEvent]  # timestamp of the server, event


class ApiServerError(Exception):
    """The API server refused a request or did not answer.

    Attributes:
        status: HTTP status; 0 where no server answered.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status

    @property
    def may_pass(self) -> bool:
        """Return whether a retry may succeed: no answer, or a server that is busy or has just started."""
        return self.status in (0, 401, 403, 429) or self.status >= 500


async def retry_while_starting(
    send: Callable[[], Awaitable[T]], *, limit_s: float, refused_s: float | None = None
) -> T:
    """Return the answer to an idempotent request; repeat it while the server is busy or starting.

    Args:
        limit_s: longest time to repeat it, s.
        refused_s: the same where the account is refused, which a server that has just started does for about a second; None for
            `limit_s`.

    Raises:
        ApiServerError: the server refused the request, or did not answer in that time.
    """
    began = time.monotonic()
    while True:
        try:
            return await send()
        except ApiServerError as error:
            longest_s = refused_s if refused_s is not None and error.status in (401, 403) else limit_s
            if not error.may_pass or time.monotonic() - began > longest_s:
                raise
        await asyncio.sleep(RETRY_PAUSE_S)


class NamespaceClient:
    """Requests to the API server, with a time limit; a failure is an `ApiServerError` with the server's message."""

    def __init__(self, api_client: Any, namespace: str) -> None:
        self._client, self.namespace = api_client, namespace

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> dict[str, Any]:
        """Send one request and return the JSON of the answer.

        Raises:
            ApiServerError: no answer, or another status than 2xx.
        """
        keys = {
            "query_params": list((query or {}).items()),
            "header_params": {"Accept": "application/json", "Content-Type": content_type},
            "body": body,
            "auth_settings": ["BearerToken"],
            "response_types_map": {200: "object", 201: "object", 202: "object"},
            "_return_http_data_only": True,
            "_request_timeout": REQUEST_S,
        }
        try:
            try:
                response = await self._client.call_api(path, method, **keys)
            except ApiException as error:
                if error.status != 401 or not await renew_token(self._client.configuration):
                    raise
                response = await self._client.call_api(path, method, **keys)
        except ApiException as error:
            raise ApiServerError(error.status or 0, _message(error)) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiServerError(0, plain_line(without_secrets(str(error))) or type(error).__name__) from error
        except (ValueError, TypeError, RecursionError) as error:
            raise ApiServerError(0, "its answer is not JSON") from error
        if response is not None and not isinstance(response, Mapping):
            raise ApiServerError(0, "its answer is not a JSON object")
        return dict(response or {})

    async def pods(self, selector: str) -> list[Pod]:
        """Return the pods with these labels, sorted by name and number."""
        answer = await self.request("GET", self._path("pods"), query={"labelSelector": selector})
        return sorted((read_pod(item) for item in answer.get("items") or []), key=lambda pod: pod.order)

    async def pod(self, name: str) -> Pod | None:
        """Return a pod; None if no pod has the name."""
        try:
            return read_pod(await self.request("GET", self._path("pods", name)))
        except ApiServerError as error:
            if error.status == 404:
                return None
            raise

    async def events(self, names: Sequence[str], since: datetime.datetime) -> list[ClusterEvent]:
        """Return the events of some objects, oldest first; none if the account may not read them.

        Args:
            names: names of objects, or prefixes that end in `-`.
        """
        return select_events(await self.list_events(), names, since)

    async def list_events(self) -> list[TimedEvent]:
        """Return all events of the namespace, oldest first; none if the account may not read them."""
        events: list[TimedEvent] = []
        with contextlib.suppress(ApiServerError):
            async for item in self._items(self._path("events")):
                with contextlib.suppress(KeyError, TypeError, AttributeError):  # no event
                    events.append(_event(item))
        return sorted(events)

    async def _items(self, path: str) -> AsyncIterator[dict[str, Any]]:
        """Yield the items of a list in pages: a busy namespace has thousands of events, which are requested every few seconds."""
        more = ""
        while True:
            query = {"limit": str(PAGE)} | ({"continue": more} if more else {})
            page = await self.request("GET", path, query=query)
            for item in page.get("items", []):
                yield item
            more = page.get("metadata", {}).get("continue", "")
            if not more:
                return

    async def secrets(self, selector: str) -> list[dict[str, Any]]:
        """Return the metadata of secrets with these labels."""
        answer = await self.request("GET", self._path("secrets"), query={"labelSelector": selector})
        return [item["metadata"] for item in answer.get("items", [])]

    def _path(self, plural: str, name: str = "") -> str:
        return f"/api/v1/namespaces/{self.namespace}/{plural}" + (f"/{name}" if name else "")


def read_pod(document: Mapping[str, Any]) -> Pod:
    """Return the pod in a JSON document of the API server.

    Raises:
        ApiServerError: the document is no pod.
    """
    try:
        return parse_pod(document)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ApiServerError(0, "its answer about a pod cannot be read") from error


def _event(item: Mapping[str, Any]) -> TimedEvent:
    metadata = item["metadata"]
    moment = item.get("lastTimestamp") or item.get("eventTime") or metadata.get("creationTimestamp") or ""
    text = plain_line(item.get("message") or "")
    known = metadata.get("uid") or metadata.get("name") or text
    return str(moment), ClusterEvent(
        str(item["involvedObject"].get("name") or ""), str(item.get("reason") or ""), text, str(known)
    )


def select_events(events: Sequence[TimedEvent], names: Sequence[str], since: datetime.datetime) -> list[ClusterEvent]:
    """Return the events of some objects since a time, in their order.

    Args:
        names: names of objects, or beginnings of names that end in `-`.
    """
    prefixes = tuple(name for name in names if name.endswith("-"))
    return [
        event
        for moment, event in events
        if (event.name in names or (prefixes and event.name.startswith(prefixes))) and _time(moment) >= since
    ]


def _message(error: ApiException) -> str:
    with contextlib.suppress(ValueError, TypeError, KeyError):
        return plain_line(str(load_json(error.body or "")["message"]))
    return plain_line(str(error.reason or error.status))


def _time(text: str) -> datetime.datetime:
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        return datetime.datetime.min.replace(tzinfo=datetime.UTC)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=datetime.UTC)


class EventCache:
    """Events of one namespace, requested at most every `EVENTS_S`, for all that wait for objects there."""

    def __init__(self, cluster: NamespaceClient) -> None:
        self._cluster = cluster
        self._events: list[TimedEvent] = []
        self._requested_s, self._request_lock = -EVENTS_S, asyncio.Lock()

    async def about(
        self, names: Sequence[str], since: datetime.datetime, *, at_once: bool = False
    ) -> list[ClusterEvent]:
        """Return the events of some objects, at most `EVENTS_S` old, oldest first; none if the account may not read them.

        Args:
            names: names of objects, or beginnings of names that end in `-`.
            at_once: request them now.
        """
        async with self._request_lock:
            if at_once or time.monotonic() - self._requested_s >= EVENTS_S:
                self._events = await self._cluster.list_events()
                self._requested_s = time.monotonic()
        return select_events(self._events, names, since)
