"""What can be asked of a server, one table: address, right, handler, and words for people."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

from joulery.server.problems import NO_SUCH_PLACE, ProblemError, method_not_allowed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from joulery.server.calls import Answer, Call
    from joulery.server.service import Service
    from joulery.storage.tokens import Permission

    Handler = Callable[[Service, Call], Awaitable[Answer]]

OPEN_TO_ALL = "all"
BY_DECISION = "decision"


@dataclass(frozen=True, slots=True)
class Operation:
    """One thing that can be asked.

    Attributes:
        name: Of the operation, for generated clients and metrics.
        method: Of HTTP.
        path: With parameters in braces.
        access: A right of a team's token, the token of a decision, or open to all.
        handler: That does it.
        summary: In words.
        takes: Name of the model of its body; empty for none.
        gives: Name of the model of its answer; empty for none.
        status: Of HTTP, where all goes well.
        queries: Parameters of its query by name, with what they mean.
        conflicts: Whether it may contradict what is stored.
    """

    name: str
    method: str
    path: str
    access: Permission | str
    handler: Handler
    summary: str
    takes: str = ""
    gives: str = ""
    status: int = 200
    queries: dict[str, str] = field(default_factory=dict)
    conflicts: bool = False


class Table:
    """Finds the operation for an address.

    Paths are matched as they came, segment by segment, and decoded after that, so that no way of
    writing a slash makes one segment two.

    Args:
        operations: All there are.
    """

    def __init__(self, operations: Iterable[Operation]) -> None:
        self.operations = tuple(operations)
        self.numbers = {one.name: number for number, one in enumerate(self.operations)}
        self._root: dict[bytes, Any] = {}
        for operation in self.operations:
            node = self._root
            names = []
            for segment in operation.path.encode("ascii").split(b"/")[1:]:
                if segment.startswith(b"{"):
                    names.append(segment.strip(b"{}").decode("ascii"))
                    node = node.setdefault(b"{}", {})
                else:
                    node = node.setdefault(segment, {})
            node.setdefault(b"/", {})[operation.method] = operation, tuple(names)

    def find(self, method: str, path: bytes) -> tuple[Operation, dict[str, str]]:
        """The operation and what the path says.

        Raises:
            ProblemError: There is none.
        """
        node: dict[bytes, Any] | None = self._root
        values: list[bytes] = []
        for segment in path.split(b"/")[1:]:
            if node is None:
                break
            inner = node.get(segment) if segment not in (b"{}", b"/") else None
            if inner is None and segment:
                inner = node.get(b"{}")
                values.append(segment)
            node = inner
        methods = None if node is None else node.get(b"/")
        if methods is None or not path.startswith(b"/"):
            raise ProblemError(NO_SUCH_PLACE)
        found = methods.get("GET" if method == "HEAD" else method)
        if found is None:
            raise ProblemError(method_not_allowed(", ".join(sorted(methods))))
        operation, names = found
        return operation, dict(zip(names, map(_decoded, values), strict=True))


def _decoded(segment: bytes) -> str:
    try:
        return (unquote_to_bytes(segment) if b"%" in segment else segment).decode("utf-8")
    except UnicodeDecodeError:
        raise ProblemError(NO_SUCH_PLACE) from None
