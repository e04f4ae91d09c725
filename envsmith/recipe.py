"""The recipe: one TOML page per machine, parsed into frozen values with every problem reported at once.

`parse(text, where)` is the only way in. Keys are kebab-case in the file and snake_case here; unknown keys are
refused with a suggestion. The models are also the source of the JSON Schema that `envsmith schema` prints.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    ValidationError,
)

from envsmith.errors import InputError, Problem
from envsmith.launch import LaunchTable
from envsmith.toml_position import KeyPath, line_of, locate
from envsmith.toml_reader import TomlError, read_toml


def _requirement(text: str) -> str:
    try:
        requirement = Requirement(text)
    except InvalidRequirement as error:
        raise ValueError(f"`{text}` is not a requirement: {str(error).splitlines()[0]}") from error
    if requirement.url:
        raise ValueError(f"`{text}` names a URL; hosts stay out of recipes, use a `source` table instead")
    return text


def _version(text: str) -> str:
    try:
        Version(text)
    except InvalidVersion as error:
        raise ValueError(f"`{text}` is not a version such as `1.2.0`") from error
    return text


def _specifier(text: str) -> str:
    try:
        SpecifierSet(text)
    except InvalidSpecifier as error:
        raise ValueError(f"`{text}` is not a version specifier such as `>=470`") from error
    return text


def _name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", text):
        raise ValueError(f"`{text}` is not a package name")
    return text


def _inside(text: str) -> str:
    path = PurePosixPath(_no_nul(text))
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ValueError(f"`{text}` must be a relative path without `..`")
    return text


def _absolute(text: str) -> str:
    if not PurePosixPath(_no_nul(text)).is_absolute():
        raise ValueError(f"`{text}` must be an absolute path, as it is on the target")
    return text


def _no_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("no variable and no path can hold a NUL character")
    return text


def _pattern(expression: str, words: str) -> AfterValidator:
    def check(text: str) -> str:
        if not re.fullmatch(expression, text):
            raise ValueError(f"`{text}` is not {words}")
        return text

    return AfterValidator(check)


def _no_number(value: Any) -> Any:
    if isinstance(value, (int, float)):
        raise ValueError(f"`{value}` is not a point in time such as `2026-11-01T00:00:00Z`")
    return value


def _aware(value: datetime) -> datetime:
    if value.tzinfo is None:
        raise ValueError("a point in time needs its zone, for example `2026-11-01T00:00:00Z`")
    return value.astimezone(timezone.utc)


def _text_value(value: Any) -> Any:
    """Accept the numbers and booleans that people write for variables, as the text a process sees."""
    if isinstance(value, bool):
        return "1" if value else "0"
    return str(value) if isinstance(value, (int, float)) else value


RequirementText = Annotated[str, AfterValidator(_requirement)]
SpecifierText = Annotated[str, AfterValidator(_specifier)]
PackageName = Annotated[str, AfterValidator(_name)]
InsidePath = Annotated[str, AfterValidator(_inside)]
VariableName = Annotated[str, _pattern(r"[A-Za-z_][A-Za-z0-9_]*", "a variable name")]
PathText = Annotated[str, AfterValidator(_no_nul)]
VariableText = Annotated[PathText, BeforeValidator(_text_value)]
Sha256 = Annotated[str, _pattern(r"[0-9a-f]{64}", "a sha256: 64 lower-case hexadecimal digits")]
Commit = Annotated[str, _pattern(r"[0-9a-f]{40}", "a full commit id: 40 hexadecimal digits (a short one can move)")]
TwoNumbers = Annotated[str, _pattern(r"[0-9]+\.[0-9]+", "a version such as `2.31`")]


class _Table(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=lambda name: name.replace("_", "-"), strict=False
    )


class StackInfo(_Table):
    """`[stack]`."""

    name: Annotated[str, _pattern(r"[a-z0-9-]+", "a stack name: lower-case letters, digits and hyphens")]
    version: Annotated[str, AfterValidator(_version)] | None = None
    """The recipe's own version: what bundles are compared by, so that an old one cannot pose as a newer one."""
    summary: str = ""


