"""`envsmith smoke`: climb the smoke ladder in an env, and stop at the first rung that does not pass."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from envsmith.commands.climbing import Climb, Climbed, climb_rung, open_climb
from envsmith.commands.commandrung import require_expectations
from envsmith.commands.envs import env_root, is_ours, open_env, shown, user_path
from envsmith.commands.evidencing import EvidenceMaterial, WrittenEvidence, require_free_folder, write_evidence
from envsmith.commands.foreign import open_foreign
from envsmith.commands.result import Result
from envsmith.commands.screen import Screen
from envsmith.commands.smokerecord import record_of, text_of
from envsmith.commands.smoketables import packages_of, tables_of, unused_setting, with_settings
from envsmith.commands.subject import Subject, open_with_work
from envsmith.errors import InputError, NegativeAnswer, Problem
from envsmith.smoke import Rung, climb, left_out
from envsmith.tools.leftovers import kill_rest
from envsmith.tools.timelimit import undisturbed


@dataclass(frozen=True, kw_only=True, slots=True)
class EvidenceWishes:
    """Whether and how the record of the run is written as a folder."""

    folder: str | None = None
    key: str | None = None
    """Key of OpenSSH to sign it with."""

    @property
    def key_path(self) -> Path | None:
        """The key as a path."""
        return user_path(self.key) if self.key else None


def run(
    env: str,
    *,
    root: str | None,
    to: str | None,
    only: tuple[str, ...],
    settings: tuple[str, ...],
    wishes: EvidenceWishes,
    environ: Mapping[str, str],
    screen: Screen,
) -> Result:
    """Run the rungs in order.

    Raises:
        NegativeAnswer: `env-incomplete` for an env whose build did not end.
        InputError: `unknown-rung`, `smoke-setting`, `evidence-env-foreign`, `evidence-folder-unusable`, and what the
            launch table requires.
    """
    subject = _subject(env, root, environ)
    if to is not None and only:
        raise InputError(
            Problem(code="usage", message="`--to` and `--only` both say which rungs", hint="give one of them")
        )
    tables = tables_of(subject)
    packages = packages_of(subject)
    rungs = climb(with_settings(tables.rungs, settings), packages=packages, to=to, only=only)
    _require_used(settings, rungs)
    require_expectations(rungs)
    if wishes.folder:
        require_free_folder(user_path(wishes.folder), subject=subject, key=wishes.key_path)
    started = datetime.now(timezone.utc)
    began = time.monotonic()
    lacking = () if tables.rungs or only else left_out(packages)
    way = open_climb(subject, remarks=(*tables.remarks, *lacking), environ=environ, screen=screen)
    screen.say(f"logs in {shown(way.folder)}")
    climbed = _climb_all(way, rungs, screen)
    record = record_of(way, rungs, climbed, started=started, seconds=time.monotonic() - began)
    written = _evidence(way, record, climbed, started, wishes) if wishes.folder else None
    return _result(record, climbed, written)


def _require_used(settings: tuple[str, ...], rungs: tuple[Rung, ...]) -> None:
    """Refuse what is set for a rung that is not climbed: it would be left unheard.

    Raises:
        InputError: `smoke-setting`.
    """
    there = {name for rung in rungs for name in (rung.kind, rung.label)}
    unheard = [one for one in settings if one.partition(".")[0] not in there]
    if unheard:
        raise InputError(*(unused_setting(one) for one in unheard))


def _evidence(
    way: Climb, record: dict[str, Any], climbed: tuple[Climbed, ...], started: datetime, wishes: EvidenceWishes
) -> WrittenEvidence:
    assert wishes.folder is not None and way.launch is not None
    material = EvidenceMaterial(
        record=record,
        subject=way.subject,
        report=next((one.examination.report for one in climbed if one.examination), None),
        launch=way.launch,
        environment=way.launched,
        started=started,
        ended=datetime.now(timezone.utc),
        environ=way.environ,
        key=wishes.key_path,
    )
    return write_evidence(user_path(wishes.folder), material, way.screen)


def _subject(env: str, root: str | None, environ: Mapping[str, str]) -> Subject:
    built = open_env(env, env_root(root, environ))
    if built.receipt is None:
        if not is_ours(built):
            return open_foreign(built, lock=None, environ=environ)
        raise NegativeAnswer(
            Problem(
                code="env-incomplete",
                message="the env has no receipt of envsmith: its build did not end",
                where=shown(built.directory),
                hint="build it with `envsmith build`",
            )
        )
    return open_with_work(built)


def _climb_all(way: Climb, rungs: tuple[Rung, ...], screen: Screen) -> tuple[Climbed, ...]:
    """Climb until one does not pass; whatever happens, nothing of it goes on running."""
    climbed: list[Climbed] = []
    try:
        for number, rung in enumerate(rungs, 1):
            screen.step(number, len(rungs), _words(rung))
            one = climb_rung(way, rung, number, tuple(climbed))
            climbed.append(one)
            screen.say(f"  {one.status} after {one.run.seconds:.1f} s")
            if one.status != "passed":
                break
    finally:
        with undisturbed():
            kill_rest(way.folder)
            screen.done()
    return tuple(climbed)


def _words(rung: Rung) -> str:
    ranks = f", {rung.processes} ranks" if rung.processes > 1 else ""
    return f"{rung.label} (at most {rung.timeout_s:.0f} s{ranks})"


def _result(record: dict[str, Any], climbed: tuple[Climbed, ...], written: WrittenEvidence | None) -> Result:
    passed = all(one.status == "passed" for one in climbed)
    text = text_of(record, climbed)
    if written is not None:
        record = {**record, "evidence": written.to_dict()}
        text += f"\nevidence: {shown(written.folder)}, sha256:{written.digest}"
    return Result(command="smoke", data=record, text=text, exit_code=0 if passed else 1)
