"""The pages say what the code does: every code, finding, key and module is there, and nothing that is gone."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from envsmith import errors, recipe
from envsmith.commands.depth import FAMILIES
from envsmith.data import table

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "envsmith"
DOCS = ROOT / "docs"
SLUG = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def sources() -> dict[str, str]:
    """Every module of ours by its path below the package; shipped content is no code."""
    paths = [path for path in sorted(PACKAGE.rglob("*.py")) if "content" not in path.relative_to(PACKAGE).parts]
    return {path.relative_to(PACKAGE).as_posix(): path.read_text() for path in paths}


def page(name: str) -> str:
    return (DOCS / name).read_text()


def sections(text: str) -> dict[str, str]:
    """Text by the heading above it, whatever its level."""
    found: dict[str, str] = defaultdict(str)
    heading = ""
    for line in text.splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ").replace("`", "")
        else:
            found[heading] += f"{line}\n"
    return dict(found)


def rows(text: str) -> list[list[str]]:
    """The rows of every table whose first cell is one literal, with the marks of that cell cut."""
    found = [line.strip("|").split(" | ") for line in text.splitlines() if re.match(r"\| `[^`]+` \|", line)]
    return [[cells[0].strip(" `"), *(cell.strip() for cell in cells[1:])] for cells in found]


def first_cells(text: str) -> set[str]:
    return {cells[0] for cells in rows(text)}


# what the source says: constants that reach one parameter


def name_of(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def places(trees: dict[str, ast.Module], parameter: str) -> dict[tuple[str, str], int]:
    """Where functions take `parameter` and hand it on: (module, or empty for a public name; function) to its place."""
    found = {}
    for module, tree in trees.items():
        for node in ast.walk(tree):
            names = [a.arg for a in node.args.args if a.arg != "self"] if isinstance(node, ast.FunctionDef) else []
            if isinstance(node, ast.FunctionDef) and parameter in names and hands_on(node, parameter):
                found[module if node.name.startswith("_") else "", node.name] = names.index(parameter)
    return found


def hands_on(function: ast.FunctionDef, parameter: str) -> bool:
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    arguments = [argument for call in calls for argument in (*call.args, *(k.value for k in call.keywords))]
    return any(isinstance(argument, ast.Name) and argument.id == parameter for argument in arguments)


def given(texts: dict[str, str], *, makes: str, parameter: str) -> Iterator[tuple[str, ast.expr]]:
    """Every (module, expression) that reaches `parameter` of the class `makes`, directly or through a function."""
    # Payloads of rungs answer with statements; they know no problems, and have names of their own.
    trees = {module: ast.parse(text) for module, text in texts.items() if not module.startswith("rungs/")}
    known = places(trees, parameter)
    for module, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                name = name_of(node)
                place = known.get((module, name), known.get(("", name)))
                if place is not None and place < len(node.args):
                    yield module, node.args[place]
                if place is not None or name == makes:
                    yield from ((module, k.value) for k in node.keywords if k.arg == parameter)
            elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
                target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
                if getattr(target, "id", "") == parameter and set(constants(node.value)):
                    yield module, node.value
                # A rule is chosen before it is reported: `problem = (code, words)`.
                elif (
                    parameter == "code" and getattr(target, "id", "") == "problem" and isinstance(node.value, ast.Tuple)
                ):
                    yield module, node.value.elts[0]


def constants(node: ast.expr) -> Iterator[str]:
    """The slugs that an expression may be: a string, or one of the two of `a if b else c`."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and SLUG.fullmatch(node.value):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from (*constants(node.body), *constants(node.orelse))


def codes(texts: dict[str, str]) -> set[str]:
    """Every problem code that the source can raise."""
    return {slug for _, node in given(texts, makes="Problem", parameter="code") for slug in constants(node)}


def hidden_codes(texts: dict[str, str]) -> set[str]:
    """Expressions for a code that `codes` cannot see through; those that hand on another one are fine."""
    hidden = set()
    for module, node in given(texts, makes="Problem", parameter="code"):
        handed_on = (
            (isinstance(node, ast.Name) and node.id == "code")
            or (isinstance(node, ast.Attribute) and node.attr == "code")
            or (isinstance(node, ast.Subscript) and ast.unparse(node) == "problem[0]")
            or ast.unparse(node) == "f'verify-{finding.kind}'"  # documented as a family of codes
        )
        if not handed_on and not set(constants(node)):
            hidden.add(f"{module}: {ast.unparse(node)}")
    return hidden


