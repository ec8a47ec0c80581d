"""Errors as clients get them: OpenAI's shape, and which kind each status is."""

from __future__ import annotations

import msgspec

from engine.request import RequestError

_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    409: "conflict_error",
    410: "cancelled_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    501: "not_supported_error",
    503: "unavailable_error",
}


class ErrorDetail(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(msgspec.Struct, frozen=True):
    """`{"error": {"message", "type", "param", "code"}}`."""

    error: ErrorDetail


def error_body(error: RequestError) -> bytes:
    kind = _KINDS.get(error.status, "server_error" if error.status >= 500 else "invalid_request_error")
    return msgspec.json.encode(ErrorBody(ErrorDetail(error.message, kind, error.param, error.code)))


def invalid(path: str, problem: str) -> RequestError:
    """A field that cannot be served as sent: 400 `invalid_value`. `problem` says the limit and the value."""
    return RequestError(f"{path}: {problem}", status=400, code="invalid_value", param=path)


def unsupported(path: str, what: str) -> RequestError:
    """A field whose meaning is not built yet: 400 `unsupported`, so that nobody takes silence for obedience."""
    return RequestError(f"{path}: {what} not supported yet", status=400, code="unsupported", param=path)


def internal(what: str) -> RequestError:
    return RequestError(
        f"internal error while {what}; the server's log has the cause", status=500, code="internal_error"
    )
