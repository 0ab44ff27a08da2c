"""What can go wrong between a deployment and its pods, as StreamFlow's exceptions."""

from __future__ import annotations

from medweave_connectors.host.errors import SiteConfigError, SiteUnreachable, StreamBroke


class DeploymentRefused(SiteConfigError):
    """The deployment cannot work as it is described; trying again does not help. What was seen may have several lines."""

    def __init__(self, what: str, *, seen: str, expected: str, do: str) -> None:
        super().__init__(what, seen="\n            ".join(seen.splitlines()), expected=expected, do=do)


class PodLost(SiteUnreachable):
    """A pod, or the way to it, was lost; another try may succeed."""


class StreamLost(StreamBroke, PodLost):
    """The command at the pod's end of a stream failed; it does, too, when the stream is cut: its input ends."""

    may_be_cut = True
