"""StreamFlow's own log, without the hundreds of lines that hide the first cause of a failure."""

from __future__ import annotations

import asyncio
import logging
import re

from streamflow.core.exception import WorkflowExecutionException
from streamflow.log_handler import logger

from medweave_connectors.host.errors import JobEndedBySite, TimeLimitExceeded
from medweave_connectors.jobs.job_errors import without_names
from medweave_connectors.runlog import current
from medweave_core.untrusted_text import plain

_SECONDARY = (
    "can not be recovered. Failure manager is not enabled",  # a warning after each failure: not retrying is our choice
)
_NAMES_FILES = (
    WorkflowExecutionException,
    OSError,
    FileNotFoundError,
    PermissionError,
)  # messages of StreamFlow and Python
_IN_RECORD = re.compile(r"FAILED Job \S+ with error:")  # the run's record has the full message


class ShortFailures(logging.Filter):
    """Passes each failure's message once, without a traceback; `streamflow run --debug` shows everything."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True if the record is not a repetition."""
        if record.levelno < logging.WARNING or logger.isEnabledFor(logging.DEBUG):
            return True
        if record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError | SystemExit):
            return False
        record.exc_info = record.exc_text = None
        text = plain(record.getMessage())  # it may contain text of a job or a site
        if type(record.msg) in _NAMES_FILES:
            text = without_names(text)
        is_in_record = isinstance(record.msg, JobEndedBySite | TimeLimitExceeded) or _IN_RECORD.match(text)
        record.msg, record.args = text, None
        # A further failure for the same reason, without a message.
        if not text.strip() and self._seen:
            return False
        if text in self._seen or any(words in text for words in _SECONDARY):
            return False
        if current() is not None and is_in_record:
            return False
        self._seen.add(text)
        return True


def shorten() -> None:
    """Add the filter to StreamFlow's logger, once."""
    if not any(isinstance(added, ShortFailures) for added in logger.filters):
        logger.addFilter(ShortFailures())