class Host(_Table):
    """`[host]`: the class of machine that wheels are chosen for."""

    arch: Literal["x86_64", "aarch64"] = "x86_64"
    glibc: TwoNumbers = "2.28"
    """The oldest glibc the env must run on; wheels with newer tags are refused."""
    kernel: SpecifierText | None = None
    driver: SpecifierText | None = None
    cuda_compat: TwoNumbers | None = None
    compute_capability: tuple[TwoNumbers, ...] = ()
    devices: Annotated[StrictInt, Field(ge=0)] | None = None
    snapshot: InsidePath | None = None
    query: str | None = None


class Accept(_Table):
    """`[[env.X.accept]]`: a declared requirement that is broken on purpose."""

    package: PackageName
    requirement: str
    because: Annotated[str, Field(min_length=1)]


class Source(_Table):
    """`[env.X.source.NAME]`: a git tree at a commit or an sdist, exported into a work copy of our own."""

    git: str | None = None
    commit: Commit | None = None
    sdist: RequirementText | None = None
    extras: tuple[str, ...] = ()
    series: tuple[InsidePath, ...] = ()
    install: Literal["editable", "wheel"] = "editable"
    deps: StrictBool = True
    version: Annotated[str, AfterValidator(_version)] | None = None
    """For a git tree whose version comes from tags: a work copy has none."""

    @property
    def base(self) -> str:
        """What a series for it must be made for: the commit, or `name==version` of the sdist."""
        return self.sdist.split(";")[0].strip() if self.sdist else self.commit or ""


class WheelPatch(_Table):
    """`[env.X.patch.NAME]`: a patched wheel."""

    series: Annotated[tuple[InsidePath, ...], Field(min_length=1)]


class Base(_Table):
    """`[env.X.base]`: a vendor environment that the env is laid over."""

    python: Annotated[str, AfterValidator(_absolute)]
    protect: Annotated[tuple[str, ...], Field(min_length=1)]


class Asset(_Table):
    """`[env.X.asset.NAME]`: a file that travels in the bundle."""

    path: InsidePath
    sha256: Sha256


class Launch(_Table):
    """`[env.X.launch]`: the environment of every process of the env."""

    unset: tuple[VariableName, ...] = ("PYTHONHOME", "PYTHONPATH")
    set: Mapping[VariableName, VariableText] = Field(default_factory=dict)
    prepend: Mapping[VariableName, PathText] = Field(default_factory=dict)
    require: tuple[VariableName, ...] = ()
    forward: Literal["set"] | tuple[VariableName, ...] = "set"
    driver_library: Literal["host"] | None = None
    short_dirs: Mapping[VariableName, PathText] = Field(default_factory=dict)
    profile: PathText | None = None
    path_filter: tuple[str, ...] = ()

    def table(self) -> LaunchTable:
        """The same as a plain value for `envsmith.launch`."""
        return LaunchTable(
            unset=self.unset,
            set=dict(self.set),
            prepend=dict(self.prepend),
            require=self.require,
            forward=None if self.forward == "set" else self.forward,
            driver_library=self.driver_library,
            short_dirs=dict(self.short_dirs),
            profile=self.profile,
            path_filter=self.path_filter,
        )


class Verify(_Table):
    """`[env.X.verify]`: what has to hold in the env's processes."""

    imports: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    launchers: tuple[str, ...] = ()
    contexts: tuple[Literal["launched", "spawn", "fork", "torchrun", "ray", "vllm"], ...] = ("launched",)
    single_instance: tuple[str, ...] = ()
    allow_outside: tuple[str, ...] = ()
    allow_changed: tuple[InsidePath, ...] = ()


