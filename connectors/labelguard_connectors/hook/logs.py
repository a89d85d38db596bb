"""Structured logs: one JSON object a line, on standard error.

No line holds a body, a header, a query or a path: a label, a prompt or a secret might stand there.
Of an error it says the kind and the places in the code, not its message, unless it is ours.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import sys
import threading
import time
import traceback
import warnings
from collections.abc import MutableMapping
from typing import Any

import structlog

from labelguard.errors import LabelguardError
from labelguard.project import attempts

_KINDS = 1_000
Logger = structlog.stdlib.BoundLogger


def configure() -> None:
    """Let every logger of this process write such lines."""
    shared: list[structlog.types.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _strip_error_messages,
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.JSONRenderer(),
        ],
    )
    handler = _Stderr()
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers, root.level = [handler], logging.INFO
    # Senders of noise cause warnings.
    seldom = _Throttle(1.0)
    logging.getLogger("uvicorn.error").addFilter(
        lambda record: (
            record.levelno != logging.WARNING or seldom.admit(str(record.msg)) is not None
        )
    )
    log = logger()
    sys.excepthook = lambda _, error, __: log.critical("crashed", exc_info=error)
    threading.excepthook = lambda crash: log.critical("crashed", exc_info=crash.exc_value)
    sys.unraisablehook = lambda crash: log.error("not raised", exc_info=crash.exc_value)
    warnings.showwarning = _log_warning  # type: ignore[assignment]
    # What libraries say in detail may name what they were given.
    for name in ("httpx", "httpcore", "sqlalchemy", "asyncio", "argilla.sdk"):
        logging.getLogger(name).setLevel(logging.ERROR)
    # Nor what has no name: Argilla's package says so who logged in.
    root.addFilter(lambda record: record.levelno >= logging.ERROR)


def _log_warning(_: object, category: type[Warning], filename: str, lineno: int, *__: Any) -> None:
    """Say of which kind a warning is and where; its text may hold anything."""
    logger().warning("warning", kind=category.__name__, at=[f"{filename}:{lineno}"])


class _Stderr(logging.Handler):
    """Standard error, whichever it is when a line is written."""

    def emit(self, record: logging.LogRecord) -> None:
        # Where nobody reads it any more, that is no reason to stop.
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()


def logger(project: str = "") -> Logger:
    """Return the hook's own logger; its lines name the project where a server has several."""
    logger: Logger = structlog.get_logger("labelguard.hook")
    return logger.bind(project=project) if project else logger


class _Throttle:
    """Admits what is alike at most so often; counts what it does not. Few kinds may differ."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._seen: dict[Any, tuple[float, int]] = {}

    def admit(self, kind: Any) -> int | None:
        """Return how many of this kind were not admitted since the last one; None: not now."""
        now = time.monotonic()
        last, unsaid = self._seen.get(kind, (-self._seconds, 0))
        if now - last < self._seconds:
            self._seen[kind] = (last, unsaid + 1)
            return None
        if len(self._seen) >= _KINDS:
            self._seen.clear()
        self._seen[kind] = (now, 0)
        return unsaid


class Sparse:
    """Writes a line like those before it at most so often, and then how many there were.

    Whoever is refused may come again and again; the log is not to grow by that.
    """

    def __init__(self, log: Logger, event: str, seconds: float) -> None:
        self._log, self._event, self._throttle = log, event, _Throttle(seconds)

    def warn(self, **facts: str | int) -> None:
        """Write a warning, or count it; lines are alike if they say the same."""
        if (unsaid := self._throttle.admit(tuple(facts.values()))) is not None:
            self._log.warning(self._event, **facts, **({"unsaid": unsaid} if unsaid else {}))


def _strip_error_messages(
    _: Any, __: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Return an exception as its kind and where it was raised."""
    info = event.pop("exc_info", None)
    record = event.get("_record")
    if not info and record is not None and record.exc_info:
        info, record.exc_info, record.exc_text = record.exc_info, None, None
    error = _find_exception(info)
    if error is not None:
        event["error"] = type(error).__name__
        event["at"] = list_code_places(error)
        if isinstance(error, LabelguardError):
            event["why"] = attempts.describe_publicly(error)
    return event


def _find_exception(info: Any) -> BaseException | None:
    if isinstance(info, BaseException):
        return info
    if isinstance(info, tuple):
        return _find_exception(info[1])
    return sys.exception() if info else None


def describe_own_error(error: Exception) -> str:
    """Return what an error says, if it is ours: what another package says may hold a label."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "disk full"
    is_ours = isinstance(error, LabelguardError)
    return attempts.describe_publicly(error) if is_ours else type(error).__name__


def list_code_places(error: BaseException) -> list[str]:
    """Return where an error was raised, without what it says."""
    frames = traceback.extract_tb(error.__traceback__)[-8:]
    return [f"{frame.filename}:{frame.lineno}" for frame in frames]
