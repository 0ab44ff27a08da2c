"""Receiver of C-STORE (DICOM PS3.4 annex B) that writes a folder for each study, under keyed digests instead of UIDs."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pynetdicom import AE, AllStoragePresentationContexts, evt
from pynetdicom.presentation import PresentationContext
from pynetdicom.sop_class import Verification

from medweave.schedule.studies import NAME_CHARACTERS
from medweave_core.errors import UserInputError

SUCCESS, OUT_OF_RESOURCES, NOT_UNDERSTOOD = 0x0000, 0xA700, 0xC000
SYNTAXES = [
    "1.2.840.10008.1.2.1", "1.2.840.10008.1.2", "1.2.840.10008.1.2.1.99", "1.2.840.10008.1.2.5",
    "1.2.840.10008.1.2.4.50", "1.2.840.10008.1.2.4.51", "1.2.840.10008.1.2.4.57", "1.2.840.10008.1.2.4.70",
    "1.2.840.10008.1.2.4.80", "1.2.840.10008.1.2.4.81", "1.2.840.10008.1.2.4.90", "1.2.840.10008.1.2.4.91",
]  # fmt: skip
"""Uncompressed, deflated, RLE, JPEG, JPEG-LS, JPEG 2000: a sender chooses the one in which it stores an instance."""


class Receiver:
    """A storage service class provider.

    Args:
        settings: key `watch.receive` of the schedule's file.
        folder: gets a folder for each study.
        secret: secret of the schedule.
    """

    def __init__(self, settings: Mapping[str, Any], folder: Path, secret: bytes) -> None:
        self._settings, self._folder, self._secret = settings, folder, secret
        self.num_received = 0
        self._counting = threading.Lock()

    def start(self) -> Any:
        """Listen in threads; return the server, which has `shutdown()`.

        Raises:
            UserInputError: the port is in use, or not permitted.
        """
        entity = AE(ae_title=self._settings["title"])
        entity.supported_contexts = [_context(storage.abstract_syntax) for storage in AllStoragePresentationContexts]
        entity.add_supported_context(Verification)
        entity.require_called_aet = True
        entity.require_calling_aet = list(self._settings["callers"])
        place = (self._settings["address"], self._settings["port"])
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            return entity.start_server(place, block=False, evt_handlers=[(evt.EVT_C_STORE, self._store)])
        except OSError as error:
            raise UserInputError(
                f"cannot listen on port {place[1]}.", seen=os.strerror(error.errno or 0),
                expected="a free port (above 1023, unless you are root)", do="choose another port: watch.receive.port",
            ) from error  # fmt: skip

    def _store(self, event: Any) -> int:
        """Write one instance atomically; return the status for the sender."""
        try:
            study = self._name(str(event.dataset.StudyInstanceUID))
            instance = self._name(str(event.request.AffectedSOPInstanceUID))
            content = event.encoded_dataset()
        except Exception:  # pydicom raises many types of errors
            return NOT_UNDERSTOOD
        folder = self._folder / study
        new = folder / f".{instance}.{secrets.token_hex(4)}"
        try:
            folder.mkdir(exist_ok=True)
            new.write_bytes(content)
            new.replace(folder / f"{instance}.dcm")
        except OSError:
            new.unlink(missing_ok=True)
            return OUT_OF_RESOURCES
        with self._counting:
            self.num_received += 1
        return SUCCESS

    def _name(self, uid: str) -> str:
        return hmac.new(self._secret, uid.encode(), hashlib.sha256).hexdigest()[:NAME_CHARACTERS]


def _context(abstract_syntax: Any) -> PresentationContext:
    context = PresentationContext()
    context.abstract_syntax = abstract_syntax
    context.transfer_syntax = SYNTAXES
    return context


def receive_until_ended(receiver: Receiver, listens: Callable[[], None]) -> None:
    """Listen until INT or TERM; open associations are then aborted, and their senders send again.

    Args:
        listens: called as soon as the port accepts connections.
    """
    ended = threading.Event()
    before = {number: signal.signal(number, lambda *_: ended.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    server = receiver.start()
    try:
        listens()
        ended.wait()
    finally:
        server.shutdown()
        for number, handler in before.items():
            signal.signal(number, handler)
