"""What the files of an evidence folder say, as values, and the documents that are made of lock, receipt and run.

The same functions write a document and, in whoever checks the folder, say what it should be. Nothing here does I/O.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from envsmith.evidence import RUNGS
from envsmith.launch import LaunchEnvironment
from envsmith.lock import Lock, LockedSeries
from envsmith.nativestack import ended
from envsmith.receipt import Receipt
from envsmith.redaction import holds_secret, without_secrets
from envsmith.report import Finding, Report, Severity
from envsmith.toml_reader import TomlError, read_toml

STATUSES: Final = ("passed", "failed", "inconclusive", "skipped", "not-run")
#: Rungs that are envsmith's own work, which end no process, and those whose processes give no answer.
OWN_WORK: Final = ("static", "exit-clean")
UNANSWERED: Final = (*OWN_WORK, "command")
#: No run takes a year; in seconds.
LONGEST_S: Final = 366 * 86_400
#: Verdicts of a statement that a rung cannot pass with.
NOT_PASSING: Final = ("failed", "inconclusive")

#: Variables whose value is shown, when they hold nothing that looks like a secret; of others only the name is.
SHOWN_VARIABLES: Final = frozenset({
    "CUDA_DEVICE_ORDER", "CUDA_HOME", "CUDA_LAUNCH_BLOCKING", "CUDA_VISIBLE_DEVICES", "ENVSMITH_HOME", "HF_HOME",
    "HF_DATASETS_OFFLINE", "HF_HUB_OFFLINE", "HSA_OVERRIDE_GFX_VERSION", "LANG", "LC_ALL", "LD_LIBRARY_PATH",
    "LD_PRELOAD", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "MKL_NUM_THREADS", "NCCL_DEBUG", "NCCL_IB_DISABLE",
    "NCCL_NVLS_ENABLE", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_SOCKET_IFNAME", "NVIDIA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS", "PATH", "PYTHONNOUSERSITE", "PYTHONPATH", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF",
    "RAY_TMPDIR", "TMPDIR", "TOKENIZERS_PARALLELISM", "TRANSFORMERS_OFFLINE", "VIRTUAL_ENV", "WORLD_SIZE",
})  # fmt: skip

_SAFE = re.compile(r"[a-z0-9][a-z0-9._+-]{0,63}", re.IGNORECASE)
_ANSWER = re.compile(r"answer\.(\d{1,5})\.json")
_STACK = re.compile(r"stack\.\d{1,5}\.txt")


@dataclass(frozen=True, kw_only=True, slots=True)
class Rung:
    """One rung of a run, as the record has it."""

    rung: str
    """Its name: the kind, with a number where a recipe has several of it."""
    kind: str
    status: str
    folder: str
    """Name of its folder below `rungs/`."""
    seconds: float
    device: str | None
    exit_codes: Mapping[str, int | None]
    """Rank to exit code; None for one that envsmith ended, past its limit or after another rank had failed."""
    ends: Mapping[str, str]
    """Rank to how it ended, in words; empty where the record says none."""
    figures: Mapping[str, Any]
    statements: tuple[Mapping[str, Any], ...]
    first_error: Mapping[str, Any] | None
    left_behind: int
    """How many processes were still there."""
    row: Mapping[str, Any]
    """All that the record has of it."""


def rungs_of(record: Mapping[str, Any]) -> tuple[Rung, ...]:
    """Read the rungs of a record.

    Raises:
        ValueError: one is of another form than a run writes.
    """
    rows = record.get("rungs")
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        raise ValueError("its `rungs` are no list of tables")
    names = folder_names(rows)
    return tuple(_rung(row, folder) for row, folder in zip(rows, names, strict=True))


def _rung(row: Mapping[str, Any], folder: str) -> Rung:
    rung, status, seconds = row.get("rung"), row.get("status"), row.get("seconds") or 0.0
    kind, left = row.get("kind", rung), row.get("left_behind") or []
    codes, ends, first = row.get("exit_codes") or {}, row.get("ends") or {}, row.get("first_error")
    statements, figures, device = row.get("statements") or [], row.get("figures") or {}, row.get("device")
    if not isinstance(rung, str) or not isinstance(kind, str) or status not in STATUSES:
        raise ValueError(f"`{str(rung)[:60]}` has the status `{str(status)[:60]}`")
    good = type(seconds) in (int, float) and isinstance(figures, Mapping) and isinstance(codes, Mapping)
    good = good and abs(seconds) < LONGEST_S  # not so of NaN; an int may be larger than any float
    good = good and all(code is None or type(code) is int for code in codes.values())
    good = good and isinstance(ends, Mapping) and all(isinstance(words, str) for words in ends.values())
    good = (
        good
        and isinstance(left, list)
        and isinstance(statements, list)
        and all(isinstance(one, Mapping) for one in statements)
    )
    if not good or not isinstance(first, Mapping | None) or not isinstance(device, str | None):
        raise ValueError(f"the rung `{rung[:60]}` is of another form than a run writes")
    return Rung(
        rung=rung,
        kind=kind,
        status=str(status),
        folder=folder,
        seconds=float(seconds),
        device=device,
        exit_codes={str(rank): code for rank, code in codes.items()},
        ends={str(rank): words for rank, words in ends.items()},
        figures=figures,
        statements=tuple(statements),
        first_error=first,
        left_behind=len(left),
        row=row,
    )


def folder_names(rows: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Name the folder of every rung below `rungs/`: the last part of its own one, else a number and its name."""
    found: list[str] = []
    for number, row in enumerate(rows, 1):
        named = str(row.get("folder") or "").rstrip("/").rpartition("/")[2]
        if not _SAFE.fullmatch(named) or named.casefold() in (one.casefold() for one in found):
            slug = re.sub(r"[^a-z0-9-]+", "-", str(row.get("rung")).lower()).strip("-")[:40] or "rung"
            named = f"{number:02d}-{slug}"
        found.append(named)
    return tuple(found)


