"""A launch environment as something that others start: a Slurm batch script, a Kubernetes Job.

Both make the environment where the process runs, with the lines of `env.sh`: which driver a node has, who runs there
and what its image says is not known when they are written.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from envsmith.launch import LaunchEnvironment, fill


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What is to run, and where its env stands or comes from."""

    stack: str
    env: str
    launch: LaunchEnvironment
    root: str
    """The folder that envs are built under, as the nodes see it."""
    bundle: str | None
    """A bundle to install from first, as the nodes see it: a folder, or a tar file."""
    digest: str | None
    """Of that bundle, `sha256:…`; None where it is not known."""
    command: tuple[str, ...]

    @property
    def slug(self) -> str:
        """A name that Slurm and Kubernetes take."""
        return f"{self.stack}-{self.env}"

    @property
    def current(self) -> str:
        """The link to the env that stands now."""
        return f"{self.root}/{self.slug}/current"

    @property
    def bundle_folder(self) -> str:
        """What is mounted to have the bundle."""
        return (self.bundle or "").rpartition("/")[0]

    @property
    def lines(self) -> str:
        """The launch environment for a shell: that of the env the bundle brings, or the one known here."""
        return f". {shlex.quote(f'{self.current}/env.sh')}\n" if self.bundle else self.launch.shell()


def slurm(job: Job) -> str:
    """Render a script for `sbatch`; without a command it runs the words that follow it on sbatch's command line."""
    words = shlex.join(job.command) if job.command else '"$@"'
    parts = [
        fill(_SLURM_HEAD.strip(), {"NAME": job.slug, "ENV": f"{job.stack}/{job.env}"}),
        "set -eu",
        *([] if job.command else [_SLURM_WORDS.strip().replace("@NAME@", job.slug)]),
        *([_SLURM_INSTALL + _install(job)] if job.bundle else []),
        _SLURM_TASK.strip(),
        f"launch={shlex.quote(job.lines)}",
        f"exec srun --export=ALL --output={job.slug}-%j-%N-%t.out \\\n"
        f'    sh -c "$launch"\'exec "$@"\' {job.slug} {words}',
    ]
    return "\n\n".join(parts) + "\n"


def kubernetes(job: Job) -> str:
    """Render a Job: an initContainer installs the bundle onto a volume, the container runs the command in the env."""
    command = ["sh", "-c", f'{job.lines}exec "$@"', job.slug]
    filled = {
        "NAME": job.slug,
        "ENV": f"{job.stack}/{job.env}",
        "ROOT": _yaml(job.root),
        "BUNDLE": _yaml(job.bundle_folder),
        "INSTALL": textwrap.indent(_literal(_escaped(f"set -eu\n{_install(job)}")), " " * 14).lstrip(),
        "COMMAND": _flow(command),
        "WORDS": _flow(job.command or ("python", "-V")),
        "VARIABLES": _variables(job),
    }
    return fill(_KUBERNETES.lstrip("\n"), filled)


def not_text(job: Job) -> tuple[str, ...]:
    """Variables and words that YAML cannot hold, because they are not UTF-8."""
    values = [*job.launch.set, *((word, word) for word in job.command), ("--bundle", job.bundle or "")]
    return tuple(name for name, value in values if any("\ud800" <= one <= "\udfff" for one in f"{name}{value}"))


def _install(job: Job) -> str:
    """Install once, whoever else starts at the same time; what stands already is left as it is."""
    options = ["--root", job.root, "--env", job.env, *(["--expect", job.digest] if job.digest else [])]
    note = f"{job.root}/{job.slug}/bundle.json"
    there = f"[ -e {shlex.quote(f'{job.current}/envsmith.json')} ]"
    same = f"grep -qF {shlex.quote(job.digest or '')} {shlex.quote(note)}"
    filled = {
        "DIGEST": "" if job.digest else _NO_DIGEST,
        "ROOT": shlex.quote(job.root),
        "LOCK": shlex.quote(f"{job.root}/.install.lock"),
        "BUNDLE": shlex.quote(job.bundle or ""),
        "STANDS": f"    if {there} && {same}; then exit 0; fi\n" if job.digest else "",
        "OPTIONS": shlex.join(options),
    }
    return fill(_INSTALL.strip(), filled)


def _variables(job: Job) -> str:
    """What the recipe sets to the same value everywhere, for whoever looks at the pod or starts a shell in it."""
    lines = []
    for name, value in job.launch.set:
        if len(job.launch.around_scratch(value)) > 1:
            continue
        there = value.replace(dict(job.launch.set)["VIRTUAL_ENV"], job.current)
        lines += [f"            - name: {_yaml(name)}", f"              value: {_yaml(_escaped(there))}"]
    return "\n".join(lines)


