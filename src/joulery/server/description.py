"""The description of the server (OpenAPI 3.1), made by FastAPI of the table of operations."""

from __future__ import annotations

import inspect
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import FastAPI, Path, Query, Response

from joulery import __version__
from joulery.jobs.wire_text import to_bytes
from joulery.server import models
from joulery.server.catalogue import OPERATIONS
from joulery.server.limits import LIMITS
from joulery.server.operations import BY_DECISION, OPEN_TO_ALL

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulery.server.operations import Operation

_ABOUT = """Decisions for recurring training jobs: what to run next, and how it ended.

Ask with a team's token, run what the decision says, report with the decision's own token. Every
request may be repeated: the same key gets the same answer. Errors are problem documents (RFC 9457)
with a remedy; those with Retry-After may be repeated unchanged."""
_PROBLEM_TYPE = "application/problem+json"
_PATHS = {
    "team": (str, "namespace of the jobs", "vision"),
    "name": (str, "of the job", "resnet-nightly"),
    "job": (int, "number of a job's version", 7),
    "decision": (str, "id of the decision", "7.12"),
    "token": (int, "number of a token", 3),
}
_QUERIES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "after": (int, 0, {"ge": 0}),
    "limit": (int, 100, {"ge": 1, "le": LIMITS.page_entries}),
    "device": (str | None, None, {}),
}
_PROBLEMS = {
    400: "The body is not JSON.",
    401: "No valid token.",
    403: "The token does not allow this.",
    404: "No such record, or another team's.",
    408: "The body took too long.",
    409: "It contradicts what is stored.",
    413: "The body is too large.",
    415: "The body is not declared to be JSON.",
    422: "Something in the request makes no sense; the detail names it.",
    429: "Too many calls; see Retry-After.",
    503: "Too much to do, or the store is restarting; see Retry-After.",
}
_WITH_BODY = (400, 408, 413, 415)


@cache
def described() -> bytes:
    """The document, ready to be sent."""
    return to_bytes(document())


def document() -> dict[str, Any]:
    """The document."""
    application = FastAPI(
        title="Joulery",
        version=__version__,
        description=_ABOUT,
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
    )
    for operation in OPERATIONS:
        application.add_api_route(
            operation.path,
            _endpoint(operation),
            methods=[operation.method],
            operation_id=operation.name,
            summary=operation.summary,
            description=inspect.getdoc(operation.handler),
            status_code=operation.status,
            response_model=getattr(models, operation.gives) if operation.gives else None,
            responses=_responses(operation),
            openapi_extra={"security": _security(operation)},
            tags=[operation.handler.__module__.rpartition("_")[2]],
        )
    made = application.openapi()
    made["components"]["securitySchemes"] = {
        "teamToken": {
            "type": "http",
            "scheme": "bearer",
            "description": "of a team, made with `joulery serve token create`",
        },
        "decisionToken": {
            "type": "http",
            "scheme": "bearer",
            "description": "that came with the decision",
        },
    }
    for path in made["paths"].values():
        for one in path.values():
            _adjust(one)
    return made


def _adjust(operation: dict[str, Any]) -> None:
    for status, response in operation["responses"].items():
        if int(status) >= 400:
            content = response["content"]
            content[_PROBLEM_TYPE] = content.pop("application/json")
            if int(status) in (429, 503):
                response["headers"] = {
                    "Retry-After": {
                        "schema": {"type": "integer"},
                        "description": "seconds after which to repeat the request",
                    }
                }
    if operation["operationId"] == "metrics":
        operation["responses"]["200"]["content"] = {"text/plain": {"schema": {"type": "string"}}}


def _endpoint(operation: Operation) -> Callable[..., Response]:
    """A stand-in whose signature tells FastAPI what the operation takes."""

    def stand_in(**_: Any) -> Response:
        return Response(status_code=operation.status)

    named = [part[1:-1] for part in operation.path.split("/") if part.startswith("{")]
    parameters = [_path_parameter(name) for name in named]
    parameters += [_query_parameter(name, words) for name, words in operation.queries.items()]
    if operation.takes:
        parameters.append(_parameter("body", getattr(models, operation.takes)))
    stand_in.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # read by inspect
    return stand_in


def _path_parameter(name: str) -> inspect.Parameter:
    kind, words, example = _PATHS[name]
    bounds: dict[str, Any] = {"ge": 0, "le": 10**18 - 1} if kind is int else {"min_length": 1}
    return _parameter(name, Annotated[kind, Path(description=words, examples=[example], **bounds)])


def _query_parameter(name: str, words: str) -> inspect.Parameter:
    kind, default, bounds = _QUERIES[name]
    return _parameter(name, Annotated[kind, Query(description=words, **bounds)], default)


def _parameter(name: str, kind: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)


def _responses(operation: Operation) -> dict[int | str, dict[str, Any]]:
    found = {503} if operation.name != "live" else set()
    if operation.access is not OPEN_TO_ALL:
        found |= {401, 422, 429}
        if operation.access is not BY_DECISION:
            found.add(403)
        if "{" in operation.path or operation.name == "createToken":
            found.add(404)
        if operation.takes:
            found |= set(_WITH_BODY)
        if operation.conflicts:
            found.add(409)
    return {
        status: {"description": _PROBLEMS[status], "model": models.Problem}
        for status in sorted(found)
    }


def _security(operation: Operation) -> list[dict[str, list[str]]]:
    if operation.access is OPEN_TO_ALL:
        return []
    return [{"decisionToken" if operation.access is BY_DECISION else "teamToken": []}]