class Job(_Table):
    """`[env.X.job]`: what the training configuration says, so that rules can be checked beforehand."""

    dtype: Literal["bfloat16", "float16", "float32", "auto"] | None = None
    attention: Literal["sdpa", "eager", "flash_attention_2", "flash_attention_3", "flex_attention"] | None = None
    model_type: str | None = None
    cpu_offload: StrictBool | None = None
    optimizer_offload: StrictBool | None = None
    fused_kernels: StrictBool | None = None
    remove_padding: StrictBool | None = None
    dynamic_batch: StrictBool | None = None
    packing: StrictBool | None = None
    train_batch_size: Annotated[StrictInt, Field(ge=1)] | None = None
    mini_batch_size: Annotated[StrictInt, Field(ge=1)] | None = None
    sleep_mode: StrictBool | None = None
    expandable_segments: StrictBool | None = None
    liger: StrictBool | None = None
    tensor_parallel: Annotated[StrictInt, Field(ge=1)] | None = None
    model: PathText | None = None
    """Folder or config.json of the model, relative to the recipe's folder."""
    quantised_load: StrictBool | None = None
    """Weights are made smaller while they are loaded, so their size on a disk says nothing."""
    zero_stage: Annotated[StrictInt, Field(ge=0, le=3)] | None = None
    kv_cache_gib: Annotated[StrictFloat, Field(gt=0, allow_inf_nan=False)] | None = None
    kv_cache_dtype: Literal["auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2"] | None = None
    max_tokens: Annotated[StrictInt, Field(ge=1)] | None = None
    max_sequences: Annotated[StrictInt, Field(ge=1)] | None = None
    checkpoint_dir: PathText | None = None
    """Where checkpoints are written; an absolute path is held against the file systems of a machine."""


RUNGS = (
    "static", "device", "collective", "encode", "generate", "embed", "ray-generate", "train-step",
    "llamafactory-step", "verl-step", "resume", "merge-serve", "exit-clean", "command",
)  # fmt: skip