def _flow(words: Sequence[str]) -> str:
    return "[" + ", ".join(_yaml(_escaped(word)) for word in words) + "]"


def _escaped(text: str) -> str:
    """Keep Kubernetes from expanding `$(NAME)` and from reading `$$` as `$`, in commands, arguments and variables.

    Read in k8s.io/kubernetes `third_party/forked/golang/expansion/expand.go`, 2026-11-30.
    """
    return re.sub(r"\$\$+|\$(?=\()", lambda found: found[0] * 2, text)


def _literal(text: str) -> str:
    """A block of lines in YAML; as a quoted text where a block could not hold it."""
    plain = all(one.isprintable() or one == "\n" for one in text) and not re.search(r" \n|\A\s", text)
    return "|\n" + text if plain else _yaml(text)


def _yaml(text: str) -> str:
    """A double-quoted text of YAML."""
    kept = "".join(_SHORT.get(one) or (one if one.isprintable() else _code(one)) for one in text)
    return f'"{kept}"'


def _code(one: str) -> str:
    return (
        f"\\x{ord(one):02x}" if ord(one) < 256 else f"\\u{ord(one):04x}" if ord(one) < 65536 else f"\\U{ord(one):08x}"
    )


_SHORT: Final = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t"}

_NO_DIGEST: Final = """\
# Its digest was not known here: add --expect sha256:…, which `envsmith inspect BUNDLE` says, so that no other bundle
# can pose as it.
"""

#: `flock` keeps the loser from unpacking the bundle too; `envsmith install` itself waits for another of the same env.
_INSTALL: Final = r"""
@DIGEST@bundle=@BUNDLE@
mkdir -p @ROOT@
(
    flock 9
@STANDS@    if [ -d "$bundle" ]; then
        sh "$bundle/install.sh" @OPTIONS@
    else
        unpacked=$(mktemp -d)
        trap 'rm -rf "$unpacked"' EXIT
        tar -xf "$bundle" -C "$unpacked"
        sh "$unpacked/install.sh" @OPTIONS@
    fi
) 9>@LOCK@
"""

_SLURM_HEAD: Final = """
#!/bin/sh
#SBATCH --job-name=@NAME@
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --output=@NAME@-%j.out
# Written by `envsmith run @ENV@ --as slurm`. Add what your site asks for: partition, account, time, GPUs.
"""

#: `exec "$@"` of no words does nothing and is a success.
_SLURM_WORDS: Final = r"""
if [ "$#" -eq 0 ]; then
    printf '%s\n' "@NAME@: there is no command to run: put it behind the script, as in: sbatch job.sh python -V" >&2
    exit 2
fi
"""

_SLURM_INSTALL: Final = """\
# Once, on the first node, onto a folder that all nodes share; another job of the same env waits at the lock.
"""

#: srun splices the output of its tasks on one stream: 3 of 3 runs broke lines of a few KB (facts/verify.md section 6).
_SLURM_TASK: Final = """
# The environment is made in each task: its node may have another driver, its scratch folder is local, and what the
# lines unset must not come back. --export=ALL hands on what the batch shell has, and is said because `sbatch
# --export=NONE` would leave the tasks without it. One file a task: srun splices lines of tasks that share one.
"""

_KUBERNETES: Final = """
# Written by `envsmith run @ENV@ --as k8s`. Put your image and the claims of your volumes in. The image needs glibc, and
# git where the stack has sources; the volume `envs` must be mounted at the same path wherever its envs are used, and be
# shared where several pods use it at a time.
apiVersion: batch/v1
kind: Job
metadata:
  name: @NAME@
spec:
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      initContainers:
        # Installs once: other pods on the volume wait at the lock, and find the env in place.
        - name: install
          image: IMAGE
          command: ["sh", "-c"]
          args:
            - @INSTALL@
          volumeMounts:
            - name: envs
              mountPath: @ROOT@
            - name: bundle
              mountPath: @BUNDLE@
              readOnly: true
      containers:
        - name: @NAME@
          image: IMAGE
          # `env` can neither unset what the image sets, nor put anything before the image's own PATH, nor look which
          # driver the node has: the lines of env.sh do, and the command takes the place of the shell.
          command: @COMMAND@
          args: @WORDS@
          env:
@VARIABLES@
          volumeMounts:
            - name: envs
              mountPath: @ROOT@
              readOnly: true
      volumes:
        - name: envs
          persistentVolumeClaim:
            claimName: ENVS
        - name: bundle
          persistentVolumeClaim:
            claimName: BUNDLE
            readOnly: true
"""
