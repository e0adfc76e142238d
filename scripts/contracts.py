"""An import-linter contract: rooms are entered through their front door.

A room is a package whose ``__init__`` names its API. Modules outside a room import from the room
itself, never from a module inside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from importlinter import Contract, ContractCheck, fields, output

if TYPE_CHECKING:
    from grimp import ImportGraph


class RoomsContract(Contract):
    """No module imports from inside a room that it does not belong to.

    Options:
        rooms: Packages that are entered through their ``__init__`` only; inner rooms may be listed.
    """

    rooms = fields.ListField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:  # noqa: ARG002, FBT001
        """Compare every import with the rooms at both ends."""
        broken = sorted(
            (importer, imported)
            for importer in graph.modules
            for imported in graph.find_modules_directly_imported_by(importer)
            if self._reaches_inside(importer, imported)
        )
        return ContractCheck(kept=not broken, metadata={"broken": broken})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Name every import that reaches inside."""
        for importer, imported in check.metadata["broken"]:
            output.print_error(f"{importer} reaches into {imported}", bold=False)

    def _reaches_inside(self, importer: str, imported: str) -> bool:
        room = self._room_of(imported)
        return room is not None and imported != room and not _within(importer, room)

    def _room_of(self, module: str) -> str | None:
        found = [room for room in self.rooms if _within(module, room)]  # type: ignore[attr-defined]
        return max(found, key=len, default=None)


def _within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")