#: Exit codes by class name; a module may derive its own.
EXITS = {name: kind.exit_code for name, kind in vars(errors).items() if hasattr(kind, "exit_code")}


def exits(texts: dict[str, str]) -> dict[str, set[int]]:
    """Exit codes of every problem that is made right inside the error that carries it."""
    found: dict[str, set[int]] = defaultdict(set)
    for text in texts.values():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and name_of(node) in EXITS:
                made = [
                    inner for inner in ast.walk(node) if isinstance(inner, ast.Call) and name_of(inner) == "Problem"
                ]
                values = (k.value for inner in made for k in inner.keywords if k.arg == "code")
                for slug in (slug for value in values for slug in constants(value)):
                    found[slug].add(EXITS[name_of(node)])
    return found


def promised(texts: dict[str, str]) -> set[str]:
    """Codes that docstrings name behind `Raises:`."""
    kinds = (ast.FunctionDef, ast.ClassDef)
    nodes = (node for text in texts.values() for node in ast.walk(ast.parse(text)) if isinstance(node, kinds))
    parts = ((ast.get_docstring(node) or "").partition("Raises:")[2] for node in nodes)
    return {found for part in parts for found in re.findall(r"`([a-z0-9]+(?:-[a-z0-9]+)+)`", part)}


#: What the proof of bytecode finds, in an env and in a standard library alike.
SHARED = ("misleading-bytecode", "unproved-bytecode", "unreadable-bytecode", "bytecode-not-proved")


def kinds(texts: dict[str, str]) -> set[tuple[str, str]]:
    """Every (family, kind) that the checks can find."""
    checks = {module: text for module, text in texts.items() if module.startswith("checks/")}
    family = {}
    for module, text in checks.items():
        named = re.search(r'^FAMILY(?:: \w+)? = "(\w+)"', text, re.MULTILINE)
        taken = re.search(r"^from envsmith\.checks\.(\w+) import (?:\w+, )*FAMILY\b", text, re.MULTILINE)
        own = "host" if module.startswith("checks/host") else None  # its modules build findings through one helper
        family[module] = own or (named[1] if named else taken[1] if taken else "")
        if taken and not named and not own:
            lender = checks[f"checks/{taken[1]}.py"]
            lent = re.search(r'^FAMILY(?:: \w+)? = "(\w+)"', lender, re.MULTILINE)
            family[module] = lent[1] if lent else ""
    found = {
        (family[module], slug)
        for module, node in given(checks, makes="Finding", parameter="kind")
        for slug in constants(node)
    }
    if "kind=customize.name" in checks.get("checks/hooks.py", ""):
        found |= {("hooks", "sitecustomize"), ("hooks", "usercustomize")}
    if "checks/failures.py" in checks:
        found |= {("imports", row["kind"]) for row in table("import-failures")["failures"]}
    if "checks/interpreter.py" in checks:
        found |= {("interpreter", kind) for kind in SHARED} | {("interpreter", "stdlib-bytecode-poisoned")}
        calls = (node for node in ast.walk(ast.parse(checks["checks/interpreter.py"])) if isinstance(node, ast.Call))
        differences = (call.args[0] for call in calls if name_of(call) == "_Difference")
        found |= {("interpreter", slug) for node in differences for slug in constants(node)}
    if 'poisoned: str = "poisoned-bytecode"' in checks.get("checks/pyc.py", ""):
        found.add(("pyc", "poisoned-bytecode"))
    running = {"commands/look_contexts.py": texts.get("commands/look_contexts.py", "")}
    found |= {("contexts", s) for _, node in given(running, makes="Finding", parameter="kind") for s in constants(node)}
    verify = {"commands/verify.py": texts.get("commands/verify.py", "")}
    named = (s for _, node in given(verify, makes="Finding", parameter="kind") for s in constants(node))
    found |= {("lock" if s == "lock-differs" else "files", s) for s in named}
    if "kind=problem.code" in texts.get("commands/look_base.py", ""):
        # The base's Python could not be asked; the other two codes of that module stop a build.
        asked_base = codes({"commands/basing.py": texts.get("commands/basing.py", "")})
        found |= {("base", code) for code in asked_base - {"base-differs", "base-shadowed"}}
    if "kind=problem.code" in texts.get("commands/look_processes.py", ""):
        # No process could be asked: what the probe raises becomes a finding. It translates `program-missing`.
        asked = ("probe/__init__.py", "facts.py", "tools/process.py")
        probe = codes({module: texts[module] for module in asked if module in texts})
        found |= {("imports", code) for code in probe - {"program-missing"}}
    return found


