"""Errors as responses: Confluent's ``{"error_code", "message"}``, Pulsar's ``{"reason"}``, the console's
page. (What the guards refuse before a route sees it is plain text below ``/ui``.)

A status has one meaning in all families: 400 malformed or refused, 401, 403, 404, 409 busy or locked, 412
changed meanwhile, 413, 415, 421, 428, 429, 500, 503.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, PlainTextResponse, Response

from siltstone.base import errors

PULSAR, CONSOLE = "/admin/", "/ui"
"""How the paths of two families begin; all other paths have Confluent's form of an error."""
_logger = logging.getLogger("siltstone")
# (Class, HTTP status, Confluent's ``error_code``): the first class that fits an error counts.
_STATUSES: tuple[tuple[type[Exception], int, int], ...] = (
    (errors.NotAllowedError, 403, 40301),
    (errors.UnknownTopicError, 404, 40403),
    (errors.UnknownGroupError, 404, 40405),
    (errors.UnknownJobError, 404, 404),
    (errors.UnknownRecordError, 404, 404),
    (errors.ChangedMeanwhileError, 412, 412),
    (errors.TopicExistsError, 400, 40002),
    (errors.BusyError, 429, 42901),
    (errors.CompactionInProgressError, 409, 409),
    (errors.CleaningAbortedError, 409, 409),
    (errors.DirectoryLockedError, 409, 409),
    (errors.SourceChangedError, 503, 50003),
    (errors.EngineError, 503, 50003),
    (errors.StorageError, 500, 50002),
    (errors.CorruptFileError, 500, 50002),
    (errors.LedgerError, 500, 50002),
    (errors.LogError, 400, 40002),
    (errors.SiltstoneError, 400, 40002),
)
# Confluent's ``error_code`` of an HTTPException, by its status; any other has the status itself.
_CODES = {401: 40101, 403: 40301, 429: 42901, 500: 50002, 503: 50003}


def status_of(error: Exception) -> tuple[int, int]:
    """The HTTP status of an error, and Confluent's ``error_code``."""
    for kind, status, error_code in _STATUSES:
        if isinstance(error, kind):
            return status, error_code
    return 500, 50002


def with_status_of(error: Exception, response: Response) -> Response:
    """A page that shows the error, with the error's HTTP status."""
    response.status_code = status_of(error)[0]
    return response


def sendable(message: str) -> str:
    """The message with lone surrogates escaped: a text in JSON may have them, a response may not."""
    return message.encode("utf-8", "backslashreplace").decode()


def error_response(path: str, status: int, error_code: int, message: str) -> Response:
    """An error in the form of the family that ``path`` belongs to."""
    headers = {"Cache-Control": "no-store"}
    if status == 401:
        headers["WWW-Authenticate"] = 'Basic realm="siltstone", charset="UTF-8"'
    if path.startswith(CONSOLE):
        return PlainTextResponse(message + "\n", status, headers=headers)
    body: dict[str, Any] = {"error_code": error_code, "message": message}
    if path.startswith(PULSAR):
        body = {"reason": message}
    return JSONResponse(body, status, headers=headers)


ErrorPage = Callable[[Request, int, str], Response]
"""Makes a page of the console that shows an error, from its status and message."""


def install(app: FastAPI, error_page: ErrorPage) -> None:
    """Let the application answer with errors in the forms above, those of the console as ``error_page``."""

    def respond(request: Request, status: int, error_code: int, message: str) -> Response:
        path, accepted, message = request.url.path, request.headers.get("accept", "*/*"), sendable(message)
        if path.startswith(CONSOLE) and ("text/html" in accepted or "*/*" in accepted):
            return error_page(request, status, message)
        return error_response(path, status, error_code, message)

    def known(request: Request, error: Exception) -> Response:
        return respond(request, *status_of(error), str(error))

    def of_system(request: Request, error: Exception) -> Response:
        assert isinstance(error, OSError)
        return respond(request, 500, 50002, f"{error.strerror or error}")

    def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        error_code = _CODES.get(error.status_code, error.status_code)
        refusal = respond(request, error.status_code, error_code, str(error.detail))
        refusal.headers.update(error.headers or {})
        return refusal

    def malformed(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        return respond(request, 400, 400, f"{place}: {first['msg']}")

    app.add_exception_handler(errors.SiltstoneError, known)
    app.add_exception_handler(OSError, of_system)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(RequestValidationError, malformed)


def unexpected(path: str, error: Exception) -> Response:
    """The response after a bug: 500, without the text of the error, which is in the log only."""
    _logger.error("A request for %s failed", path, exc_info=error)
    return error_response(path, 500, 50002, "the server failed; its log says why")