def is_plain_name(name: str) -> bool:
    """Whether a rung's folder keeps this name in the evidence."""
    return _SAFE.fullmatch(name) is not None


def ending(rung: Rung, rank: str) -> str:
    """How a rank ended that has no exit code of its own, in the record's words."""
    return rung.ends.get(rank) or "ended by envsmith"


def death(rung: Rung, rank: str) -> str:
    """How a rank ended, as the first line of its stacks says."""
    code = rung.exit_codes.get(rank, 0)
    return f"rank {rank}: {ending(rung, rank)}" if code is None else f"rank {rank} ended with {ended(code)}"


def deaths(rungs: Iterable[Rung], paths: Collection[str]) -> dict[str, str]:
    """How a rank of each rung died whose stacks are among these files: the last one that did not end well."""
    found: dict[str, str] = {}
    for rung in rungs:
        for rank in sorted(rung.exit_codes):
            if stack_path(rung, rank) in paths and (rung.exit_codes[rank] != 0 or rung.folder not in found):
                found[rung.folder] = death(rung, rank)
    return found


def stack_path(rung: Rung, rank: str) -> str:
    """Where the stacks of a rank lie in the folder."""
    return f"{RUNGS}/{rung.folder}/stack.{rank}.txt"


def host_of(snapshot: str) -> Mapping[str, Any] | None:
    """The table `[host]` of a snapshot; None where it has none."""
    try:
        host = read_toml(snapshot).get("host")
    except TomlError:
        return None
    return host if isinstance(host, Mapping) else None


