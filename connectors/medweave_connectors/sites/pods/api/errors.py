"""Errors of deployments and their pods, as StreamFlow's exceptions."""

from __future__ import annotations

from medweave_connectors.host.errors import SiteConfigError, SiteUnreachable, StreamBroke


class DeploymentRefused(SiteConfigError):
    """The deployment's configuration cannot work; a retry does not help. `seen` may have several lines."""

    def __init__(self, what: str, *, seen: str, expected: str, do: str) -> None:
        super().__init__(what, seen="\n            ".join(seen.splitlines()), expected=expected, do=do)


class PodLost(SiteUnreachable):
    """A pod, or the connection to it, was lost; a retry may succeed."""


class StreamLost(StreamBroke, PodLost):
    """The command at the pod's end of a stream failed, which it also does when the stream is cut: its input ends."""

    may_be_cut = True
