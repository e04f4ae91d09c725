"""Stand-ins for what starts processes elsewhere: the words of `srun`, and the expansion that Kubernetes does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def stand_in_srun(folder: Path) -> Path:
    """Make a folder for PATH whose `srun` notes its options and becomes the task."""
    place = folder / "stand-in"
    place.mkdir(exist_ok=True)
    srun = place / "srun"
    srun.write_text(
        '#!/bin/sh\nwords=\nwhile case $1 in --*) true ;; *) false ;; esac; do words="$words $1"; shift; done\n'
        f'echo "$words" >"{folder}/srun.words"\nexec "$@"\n'
    )
    srun.chmod(0o755)
    return place


def expanded(text: str, values: Mapping[str, str]) -> str:
    """What Kubernetes makes of a command, an argument or a value: `$(NAME)` where it is known, `$$` as `$`.

    Written after k8s.io/kubernetes `third_party/forked/golang/expansion/expand.go`, read 2026-11-30.
    """
    out, at = [], 0
    while at < len(text):
        if text[at] != "$" or at + 1 == len(text):
            out.append(text[at])
            at += 1
        elif text[at + 1] == "$":
            out.append("$")
            at += 2
        elif text[at + 1] == "(" and (end := text.find(")", at)) >= 0:
            name = text[at + 2 : end]
            out.append(values.get(name, f"$({name})"))
            at = end + 1
        else:
            out.append(text[at : at + 2])
            at += 2
    return "".join(out)
