"""The API server as one account sees it: pods, events and other objects of one namespace, as plain JSON."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import aiohttp
from kubernetes_asyncio.client import ApiException

from medweave_connectors.sites.pods.api.credentials import renewed
from medweave_connectors.sites.pods.api.masking import without_secrets
from medweave_connectors.sites.pods.startup.pod import Event, Pod, parse_pod
from medweave_core.untrusted_text import load_json, plain_line

REQUEST_S = 15.0
PAGE = 250  # objects of a list in one answer


Told = tuple[str, Event]  # when, as the server writes it, and what


class Refused(Exception):
    """The API server does not do what it was asked.

    Attributes:
        status: HTTP status; 0 where no server answered.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status

    @property
    def may_pass(self) -> bool:
        """True where nobody answered, or a server that is busy or has just been started: another try may do.

        For its first second a server knows nobody's rights.
        """
        return self.status in (0, 401, 403, 429) or self.status >= 500


class Cluster:
    """Requests to the API server. Each has a time limit, and each failure is a `Refused` with the server's own words."""

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
        """One request; the answer's JSON.

        Raises:
            Refused: no answer, or another status than 2xx.
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
                if error.status != 401 or not await renewed(self._client.configuration):
                    raise
                response = await self._client.call_api(path, method, **keys)
        except ApiException as error:
            raise Refused(error.status or 0, _message(error)) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Refused(0, plain_line(without_secrets(str(error))) or type(error).__name__) from error
        except (ValueError, TypeError, RecursionError) as error:
            raise Refused(0, "its answer is not JSON") from error
        if response is not None and not isinstance(response, Mapping):
            raise Refused(0, "its answer is no JSON object")
        return dict(response or {})

    async def pods(self, selector: str) -> list[Pod]:
        """The pods with these labels, sorted by name and number."""
        found = await self.request("GET", self._path("pods"), query={"labelSelector": selector})
        return sorted((read_pod(item) for item in found.get("items") or []), key=lambda pod: pod.order)

    async def pod(self, name: str) -> Pod | None:
        """One pod; None if there is none of that name."""
        try:
            return read_pod(await self.request("GET", self._path("pods", name)))
        except Refused as error:
            if error.status == 404:
                return None
            raise

    async def events(self, names: Sequence[str], since: datetime.datetime) -> list[Event]:
        """The events of some objects, oldest first; none where the account may not read them.

        Args:
            names: names of objects, or beginnings of names that end in `-`.
        """
        return chosen(await self.told(), names, since)

    async def told(self) -> list[Told]:
        """All events of the namespace, oldest first; none where the account may not read them."""
        told: list[Told] = []
        with contextlib.suppress(Refused):
            async for item in self._items(self._path("events")):
                with contextlib.suppress(KeyError, TypeError, AttributeError):  # no event
                    told.append(_event(item))
        return sorted(told)

    async def _items(self, path: str) -> AsyncIterator[dict[str, Any]]:
        """In pages: a busy namespace has thousands of events, and they are asked for every few seconds."""
        more = ""
        while True:
            page = {"limit": str(PAGE)} | ({"continue": more} if more else {})
            found = await self.request("GET", path, query=page)
            for item in found.get("items", []):
                yield item
            more = found.get("metadata", {}).get("continue", "")
            if not more:
                return

    async def secrets(self, selector: str) -> list[dict[str, Any]]:
        """The metadata of secrets with these labels."""
        found = await self.request("GET", self._path("secrets"), query={"labelSelector": selector})
        return [item["metadata"] for item in found.get("items", [])]

    def _path(self, plural: str, name: str = "") -> str:
        return f"/api/v1/namespaces/{self.namespace}/{plural}" + (f"/{name}" if name else "")


def read_pod(document: Mapping[str, Any]) -> Pod:
    """Return a pod as the API server has it.

    Raises:
        Refused: the document is no pod; nothing is known then.
    """
    try:
        return parse_pod(document)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise Refused(0, "its answer about a pod cannot be read") from error


def _event(item: Mapping[str, Any]) -> Told:
    metadata = item["metadata"]
    moment = item.get("lastTimestamp") or item.get("eventTime") or metadata.get("creationTimestamp") or ""
    text = plain_line(item.get("message") or "")
    known = metadata.get("uid") or metadata.get("name") or text
    return str(moment), Event(
        str(item["involvedObject"].get("name") or ""), str(item.get("reason") or ""), text, str(known)
    )


def chosen(told: Sequence[Told], names: Sequence[str], since: datetime.datetime) -> list[Event]:
    """The events of some objects, in the order in which they came.

    Args:
        names: names of objects, or beginnings of names that end in `-`.
    """
    beginnings = tuple(each for each in names if each.endswith("-"))
    return [
        event
        for moment, event in told
        if (event.name in names or (beginnings and event.name.startswith(beginnings))) and _time(moment) >= since
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
