"""Reads the room table of docs/architecture.md and checks a source tree against it."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "da3po"
HEADER = "| room | may import | may name |"
ANYTHING = "all"


@dataclass(frozen=True, slots=True)
class Room:
    """may_import: rooms and modules under da3po. may_name: libraries."""

    may_import: frozenset[str]
    may_name: frozenset[str]
    is_command: bool


def read_table(markdown: str) -> dict[str, Room]:
    """Room name -> what it may import. A row whose first column lists several names gives each the same rights."""
    lines = iter(markdown.splitlines())
    if HEADER not in lines:  # `in` leaves the iterator just behind the header
        raise ValueError(f"no table with the header {HEADER!r}")
    next(lines)
    rooms = {}
    for line in lines:
        if not line.startswith("|"):
            break
        names, may_import, may_name = (re.findall(r"`([^`]+)`", cell) for cell in line.strip("|").split("|"))
        for name in names:
            if name in rooms:
                raise ValueError(f"room {name} has two rows")
            rooms[name] = Room(frozenset(may_import), frozenset(may_name), ANYTHING in may_import)
    return rooms


def module_name(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def named(tree: ast.AST, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything a module imports, wherever the import stands, and of attributes of imports.

    `from a import b` gives a.b. `import a` followed by a use of `a.b.c` gives that too, since a submodule can be
    reached through its parent.
    """
    bound = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
                bound[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            source = _absolute(node, module, is_package)
            yield from ((node.lineno, f"{source}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and _is_import_call(node):
            yield node.lineno, node.args[0].value  # type: ignore[attr-defined]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            dotted = _dotted(node)
            if dotted and dotted.split(".")[0] in bound:
                head, _, rest = dotted.partition(".")
                yield node.lineno, f"{bound[head]}.{rest}"


def _absolute(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    if node.level == 0:
        return node.module or ""
    up = node.level - 1 if is_package else node.level
    base = module.split(".")[: len(module.split(".")) - up]
    return ".".join([*base, node.module] if node.module else base)


def _is_import_call(node: ast.Call) -> bool:
    function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    is_literal = bool(node.args) and isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str)
    return function in ("import_module", "__import__") and is_literal


def _dotted(node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        parent = _dotted(node.value)
        return f"{parent}.{node.attr}" if parent else None
    return None


def longest_prefix(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate that is `name` or one of its parents, the longest if several are."""
    return max((c for c in candidates if name == c or name.startswith(c + ".")), key=len, default=None)


def violations(root: Path, rooms: dict[str, Room]) -> list[str]:
    """What in root/da3po breaks the table, a line each: file, line number, what, and why it may not."""
    found = []
    for path in sorted((root / PACKAGE).rglob("*.py")):
        module = module_name(path, root)
        where = path.relative_to(root)
        room = longest_prefix(module.removeprefix(PACKAGE + "."), rooms)
        if module == PACKAGE:
            room = None
        elif room is None:
            found.append(f"{where}: belongs to no room of the table")
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
        for line, name in sorted(set(named(tree, module, path.name == "__init__.py"))):
            reason = _objection(name, room, rooms)
            if reason:
                found.append(f"{where}:{line}: {reason}")
    return list(dict.fromkeys(found))  # torch.distributed.barrier offends once, though two of its names do


def _objection(name: str, room: str | None, rooms: dict[str, Room]) -> str | None:
    top = name.split(".")[0]
    if top == PACKAGE:
        return _room_objection(name.removeprefix(PACKAGE).removeprefix("."), room, rooms)
    if top in sys.stdlib_module_names:
        return None
    libraries = {library for each in rooms.values() for library in each.may_name}
    library = longest_prefix(name, libraries) or top
    if room is not None and library in rooms[room].may_name:
        return None
    return f"{room or PACKAGE} may not name {library}"


def _room_objection(target: str, room: str | None, rooms: dict[str, Room]) -> str | None:
    target_room = longest_prefix(target, rooms)
    if target_room is None or target_room == room:
        return None  # da3po itself (its version), or the own room
    if room is None:
        return f"{PACKAGE} itself imports no room, but imports {target}"
    if rooms[room].is_command and not rooms[target_room].is_command:
        return None
    allowed = longest_prefix(target, rooms[room].may_import)
    if allowed is not None and longest_prefix(allowed, rooms) == target_room:
        return None
    return f"{room} may not import {target}"
