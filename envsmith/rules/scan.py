"""What the Python code of a source says that rules care about, from its text alone; nothing of it is run.

It proves what stands in the text. It misses names that are put together at run time, code behind a feature test
that is no version test, and files that this interpreter cannot parse.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from envsmith.rules.tables import stdlib_floors

ALLOCATOR = re.compile(r"[A-Z_]*_ALLOC_CONF")
EXPANDABLE = re.compile(r"expandable_segments\s*:\s*true", re.IGNORECASE)

#: Folders of a source that are never imported by a job.
_ASIDE = {"tests", "test", "docs", "doc", "examples", "example", "scripts", "benchmarks", "tests_v1", "docker", ".ci"}
_MARKS = ("flash_attention_2", "_ALLOC_CONF", "expandable_segments")


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """One place in the code."""

    path: str
    line: int
    what: str
    """The name or value that stands there."""
    switches: tuple[str, ...] = ()
    """Environment variables that the nearest condition around it asks."""

    @property
    def place(self) -> str:
        """`path:line`."""
        return f"{self.path}:{self.line}"


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceFacts:
    """Places in the code of one source."""

    stdlib: tuple[Site, ...] = ()
    """Uses of names that came with some Python, outside of version tests and fallbacks."""
    attention: tuple[Site, ...] = ()
    """Calls whose `attn_implementation` is the literal `flash_attention_2`."""
    allocator: tuple[Site, ...] = ()
    """Writes of expandable segments into an allocator variable."""
    expandable: tuple[Site, ...] = ()
    """Calls that turn expandable segments on at run time."""
    vetoes: tuple[Site, ...] = ()
    """Environment variables by which the function behind such calls returns early."""


def is_importable(path: str) -> bool:
    """Whether a file of a source may be imported by a job."""
    return path.endswith(".py") and path.split("/")[0] not in _ASIDE


def scan(files: Iterable[tuple[str, str]]) -> SourceFacts:
    """Read the files of a source, given as path and text."""
    words = re.compile("|".join(sorted({*_MARKS, *(name.rpartition(".")[2] for name in stdlib_floors())})))
    found: dict[str, list[Site]] = {kind: [] for kind in ("stdlib", "attention", "allocator", "expandable", "vetoes")}
    for path, text in files:
        if not is_importable(path) or not words.search(text):
            continue
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        for kind, site in _File(path, tree).sites():
            found[kind].append(site)
    return SourceFacts(**{kind: tuple(sorted(sites, key=_by_place)) for kind, sites in found.items()})


def _by_place(site: Site) -> tuple[str, int, str]:
    return site.path, site.line, site.what


class _File:
    def __init__(self, path: str, tree: ast.Module) -> None:
        self.path = path
        self.tree = tree
        self.aliases: dict[str, str] = {}
        """Names in this file to the module of the standard library that they stand for."""

    def sites(self) -> Iterator[tuple[str, Site]]:
        imports = [node for node in ast.walk(self.tree) if isinstance(node, ast.Import)]
        self.aliases = {one.asname or one.name: one.name for node in imports for one in node.names}
        yield from self._walk(self.tree, guarded=False, switches=())

    def _walk(self, node: ast.AST, *, guarded: bool, switches: tuple[str, ...]) -> Iterator[tuple[str, Site]]:
        yield from self._here(node, guarded, switches)
        for child, under, asked in _children(node):
            yield from self._walk(child, guarded=guarded or under, switches=asked or switches)

    def _here(self, node: ast.AST, guarded: bool, switches: tuple[str, ...]) -> Iterator[tuple[str, Site]]:
        line = getattr(node, "lineno", 0)
        if not guarded:
            for name in sorted(self._used(node) & stdlib_floors().keys()):
                yield "stdlib", Site(path=self.path, line=line, what=name)
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                if keyword.arg == "attn_implementation" and _text(keyword.value) == "flash_attention_2":
                    yield "attention", Site(path=self.path, line=keyword.value.lineno, what="flash_attention_2")
            if _turns_on(node):
                yield "expandable", Site(path=self.path, line=line, what=_called(node), switches=switches)
        for variable in _written(node):
            yield "allocator", Site(path=self.path, line=line, what=variable, switches=switches)
        if isinstance(node, ast.FunctionDef) and node.name == "set_expandable_segments":
            for variable in _vetoes(node):
                yield "vetoes", Site(path=self.path, line=line, what=variable)

    def _used(self, node: ast.AST) -> set[str]:
        """Dotted names of the standard library that a node uses."""
        if isinstance(node, ast.Import):
            return {one.name for one in node.names}
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            return {node.module} | {f"{node.module}.{one.name}" for one in node.names}
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = self.aliases.get(node.value.id)
            return {f"{module}.{node.attr}"} if module else set()
        return set()


def _children(node: ast.AST) -> Iterator[tuple[ast.AST, bool, tuple[str, ...]]]:
    """Children of a node, whether they run only on some Pythons, and the variables that were asked before them."""
    if isinstance(node, ast.If):
        test = ast.unparse(node.test)
        under = "version_info" in test or "TYPE_CHECKING" in test or "hexversion" in test
        asked = _variables(node.test)
        yield node.test, False, ()
        yield from ((child, under, asked) for child in (*node.body, *node.orelse))
    elif isinstance(node, ast.Try):
        caught = " ".join(ast.unparse(one.type) if one.type else "Exception" for one in node.handlers)
        under = bool(re.search(r"ImportError|ModuleNotFoundError|AttributeError|Exception", caught))
        yield from ((child, under, ()) for child in (*node.body, *node.handlers))
        yield from ((child, False, ()) for child in (*node.orelse, *node.finalbody))
    else:
        yield from ((child, False, ()) for child in ast.iter_child_nodes(node))


def _variables(node: ast.AST) -> tuple[str, ...]:
    """Names of environment variables in an expression: upper-case texts."""
    texts = (text for part in ast.walk(node) if (text := _text(part)) is not None)
    return tuple(text for text in texts if re.fullmatch(r"[A-Z][A-Z0-9_]{3,}", text))


def _text(node: ast.AST) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _turns_on(node: ast.Call) -> bool:
    values = (*node.args, *(keyword.value for keyword in node.keywords))
    if _called(node) == "set_expandable_segments":
        return any(isinstance(value, ast.Constant) and value.value is True for value in values)
    texts = (text for value in values if (text := _text(value)) is not None)
    return "allocator_settings" in _called(node) and any(EXPANDABLE.search(text) for text in texts)


def _written(node: ast.AST) -> Iterator[str]:
    """Allocator variables that a node gives expandable segments to: by item, by setdefault or in a mapping."""
    pairs: list[tuple[ast.AST | None, ast.AST]] = []
    if isinstance(node, ast.Assign):
        pairs = [(target.slice, node.value) for target in node.targets if isinstance(target, ast.Subscript)]
    elif isinstance(node, ast.Call) and _called(node) in ("setdefault", "putenv", "setenv") and len(node.args) == 2:
        pairs = [(node.args[0], node.args[1])]
    elif isinstance(node, ast.Dict):
        pairs = list(zip(node.keys, node.values, strict=True))
    for key, value in pairs:
        variable = _text(key) if key is not None else None
        if variable and ALLOCATOR.fullmatch(variable) and EXPANDABLE.search(_text(value) or ""):
            yield variable


def _vetoes(function: ast.FunctionDef) -> Iterator[str]:
    """Variables that make a function return before it does anything."""
    for statement in function.body:
        if isinstance(statement, ast.If) and isinstance(statement.body[-1], ast.Return):
            yield from _variables(statement.test)
        elif not isinstance(statement, ast.Expr) or _text(statement.value) is None:
            return