def rule_kinds(texts: dict[str, str]) -> set[str]:
    """Every kind that the rules of `envsmith check` can find."""
    beside = ("commands/check.py", "commands/modelfiles.py")
    looked = {m: text for m, text in texts.items() if m.startswith("rules/") or m in beside}
    return {slug for _, node in given(looked, makes="Finding", parameter="kind") for slug in constants(node)}


def documented_kinds(text: str) -> set[tuple[str, str]]:
    families = (*FAMILIES, "lock", "host")
    return {
        (heading, kind) for heading, body in sections(text).items() if heading in families for kind in first_cells(body)
    }


def tables() -> dict[str, set[str]]:
    """The keys of every table of a recipe, by its heading: the literal that the model's docstring begins with."""
    found = {}
    for model in vars(recipe).values():
        if inspect.isclass(model) and issubclass(model, BaseModel) and model.model_fields:
            heading = re.match(r"`([^`]+)`", model.__doc__ or "")
            keys = {field.alias or name for name, field in model.model_fields.items()}
            if heading:
                found[heading[1]] = keys
    return found


def documented_tables(text: str) -> dict[str, set[str]]:
    return {heading: first_cells(body) for heading, body in sections(text).items() if heading.startswith("[")}


def modules(texts: dict[str, str]) -> set[str]:
    """Modules that hold more than a docstring."""
    return {module for module, text in texts.items() if len(ast.parse(text).body) > 1}


