"""What an editable wheel points at: folders in `.pth` lines, or the mapping in a setuptools finder (PEP 660)."""

from __future__ import annotations

import ast
import zipfile
from pathlib import Path


def editable_names(wheel: Path, tree: Path) -> dict[str, tuple[Path, ...]]:
    """Return the import names that an editable wheel provides from a tree, with the folders they come from."""
    names: dict[str, tuple[Path, ...]] = {}
    root = tree.resolve()
    with zipfile.ZipFile(wheel) as archive:
        claimed = _claimed(archive)
        for member in archive.namelist():
            if "/" in member:
                continue
            text = archive.read(member).decode(errors="replace")
            if member.endswith(".pth"):
                for folder in _folders(text, root):
                    for name in _packages(folder):
                        if claimed and name not in claimed:
                            continue  # tests, examples and the like beside the package, not what was installed
                        names[name] = (*names.get(name, ()), folder)
            elif member.startswith("__editable___") and member.endswith("_finder.py"):
                for name, place in _mapping(text).items():
                    folder = Path(place).resolve().parent
                    if "." not in name and folder.is_relative_to(root):
                        names[name] = (*names.get(name, ()), folder)
    return names


def editable_portions(wheel: Path, tree: Path) -> dict[str, tuple[Path, ...]]:
    """Return what else an editable wheel's folders offer: modules, and folders without `__init__` (namespaces)."""
    names: dict[str, tuple[Path, ...]] = {}
    with zipfile.ZipFile(wheel) as archive:
        claimed = _claimed(archive)
        texts = [archive.read(name).decode(errors="replace") for name in archive.namelist() if name.endswith(".pth")]
    for folder in (folder for text in texts for folder in _folders(text, tree.resolve())):
        for child in sorted(folder.iterdir()):
            is_portion = child.is_dir() and not (child / "__init__.py").is_file()
            offers = child.stem.isidentifier() and (is_portion or child.suffix == ".py")
            if offers and (not claimed or child.stem in claimed):
                names[child.stem] = (*names.get(child.stem, ()), folder)
    return names


def _claimed(archive: zipfile.ZipFile) -> set[str]:
    """Import names that the wheel says it provides; empty where it says nothing."""
    found = [name for name in archive.namelist() if name.endswith(".dist-info/top_level.txt")]
    return set(archive.read(found[0]).decode(errors="replace").split()) if found else set()


def _folders(text: str, root: Path) -> list[Path]:
    """Lines of a .pth file that are folders of the tree; lines that start with `import` are code."""
    lines = [line.strip() for line in text.splitlines()]
    paths = [Path(line).resolve() for line in lines if line.startswith("/")]
    return [path for path in paths if path.is_relative_to(root) and path.is_dir()]


def _packages(folder: Path) -> list[str]:
    return sorted(child.name for child in folder.iterdir() if (child / "__init__.py").is_file())


def _mapping(text: str) -> dict[str, str]:
    """The `MAPPING` of a setuptools finder, read without running it."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return {}
    for node in tree.body:
        if not isinstance(node, (ast.Assign, ast.AnnAssign)):
            continue
        target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
        if isinstance(target, ast.Name) and target.id == "MAPPING":
            try:
                found = ast.literal_eval(node.value) if node.value else {}
            except ValueError:
                return {}
            return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}
    return {}