Positive = Annotated[StrictInt, Field(ge=1)]
RungName = Annotated[str, _pattern(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", "a name of lower-case letters and digits")]


class Smoke(_Table):
    """`[[env.X.smoke]]`: one rung of the smoke ladder with its limits."""

    rung: str
    timeout_s: Annotated[StrictFloat, Field(gt=0, le=10_000_000, allow_inf_nan=False)] | None = None
    ranks: Annotated[StrictInt, Field(ge=1)] | None = None
    command: tuple[PathText, ...] = ()
    expect_output: tuple[str, ...] = ()
    expect_files: tuple[PathText, ...] = ()
    expect_fields: Mapping[str, str] = Field(default_factory=dict)
    port: Annotated[StrictInt, Field(ge=1, le=65535)] | None = None
    dimension: Annotated[StrictInt, Field(ge=1)] | None = None
    steps: Annotated[StrictInt, Field(ge=1)] | None = None
    name: RungName | None = None
    """What the rung is called in the record; for several of one kind."""
    rewards: Literal["varied", "constant"] | None = None
    engine: Literal["vllm", "transformers"] | None = None
    dtype: Literal["bfloat16", "float16", "float32"] | None = None
    model: PathText | None = None
    """Folder of a model on the target, in the place of the one that rungs make themselves."""
    template: str | None = None
    config: InsidePath | None = None
    """A configuration that upstream ships, below its source."""
    overrides: tuple[PathText, ...] = ()
    """Further words for upstream's command line."""
    stages: tuple[str, ...] = ()
    """Parts of `llamafactory-step` in the place of all."""
    prompts: Positive | None = None
    answers: Positive | None = None
    max_tokens: Positive | None = None
    learning_rate: Annotated[StrictFloat, Field(gt=0, allow_inf_nan=False)] | None = None
    endpoint: str | None = None
    model_name: str | None = None
    health_timeout_s: Annotated[StrictFloat, Field(gt=0, allow_inf_nan=False)] | None = None
    gpu_memory_utilization: Annotated[StrictFloat, Field(gt=0, le=1)] | None = None
    max_model_len: Positive | None = None
    chat_template_arguments: Mapping[str, str | bool | int] = Field(default_factory=dict)

    def table(self) -> dict[str, Any]:
        """What was said, keys in kebab-case."""
        return self.model_dump(mode="json", by_alias=True, exclude_defaults=True)


def smoke_table(values: Mapping[str, Any]) -> dict[str, Any]:
    """Hold one table against its form.

    Raises:
        ValueError: what is wrong with it, in words.
    """
    try:
        return Smoke.model_validate(values).table()
    except ValidationError as error:
        said = error.errors()[0]["msg"]
        raise ValueError(said[:1].lower() + said[1:]) from error


class Env(_Table):
    """`[env.X]`: one isolated Python environment."""

    python: Annotated[str, _pattern(r"3\.(0|[1-9][0-9]*)(\.(0|[1-9][0-9]*))?", "a Python version such as `3.11`")]
    requires: tuple[RequirementText, ...] = ()
    no_deps: tuple[PackageName, ...] = ()
    override: tuple[RequirementText, ...] = ()
    constrain: tuple[RequirementText, ...] = ()
    exclude: tuple[PackageName, ...] = ()
    build: tuple[PackageName, ...] = ()
    exclude_newer: Annotated[datetime, BeforeValidator(_no_number), AfterValidator(_aware)] | None = None
    accept: tuple[Accept, ...] = ()
    source: Mapping[str, Source] = Field(default_factory=dict)
    patch: Mapping[str, WheelPatch] = Field(default_factory=dict)
    base: Base | None = None
    asset: Mapping[str, Asset] = Field(default_factory=dict)
    launch: Launch = Launch()
    verify: Verify = Verify()
    job: Job = Job()
    smoke: tuple[Smoke, ...] = ()

    @property
    def python_minor(self) -> str:
        """`3.11`, also where the recipe names a patch release."""
        return ".".join(self.python.split(".")[:2])


class Stack(_Table):
    """A whole recipe file."""

    stack: StackInfo
    host: Host = Host()
    env: Annotated[Mapping[str, Env], Field(min_length=1)]

    def recipe_digest(self, env_name: str) -> str:
        """Sha256 over everything that can change the lock of one env; order, comments and defaults never count.

        Launch, verify, job and smoke tables are left out: they change what runs, not what is locked.
        """
        env = self.env[env_name]
        # Without defaults, so that a key which a later version adds does not make every lock stale.
        locked = env.model_dump(
            mode="json", by_alias=True, exclude={"launch", "verify", "job", "smoke"}, exclude_defaults=True
        )
        for key in ("requires", "no-deps", "override", "constrain", "exclude", "build"):
            locked[key] = sorted(locked.get(key, []))
        locked["accept"] = sorted(locked.get("accept", []), key=lambda entry: json.dumps(entry, sort_keys=True))
        host = self.host.model_dump(
            mode="json", by_alias=True, include={"arch", "glibc", "snapshot"}, exclude_none=True
        )
        content = {"stack": self.stack.name, "env": env_name, "host": host, "recipe": locked}
        return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def schema() -> dict[str, Any]:
    """JSON Schema of a recipe, for editors."""
    made = Stack.model_json_schema(by_alias=True)
    made["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    made["title"] = "envsmith recipe"
    return made


def parse(text: str, where: str) -> Stack:
    """Parse a recipe file.

    `where` is the path shown in errors; its stem must be the stack's name.

    Raises:
        InputError: `recipe-syntax`, or every `recipe-unknown-key`, `recipe-missing-key`, `recipe-invalid-value`
            and `recipe-contradiction` of the file at once.
    """
    try:
        data = read_toml(text)
    except TomlError as error:
        raise InputError(
            Problem(code="recipe-syntax", message=f"this is not TOML: {error}", where=f"{where}:{error.line}")
        ) from error
    lines = locate(text)
    problems: list[Problem] = []
    stack: Stack | None = None
    try:
        stack = Stack.model_validate(data)
    except ValidationError as error:
        errors = [dict(one) for one in error.errors(include_url=False)]
        problems += [_problem(where, lines, one) for one in errors if not _other_branch(one)]
    problems += [_contradiction(where, lines, *one) for one in _contradictions(data, PurePosixPath(where).stem)]
    if problems or stack is None:
        raise InputError(*sorted(set(problems), key=_by_line))
    return stack


def _by_line(problem: Problem) -> tuple[int, str]:
    line = (problem.where or "").rpartition(":")[2]
    return (int(line) if line.isdigit() else 0, problem.message)


def _dotted(path: KeyPath) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _at(where: str, lines: dict[KeyPath, int], path: KeyPath) -> str:
    line = line_of(lines, path)
    return f"{where}:{line}" if line else f"{where}:1"


def _problem(where: str, lines: dict[KeyPath, int], error: dict[str, Any]) -> Problem:
    # pydantic puts the branch of a union into the location; a file has no such key.
    path: KeyPath = tuple(
        part
        for part in error["loc"]
        if not (isinstance(part, str) and re.match(r"(literal|tuple|function-\w+)\[|\[key\]", part))
    )
    key = _dotted(path)
    at = _at(where, lines, path)
    kind = str(error["type"])
    if kind == "extra_forbidden":
        return Problem(
            code="recipe-unknown-key",
            message=f"unknown key `{key}`",
            where=at,
            hint=_suggestion(path) or "`envsmith schema` prints every key that a recipe may hold",
        )
    if kind == "missing":
        return Problem(
            code="recipe-missing-key", message=f"the key `{key}` is missing", where=at, hint=f"add `{path[-1]} = …`"
        )
    words = _WORDS.get(kind) or re.sub(r"^(Value error, |Input )", "", str(error["msg"]))
    words = words[:1].lower() + words[1:]
    if str(error["loc"][-1]).startswith("literal["):
        words += " or an array"
    if kind != "value_error":
        words = f"{words} (got {_kind_of(error.get('input'))})"
    return Problem(code="recipe-invalid-value", message=f"`{key}`: {words}", where=at)


def _other_branch(error: dict[str, Any]) -> bool:
    """Whether it is what the other branch of `launch.forward`, the one union, says of a value."""
    branch, value = str(error["loc"][-1]), error.get("input")
    if branch.startswith("literal["):
        return isinstance(value, list)
    return branch.startswith("tuple[") and not isinstance(value, list)


#: What a TOML file calls the types of Python.
_WORDS = {
    "tuple_type": "should be an array",
    "dict_type": "should be a table",
    "mapping_type": "should be a table",
    "model_type": "should be a table",
    "string_type": "should be a string",
    "int_type": "should be a whole number",
    "float_type": "should be a number",
    "bool_type": "should be `true` or `false`",
    "datetime_type": "should be a point in time such as `2026-11-01T00:00:00Z`",
    "too_short": "may not be empty",
    "string_too_short": "may not be empty",
}


def _kind_of(value: Any) -> str:
    if isinstance(value, (str, int, float)):
        return f"`{value}`" if not isinstance(value, bool) else f"`{str(value).lower()}`"
    words: dict[type, str] = {dict: "a table", list: "an array"}
    return words.get(type(value), type(value).__name__)


#: Table path to its model; None stands for any key or index.
_MODELS: tuple[tuple[tuple[str | None, ...], type[_Table]], ...] = (
    ((), Stack),
    (("stack",), StackInfo),
    (("host",), Host),
    (("env", None), Env),
    (("env", None, "accept", None), Accept),
    (("env", None, "source", None), Source),
    (("env", None, "patch", None), WheelPatch),
    (("env", None, "base"), Base),
    (("env", None, "asset", None), Asset),
    (("env", None, "launch"), Launch),
    (("env", None, "verify"), Verify),
    (("env", None, "job"), Job),
    (("env", None, "smoke", None), Smoke),
)


def _suggestion(path: KeyPath) -> str | None:
    parent, wrong = path[:-1], str(path[-1])
    for shape, model in _MODELS:
        if len(shape) == len(parent) and all(a is None or a == b for a, b in zip(shape, parent, strict=True)):
            known = [field.alias or name for name, field in model.model_fields.items()]
            close = difflib.get_close_matches(wrong.replace("_", "-"), known, n=1, cutoff=0.6)
            return f"did you mean `{close[0]}`?" if close else f"known keys here: {', '.join(f'`{k}`' for k in known)}"
    return None


Contradiction = tuple[KeyPath, str, "str | None"]


def _contradiction(where: str, lines: dict[KeyPath, int], path: KeyPath, message: str, hint: str | None) -> Problem:
    return Problem(code="recipe-contradiction", message=message, where=_at(where, lines, path), hint=hint)


def _contradictions(data: dict[str, Any], stem: str) -> Iterator[Contradiction]:
    """Find what single keys cannot show. Works on raw data, so that it also runs beside other problems."""
    name = data.get("stack", {}).get("name") if isinstance(data.get("stack"), dict) else None
    if isinstance(name, str) and name != stem:
        yield ("stack", "name"), f"the stack is named `{name}`, its file `{stem}.toml`", "make them the same"
    envs = data.get("env")
    for env_name, env in envs.items() if isinstance(envs, dict) else ():
        path: KeyPath = ("env", env_name)
        if not re.fullmatch(r"[a-z0-9]+", env_name):
            yield path, f"`{env_name}` is not an env name: lower-case letters and digits only", None
        if isinstance(env, dict):
            yield from _env_contradictions(path, env)


def _names(env: dict[str, Any], key: str) -> list[tuple[int, str, str]]:
    """(index, canonical name, text) of every readable requirement or name of a list."""
    found = []
    values = env.get(key)
    for index, text in enumerate(values if isinstance(values, list) else ()):
        try:
            found.append((index, str(canonicalize_name(Requirement(text).name)), text))
        except (InvalidRequirement, TypeError):
            continue
    return found


def _env_contradictions(path: KeyPath, env: dict[str, Any]) -> Iterator[Contradiction]:
    required: dict[str, str] = {}
    for index, name, text in _names(env, "requires"):
        if name in required and Requirement(text).marker is None and Requirement(required[name]).marker is None:
            yield (*path, "requires", index), f"`{name}` is required twice: `{required[name]}` and `{text}`", None
        required.setdefault(name, text)
    for index, name, text in _names(env, "no-deps"):
        if name not in required:
            yield (
                (*path, "no-deps", index),
                f"`{text}` is named in `no-deps` but not in `requires`",
                "add it to `requires`, or leave it out here",
            )
    excluded = {name for _, name, _ in _names(env, "exclude")}
    for name in sorted(excluded & set(required)):
        yield (*path, "exclude"), f"`{name}` is both required and excluded", None
    sources = env.get("source")
    for name, source in sources.items() if isinstance(sources, dict) else ():
        if isinstance(source, dict):
            yield from _source_contradictions((*path, "source", name), name, source, required)
    accepts = env.get("accept")
    for index, accept in enumerate(accepts if isinstance(accepts, list) else ()):
        named = accept.get("requirement") if isinstance(accept, dict) else None
        if isinstance(named, str) and named != "*":
            try:
                Requirement(named)
            except InvalidRequirement:
                yield (*path, "accept", index, "requirement"), f"`{named}` is neither a requirement nor `*`", None
    smokes = env.get("smoke")
    for index, smoke in enumerate(smokes if isinstance(smokes, list) else ()):
        rung = smoke.get("rung") if isinstance(smoke, dict) else None
        if isinstance(rung, str) and rung not in RUNGS:
            close = difflib.get_close_matches(rung, RUNGS, n=1)
            hint = f"did you mean `{close[0]}`?" if close else f"rungs: {', '.join(RUNGS)}"
            yield (*path, "smoke", index, "rung"), f"`{rung}` is not a rung of the smoke ladder", hint
        if rung == "command" and not smoke.get("command"):
            yield (*path, "smoke", index), "the rung `command` has no `command`", 'for example ["python", "train.py"]'
    yield from _rung_names((*path, "smoke"), smokes)


def _rung_names(path: KeyPath, smokes: object) -> Iterator[Contradiction]:
    """Two rungs of one label could not be told apart in the record."""
    seen: set[str] = set()
    for index, smoke in enumerate(smokes if isinstance(smokes, list) else ()):
        name = smoke.get("name") if isinstance(smoke, dict) else None
        if isinstance(name, str) and (name in seen or name in RUNGS):
            yield (*path, index, "name"), f"`{name}` is the name of another rung", None
        seen.add(str(name))


def _source_contradictions(
    path: KeyPath, name: str, source: dict[str, Any], required: dict[str, str]
) -> Iterator[Contradiction]:
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", name):
        yield path, f"`{name}` is not a source name: lower-case letters, digits and inner hyphens", None
    git, sdist, commit = source.get("git"), source.get("sdist"), source.get("commit")
    if (git is None) == (sdist is None):
        yield path, f"the source `{name}` needs either `git` with `commit`, or `sdist`", None
    if git is not None and commit is None:
        yield path, f"the source `{name}` has no `commit`", "a branch moves; name the full commit id"
    if sdist is not None and commit is not None:
        yield (*path, "commit"), f"the source `{name}` is an sdist and has no commit", None
    if isinstance(sdist, str) and not _pins_one(sdist):
        yield (*path, "sdist"), f"`{sdist}` does not pin one version", f"write `{name}==<version>`"
    if canonicalize_name(name) in required:
        yield path, f"`{name}` is both a source and in `requires`", "a source is installed by itself"


def _pins_one(text: str) -> bool:
    """Whether a requirement is `name==version`; what is no requirement at all is said elsewhere."""
    try:
        clauses = list(Requirement(text).specifier)
    except InvalidRequirement:
        return True
    return len(clauses) == 1 and clauses[0].operator == "==" and not clauses[0].version.endswith("*")