def documented_modules(text: str) -> set[str]:
    return {cell for cell in first_cells(text) if cell.endswith(".py")}


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as the usual renderers make them."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(path: Path, text: str) -> set[str]:
    """Relative links of a page that lead nowhere, to a file or a heading."""
    broken = set()
    prose = re.sub(r"^    .*$|```.*?```", "", text, flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        place = (path.parent / file) if file else path
        content = text if place == path else place.read_text() if place.is_file() and place.suffix == ".md" else None
        if not place.exists() or (anchor and (content is None or anchor not in anchors(content))):
            broken.add(target)
    return broken


#: Hosts of registries, in pieces, so that this file does not hold them.
HOSTS = (
    ("pypi", "org"), ("pythonhosted", "org"), ("pytorch", "org"), ("huggingface", "co"), ("anaconda", "org"),
    ("anaconda", "com"), ("ghcr", "io"), ("docker", "io"), ("docker", "com"), ("quay", "io"), ("nvcr", "io"),
    ("npmjs", "org"), ("crates", "io"), ("rubygems", "org"), ("modelscope", "cn"), ("golang", "org"),
)  # fmt: skip
FORBIDDEN = re.compile(
    "|".join(rf"\b{name}\.{top}\b" for name, top in HOSTS)
    + "|"
    + r"(?<![\w.$}/-])/(?:"
    + "|".join(("wo" + "rk", "ro" + "ot"))
    + r")(?:/|\b)"
)


SEALED = re.compile(r"docs/evidence/[^/]+/evidence/host\.toml")


def forbidden(text: str) -> set[str]:
    return {found[0] for found in FORBIDDEN.finditer(text)}


def ours() -> list[Path]:
    """Every file that is or may become part of the repository."""
    argv = ("git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    try:
        done = subprocess.run(argv, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("git is not here")
    if done.returncode != 0 or not (ROOT / ".git").exists():
        pytest.skip("this is no git checkout")
    return [path for name in done.stdout.split("\0") if name and (path := ROOT / name).is_file()]


# codes


def test_every_code_is_in_the_page_of_errors_and_no_other() -> None:
    documented = first_cells(page("errors.md"))
    assert documented - codes(sources()) == set()
    assert codes(sources()) - documented == set()


def test_every_code_is_written_where_it_can_be_found() -> None:
    assert hidden_codes(sources()) == set()


def test_every_code_has_one_entry_with_the_exit_code_of_its_error() -> None:
    entries = rows(page("errors.md"))
    assert len(entries) == len({cells[0] for cells in entries})
    known = exits(sources())
    stated = {cells[0]: {int(cells[1])} for cells in entries if cells[1].isdigit()}
    assert {code: (stated[code], known[code]) for code in stated if code in known and stated[code] != known[code]} == {}


def test_every_code_that_a_docstring_promises_is_raised_somewhere() -> None:
    assert promised(sources()) - codes(sources()) == set()


@pytest.mark.parametrize(
    "planted",
    [
        'raise InputError(Problem(code="planted-code", message="x"))',
        'def _wrong(code, words): Problem(code=code)\n_wrong("planted-code", "x")',
        'class P:\n    def add(self, line, code, words): Problem(code=code)\nP().add(1, "planted-code", "x")',
        'code = "planted-code" if twice else "usage"',
        'problem: tuple[str, str] | None = ("planted-code", "x")',
        'def _keep(made, code): _differs(made, code)\n_keep(1, code="planted-code")',
    ],
)
def test_a_planted_code_is_seen(planted: str) -> None:
    assert codes({"planted.py": planted}) - {"usage"} == {"planted-code"}


def test_a_code_that_is_put_together_is_seen_as_hidden() -> None:
    assert hidden_codes({"planted.py": 'Problem(code="a-" + word, message="x")'}) == {"planted.py: 'a-' + word"}


def test_a_planted_exit_code_and_promise_are_seen() -> None:
    text = 'def f():\n    """Do.\n\n    Raises:\n        InputError: `planted-code`.\n    """\n'
    assert promised({"planted.py": text}) == {"planted-code"}
    raised = 'raise SupplyError(Problem(code="planted-code", message="x"))'
    assert exits({"planted.py": raised}) == {"planted-code": {4}}


# findings


def test_every_kind_of_finding_is_in_the_page_of_verification_and_no_other() -> None:
    documented = documented_kinds(page("verify.md"))
    assert documented - kinds(sources()) == set()
    assert kinds(sources()) - documented == set()


def test_every_family_of_the_page_is_one_that_the_command_line_takes() -> None:
    assert {family for family, _ in documented_kinds(page("verify.md"))} == {*FAMILIES, "lock", "host"}


@pytest.mark.parametrize(
    "planted",
    [
        'yield Finding(check=FAMILY, kind="planted-kind", severity=s)',
        'yield Finding(check=FAMILY, kind="planted-kind" if known else "planted-kind", severity=s)',
        'def _error(kind, subject): Finding(kind=kind)\n_error("planted-kind", "x")',
        'kind = "planted-kind"',
    ],
)
def test_a_planted_kind_is_seen(planted: str) -> None:
    assert kinds({"checks/planted.py": f'FAMILY = "files"\n{planted}'}) == {("files", "planted-kind")}


def test_a_kind_that_is_left_out_of_its_family_is_seen() -> None:
    text = page("verify.md")
    row = next(line for line in text.splitlines() if line.startswith("| `launcher-missing` |"))
    assert ("launchers", "launcher-missing") not in documented_kinds(text.replace(row, ""))


def test_every_kind_of_a_rule_is_in_the_page_of_rules_and_no_other() -> None:
    documented = first_cells(page("rules.md"))
    assert documented - rule_kinds(sources()) == set()
    assert rule_kinds(sources()) - documented == set()


def test_a_planted_rule_is_seen() -> None:
    planted = 'def found(kind, subject): return Finding(kind=kind)\nyield found("planted-kind", "x")'
    assert rule_kinds({"rules/planted.py": planted}) == {"planted-kind"}


def delivery_kinds(texts: dict[str, str]) -> set[str]:
    """Every kind that `envsmith deliver` can find."""
    looked = {module: text for module, text in texts.items() if module in ("shards.py", "checkpointfolder.py")}
    return {slug for _, node in given(looked, makes="Finding", parameter="kind") for slug in constants(node)}


def documented_deliveries() -> set[str]:
    return {cells[0] for cells in rows(page("deliver.md")) if cells[1].startswith(("error", "warning", "note"))}


def test_every_kind_of_a_delivery_is_in_its_page_and_no_other() -> None:
    assert "shard-missing" in documented_deliveries()
    assert documented_deliveries() == delivery_kinds(sources())


def test_a_planted_kind_of_a_delivery_is_seen() -> None:
    planted = 'def _finding(answer, kind): return Finding(kind=kind)\nyield _finding(1, "planted-kind")'
    assert delivery_kinds({"shards.py": planted}) == {"planted-kind"}


# recipe keys


def test_every_key_of_every_table_is_in_the_page_of_the_recipe_and_no_other() -> None:
    documented = documented_tables(page("recipe.md"))
    assert documented == tables()
    assert {heading.strip("[]").split(".")[0] for heading in documented} == set(recipe.Stack.model_fields)


def test_a_key_that_is_left_out_is_seen() -> None:
    text = page("recipe.md")
    row = next(line for line in text.splitlines() if line.startswith("| `allow-outside` |"))
    assert documented_tables(text.replace(row, ""))["[env.X.verify]"] != tables()["[env.X.verify]"]


# modules


def test_every_module_is_in_the_page_of_the_design_and_no_other() -> None:
    documented = documented_modules(page("design.md"))
    assert documented - modules(sources()) == set()
    assert modules(sources()) - documented == set()


def test_a_module_that_is_left_out_is_seen_and_a_folder_mark_is_none() -> None:
    assert modules({"new.py": '"""New."""\n\nX = 1\n', "tools/__init__.py": '"""Effects."""\n'}) == {"new.py"}
    assert documented_modules("| `new.py` | something new |") == {"new.py"}


def test_the_page_of_the_design_has_the_import_rows_of_the_test() -> None:
    from tests.test_architecture import ROWS

    stated = dict(re.findall(r"^\| (\d) \| (.+) \|$", page("design.md"), re.MULTILINE))
    there = {module.split("/")[0].removesuffix(".py") for module in sources()}
    wanted = {str(n): there & {*row} for n, row in enumerate(ROWS, 1)}
    assert {n: {*re.findall(r"`([^`]+)`", cell)} for n, cell in stated.items()} == wanted


# links, hosts and paths


def test_every_relative_link_leads_somewhere() -> None:
    pages = [path for path in ours() if path.suffix == ".md"]
    assert DOCS / "design.md" in pages
    broken = {path.relative_to(ROOT).as_posix(): broken_links(path, path.read_text()) for path in pages}
    assert {name: links for name, links in broken.items() if links} == {}


@pytest.mark.parametrize("link", ["nowhere.md", "errors.md#no-such-heading", "#no-such-heading", "../nowhere/"])
def test_a_link_to_nowhere_is_seen(link: str) -> None:
    assert broken_links(DOCS / "design.md", f"see [this]({link})") == {link}


def test_no_file_names_a_registry_or_a_path_of_one_machine() -> None:
    found = {}
    for path in ours():
        try:
            words = forbidden(path.read_text(encoding="utf-8"))
        except UnicodeDecodeError:
            continue
        # The home folder of a recorded machine's user, among its facts, in a file that a digest seals.
        if SEALED.fullmatch(path.relative_to(ROOT).as_posix()):
            words -= {"/" + "ro" + "ot"}
        if words:
            found[path.relative_to(ROOT).as_posix()] = words
    assert found == {}


@pytest.mark.parametrize(
    "words", [("see https://files.", "pythonhosted", ".org/x"), ("in ", "/wo", "rk/main"), ("=/ro", "ot/x")]
)
def test_a_planted_host_or_path_is_seen(words: tuple[str, ...]) -> None:
    assert forbidden("".join(words))


def test_words_that_only_look_alike_are_not_seen() -> None:
    # In pieces like those above, so that a plain search of this file finds nothing either.
    assert forbidden("src/wo" + "rk/x, docs/root, $HOME/work, work/root, packaging.pylock") == set()
