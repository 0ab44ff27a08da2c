"""Algorithms that a server and this client offer for a connection, and kinds without a common one. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_COOKIE_BYTES = 17  # and the number of the message before it
# Name for people, setting of sshd_config, and place among the lists of SSH_MSG_KEXINIT (RFC 4253, 7.1).
_KINDS = (
    ("key exchange", "KexAlgorithms", 0),
    ("kind of host key", "HostKeyAlgorithms", 1),
    ("cipher", "Ciphers", 2),
    ("MAC", "MACs", 4),
)
_AEAD = ("gcm@openssh.com", "chacha20-poly1305@openssh.com")  # they need no MAC
_NOTES = ("kex-strict-", "ext-info-")  # no algorithms


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One kind of algorithm.

    Attributes:
        name: for people.
        setting: of sshd_config.
        server, ours: names, best first.
    """

    name: str
    setting: str
    server: Sequence[str]
    ours: Sequence[str]

    @property
    def common(self) -> str:
        """Return the algorithm that is used; empty without a common one."""
        return next((name for name in self.ours if name in self.server), "")


def read_offers(message: bytes, ours: Sequence[Sequence[str]]) -> tuple[Offer, ...]:
    """Return the offers.

    Args:
        message: the server's SSH_MSG_KEXINIT; for an incomplete one, nothing is returned.
        ours: key exchanges, kinds of host keys, ciphers, MACs.
    """
    lists, place = [], _COOKIE_BYTES
    for _ in range(5):
        length = int.from_bytes(message[place : place + 4], "big")
        names = message[place + 4 : place + 4 + length]
        if len(names) < length or place + 4 > len(message):
            return ()
        lists.append([name for name in names.decode(errors="replace").split(",") if not name.startswith(_NOTES)])
        place += 4 + length
    return tuple(
        Offer(name=name, setting=setting, server=lists[number], ours=own)
        for (name, setting, number), own in zip(_KINDS, ours, strict=True)
    )


def without_common(offers: Sequence[Offer]) -> Offer | None:
    """Return the first kind for which there is no common algorithm; None where there is one for each that is needed."""
    for offer in offers:
        cipher = next((other.common for other in offers if other.setting == "Ciphers"), "")
        if not offer.common and not (offer.setting == "MACs" and cipher.endswith(_AEAD)):
            return offer
    return None