def findings_of(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The findings of a record, as far as they are any."""
    rows = record.get("findings")
    return [one for one in rows if isinstance(one, Mapping)] if isinstance(rows, list) else []


def report_document(report: Report) -> dict[str, Any]:
    """What verify said, without its secrets."""
    return {
        "subject": report.subject,
        "families": list(report.families),
        "findings": [without_secrets(one).to_dict() for one in report.findings],
        "environment": dict(report.environment),
        "figures": dict(report.figures),
    }


def report_of(document: Any) -> Report:
    """Read it back.

    Raises:
        ValueError: it is of another form than `report_document` gives.
    """
    try:
        findings = tuple(Finding(**{**one, "severity": Severity(one["severity"])}) for one in document["findings"])
        report = Report(
            subject=document["subject"],
            families=tuple(document["families"]),
            findings=findings,
            environment=document["environment"],
            figures=document["figures"],
        )
        words = [report.subject, *report.families, *report.environment.values(), *report.figures.values()]
        words += [word for one in findings for word in one.to_dict().values() if word is not None]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("it is no report of verify") from error
    if not all(isinstance(word, str) for word in words):
        raise ValueError("it has words that are no text")
    return report


def rank_of_answer(name: str) -> str | None:
    """The rank whose answer a file is."""
    found = _ANSWER.fullmatch(name)
    return found[1] if found else None


def shallow_answer(answer: Any) -> Any:
    """An answer without what lies deeper than a document of the folder may nest; the rest is as it was."""
    return {key: _shallow(value) for key, value in answer.items()} if isinstance(answer, Mapping) else _shallow(answer)


def shallow_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """The same for the row of a rung, so that both still say the same."""
    ranks = row.get("figures_of_ranks")
    others = {str(rank): _shallow(one) for rank, one in ranks.items()} if isinstance(ranks, Mapping) else ranks
    return {key: others if key == "figures_of_ranks" else _shallow(value) for key, value in row.items()}


def _shallow(value: Any, levels: int = 16) -> Any:
    if not isinstance(value, Mapping | list | tuple):
        return value
    if levels == 0:
        return "(nests too deep)"
    if isinstance(value, Mapping):
        return {key: _shallow(inner, levels - 1) for key, inner in value.items()}
    return [_shallow(inner, levels - 1) for inner in value]


def is_paper(path: str) -> bool:
    """Whether a file's content is judged: documents of the folder, answers and stacks, no logs and no leavings."""
    name = path.rpartition("/")[2]
    return not path.startswith(f"{RUNGS}/") or (
        path.count("/") == 2 and (_ANSWER.fullmatch(name) or _STACK.fullmatch(name)) is not None
    )


def answer_path(rung: Rung, rank: str) -> str:
    """Where the answer of a rank lies in the folder."""
    return f"{RUNGS}/{rung.folder}/answer.{rank}.json"


def statements_of(answer: Any) -> tuple[Mapping[str, Any], ...]:
    """The statements of an answer, as far as it is one."""
    rows = answer.get("statements") if isinstance(answer, Mapping) else None
    return tuple(row for row in rows if isinstance(row, Mapping)) if isinstance(rows, list) else ()


def identities_document(rungs: Iterable[Rung], answers: Mapping[str, Any]) -> dict[str, Any]:
    """What models and data each rung used, by its folder, kind and file; `answers` by path in the folder."""
    found: dict[str, Any] = {}
    for rung in rungs:
        kinds: dict[str, Any] = {}
        for rank in sorted(rung.exit_codes):
            answer = answers.get(answer_path(rung, rank))
            said = answer.get("identities") if isinstance(answer, Mapping) else None
            for kind, files in said.items() if isinstance(said, Mapping) else ():
                kinds.setdefault(str(kind), {}).update(files if isinstance(files, Mapping) else {})
        if kinds:
            found[rung.folder] = kinds
    return found


def seconds_document(receipt: Receipt, rungs: Iterable[Rung], stages: Mapping[str, float]) -> dict[str, Any]:
    """Seconds of each stage: the steps of the build, the rungs, and what else the run measured."""
    return {
        "build": dict(receipt.seconds),
        "rungs": {rung.folder: rung.seconds for rung in rungs},
        "run": {name: float(seconds) for name, seconds in stages.items()},
    }


def patches_document(lock: Lock, receipt: Receipt) -> list[dict[str, Any]]:
    """Every patched thing of an env: where it starts, each patch by its sha256, and the tree after it."""
    found = []
    for source in lock.sources:
        steps = receipt.tree_steps.get(source.name, ())
        found.append(
            {
                "target": source.name,
                "kind": "source",
                "start": source.commit or (source.sdist.sha256 if source.sdist else None),
                "tree-before": source.base_tree,
                "tree-after": receipt.trees.get(source.name, source.tree),
                "series": _series(source.series, steps[1:]),
            }
        )
    for wheel in lock.patched:
        found.append(
            {
                "target": wheel.name,
                "kind": "wheel",
                "start": wheel.original.sha256,
                "tree-before": None,
                "tree-after": wheel.tree,
                "series": _series(wheel.series, ()),
            }
        )
    return found


def _series(series: Iterable[LockedSeries], trees: tuple[str, ...]) -> list[dict[str, Any]]:
    left = iter(trees)
    return [
        {
            "path": one.path,
            "layer": one.layer,
            "patches": [
                {"path": patch.path, "sha256": patch.sha256, "tree-after": next(left, None)} for patch in one.patches
            ],
        }
        for one in series
    ]


def launch_document(launch: LaunchEnvironment, environment: Mapping[str, str]) -> dict[str, Any]:
    """The change that the env makes to a process's environment, and what the whole one holds, by name.

    Values of variables that neither the recipe names nor `SHOWN_VARIABLES` are left out.
    """
    own = {name for name, _ in (*launch.set, *launch.prepend)}
    shown = {name: environment[name] for name in sorted(environment) if name in SHOWN_VARIABLES | own}
    return {
        "unset": list(launch.unset),
        "set": dict(launch.set),
        "prepend": dict(launch.prepend),
        "require": list(launch.require),
        "directories": list(launch.directories),
        "profile": launch.profile,
        "environment": {
            "names": sorted(environment),
            "secret": sorted(name for name in environment if holds_secret(name)),
            "values": shown,
        },
    }
