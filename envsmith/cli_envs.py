"""Verbs about recipes, locks and envs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from envsmith.cli_group import linux_only, screen, verb

if TYPE_CHECKING:
    from envsmith.commands.result import Result


@verb("build")
@click.argument("stack", required=False)
@click.option("--env", "envs", multiple=True, metavar="E", help="Only this env; may be given again.")
@click.option("--root", metavar="DIR", help="Where envs are built [default: $ENVSMITH_ROOT or .envsmith/envs].")
@click.option("--from", "bundle", metavar="BUNDLE", help="Take files from this bundle first.")
@click.option("--offline", is_flag=True, help="Never try the network.")
@click.option("--locked", is_flag=True, help="Stop when the lock is missing or older than its recipe.")
@click.option("--source", "sources", multiple=True, metavar="N=PATH", help="Take the git source N from here.")
@click.option("--dry-run", is_flag=True, help="Print the plan and do nothing.")
@click.option("--rebuild", is_flag=True, help="Build anew beside an env that stands, for one that has drifted.")
def build(
    stack: str | None,
    envs: tuple[str, ...],
    root: str | None,
    bundle: str | None,
    offline: bool,
    locked: bool,
    sources: tuple[str, ...],
    dry_run: bool,
    rebuild: bool,
) -> Result:
    """Build and verify the envs of STACK (none: the quickstart).

    \b
    envsmith build                          the quickstart, into .envsmith/envs
    envsmith build a100 --env rl --locked   exactly what the lock says
    envsmith build a100 --dry-run           what that would do
    """
    from envsmith.commands.build import run as command

    linux_only("build")
    return command(
        stack,
        envs=envs,
        root=root,
        offline=offline,
        locked=locked,
        sources=sources,
        dry_run=dry_run,
        rebuild=rebuild,
        bundle=bundle,
        environ=os.environ,
        screen=screen(),
    )


_ONLY = (
    "Only this family; may be given again: files, pyc, sources, conflicts, base, native, interpreter, hooks, imports,"
    " launchers, launch_env, contexts."
)


@verb("verify")
@click.argument("envs", nargs=-1, metavar="[ENV]...")
@click.option("--root", metavar="DIR", help="Where envs were built [default: $ENVSMITH_ROOT or .envsmith/envs].")
@click.option("--quick", is_flag=True, help="Compare sizes, times and modes with the last full pass; read little.")
@click.option("--deep", is_flag=True, help="Read and hash every byte, and recompile bytecode.")
@click.option("--imports", is_flag=True, help="Really import the recipe's list in a launched process.")
@click.option("--contexts", is_flag=True, help="Start the child chain: spawn, fork, torchrun, Ray, vLLM.")
@click.option("--all", "everything", is_flag=True, help="All families and levels.")
@click.option(
    "--only",
    "families",
    multiple=True,
    metavar="FAMILY",
    help=_ONLY,
)
@click.option("--lock", "lock_file", metavar="FILE", help="Compare with this lock too.")
@click.option("--pid", type=int, metavar="PID", help="Inspect a running process of the env and its descendants.")
@click.option("--brief", is_flag=True, help="At most 40 lines of 100 columns, without secrets and long paths.")
@click.option("--html", metavar="FILE", help="Also write one self-contained page.")
@click.option("--fleet", type=click.Choice(["ray"]), help="Verify ENV on every node of a Ray cluster.")
@click.option("--address", metavar="A", help="Where the cluster is [default: $RAY_ADDRESS, or the one that is here].")
@click.option("--collect", metavar="DIR", help="Write this node's answer there; without ENV reduce all of them.")
@click.option("--nodes", metavar="N|NAMES", help="How many nodes must answer, or which, with commas between.")
@click.option("--timeout", "timeout_s", type=float, metavar="S", help="Seconds for a node's answer [default: 300].")
def verify(
    envs: tuple[str, ...],
    root: str | None,
    quick: bool,
    deep: bool,
    imports: bool,
    contexts: bool,
    everything: bool,
    families: tuple[str, ...],
    lock_file: str | None,
    pid: int | None,
    brief: bool,
    html: str | None,
    fleet: str | None,
    address: str | None,
    collect: str | None,
    nodes: str | None,
    timeout_s: float | None,
) -> Result:
    """Compare the disk and what processes load with the lock; nothing is written into the env.

    ENV is `stack/env`, or the path of any environment, whoever made it.

    \b
    envsmith verify quickstart/worker          the default: no package code runs
    envsmith verify quickstart/worker --all    every byte, real imports, the child chain
    envsmith verify /opt/vendor/venv           an env that another tool made
    envsmith verify a100/rl --pid 4711         what the process that failed really loaded
    envsmith verify                            every env under the root
    envsmith verify a100/rl --fleet ray        every node of a running cluster
    """
    from envsmith.commands.verify import Output
    from envsmith.commands.verify import run as command

    linux_only("verify")
    levels = {"--deep": deep, "--imports": imports, "--contexts": contexts, "--all": everything}
    if any(value is not None for value in (fleet, address, collect, nodes, timeout_s)):
        from envsmith.commands.fleet import Wishes
        from envsmith.commands.fleet import run as fleet_command
        from envsmith.commands.verify import depth_of
        from envsmith.tools.procfs import caller_environ

        unheard = {"--lock": lock_file is not None, "--pid": pid is not None, "--brief": brief, "--html": bool(html)}
        wishes = Wishes(
            fleet=fleet,
            address=address,
            collect=collect,
            nodes=nodes,
            timeout_s=timeout_s,
            root=root,
            unheard=tuple(name for name, given in unheard.items() if given),
        )
        depth = depth_of(quick=quick, levels=levels, families=families)
        return fleet_command(envs, depth, wishes, environ=caller_environ(os.environ), screen=screen())
    return command(
        envs,
        root=root,
        quick=quick,
        deep=deep,
        imports=imports,
        contexts=contexts,
        everything=everything,
        families=families,
        lock_file=lock_file,
        pid=pid,
        output=Output(brief=brief, html=html),
        environ=os.environ,
        screen=screen(),
    )


@verb("run")
@click.argument("env", metavar="ENV")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.option("--root", metavar="DIR", help="Where envs were built [default: $ENVSMITH_ROOT or .envsmith/envs].")
@click.option("--print", "print_only", is_flag=True, help="Print the environment as lines for a shell instead.")
@click.option(
    "--as",
    "form",
    type=click.Choice(["slurm", "k8s", "modulefile"]),
    help="Print a batch script, a Kubernetes Job or a modulefile instead.",
)
@click.option("--bundle", metavar="PATH", help="With slurm and k8s: install this first; PATH is as the nodes see it.")
@click.option("--at", metavar="DIR", help="With --bundle: the root of envs on the nodes [default: the root here].")
@click.option("--any-raylet", is_flag=True, help="Start it even where a running Ray lives in another environment.")
def run(
    env: str,
    command: tuple[str, ...],
    root: str | None,
    print_only: bool,
    form: str | None,
    bundle: str | None,
    at: str | None,
    any_raylet: bool,
) -> Result:
    """Run a command in exactly the launch environment of ENV.

    \b
    envsmith run quickstart/worker -- python train.py
    envsmith run quickstart/worker --print > launch.sh
    envsmith run a100/rl --as slurm --bundle /shared/a100.tar -- python train.py > job.sh
    envsmith run a100/rl --as modulefile > modulefiles/a100/rl
    """
    from envsmith.commands.run import Wishes
    from envsmith.commands.run import run as command_run
    from envsmith.tools.procfs import caller_environ

    linux_only("run")
    wishes = Wishes(root=root, print_only=print_only, form=form, bundle=bundle, at=at, any_raylet=any_raylet)
    return command_run(env, command, wishes, environ=caller_environ(os.environ), screen=screen())


@verb("lock")
@click.argument("stack")
@click.option("--env", "envs", multiple=True, metavar="E", help="Only this env; may be given again.")
@click.option("--upgrade", is_flag=True, help="Forget the versions of the present lock.")
@click.option("--upgrade-package", "packages", multiple=True, metavar="P", help="Forget the version of one package.")
@click.option("--source", "sources", multiple=True, metavar="N=PATH", help="Take the git source N from here.")
@click.option("--suggest-accept", is_flag=True, help="Print paste-ready [[accept]] blocks for every open conflict.")
@click.option("--check", "check_only", is_flag=True, help="Only say whether recipe and lock agree; no network.")
@click.option("--offline", is_flag=True, help="Never try the network.")
def lock(
    stack: str,
    envs: tuple[str, ...],
    upgrade: bool,
    packages: tuple[str, ...],
    sources: tuple[str, ...],
    suggest_accept: bool,
    check_only: bool,
    offline: bool,
) -> Result:
    """Resolve STACK for its target and write one lock an env beside the recipe.

    \b
    envsmith lock a100                              keeps versions that still fit
    envsmith lock a100 --upgrade-package ray        moves one package
    envsmith lock a100 --check                      for CI
    """
    from envsmith.commands.lock import run as command

    return command(
        stack,
        envs=envs,
        upgrade=upgrade,
        packages=packages,
        sources=sources,
        suggest_accept=suggest_accept,
        check_only=check_only,
        offline=offline,
        environ=os.environ,
        screen=screen(),
    )


@verb("work")
@click.argument("env", metavar="ENV")
@click.argument("source", metavar="SOURCE")
@click.option("-o", "--output", "out", metavar="DIR", help="Where the copy is made; a new or empty folder.")
@click.option("--root", metavar="DIR", help="Where envs were built [default: $ENVSMITH_ROOT or .envsmith/envs].")
@click.option("--forget", is_flag=True, help="Take the copy out of the env; its files stay.")
def work(env: str, source: str, out: str | None, root: str | None, forget: bool) -> Result:
    """Make a writable git copy of a source that `run` puts before the env's own.

    \b
    envsmith work a100/rl verl -o ../my-verl
    envsmith work a100/rl verl --forget
    """
    from envsmith.commands.work import run as command

    linux_only("work")
    return command(env, source, out=out, root=root, forget=forget, environ=os.environ)


@verb("check")
@click.argument("stack")
@click.option("--env", "envs", multiple=True, metavar="E", help="Only this env; may be given again.")
@click.option("--config", metavar="FILE", help="Judge this job: a LLaMA-Factory YAML file, or Hydra overrides of VERL.")
@click.option("--host", metavar="local|SNAPSHOT", help="Judge this machine too, or that of a snapshot.")
@click.option("--model", metavar="PATH", help="Size this model: its folder, or its config.json alone.")
def check(stack: str, envs: tuple[str, ...], config: str | None, host: str | None, model: str | None) -> Result:
    """Check recipe, patches, lock freshness and rules of STACK, and if a machine can run it; no network, no writes.

    \b
    envsmith check a100
    envsmith check a100 --env sft --config train.yaml    a job, before it is started
    envsmith check a100 --host local                     can this machine run it?
    envsmith check a100 --host snapshots/node7.toml      can that one?
    envsmith check a100 --env rl --model models/qwen3    does its key-value cache fit?
    """
    from envsmith.commands.check import run as command

    return command(stack, envs=envs, config=config, environ=os.environ, host=host, model=model)


@verb("snapshot")
@click.option("--python", metavar="EXE", help="Capture what this interpreter holds too, file by file.")
@click.option("--query", metavar="COMMAND", help="A vendor's command that lists its accelerators, as CSV or JSON.")
@click.option("--path", "paths", multiple=True, metavar="DIR", help="Try this folder too; may be given again.")
@click.option("--no-run", is_flag=True, help="Compute nothing on the device.")
@click.option("--no-files", is_flag=True, help="Read the versions of packages only, not their files.")
@click.option("-o", "--output", "out", metavar="FILE", help="Write here [default: stdout].")
def snapshot(
    python: str | None, query: str | None, paths: tuple[str, ...], no_run: bool, no_files: bool, out: str | None
) -> Result:
    """Capture this host, and the packages of one interpreter, so that others can lock and check for it.

    \b
    envsmith snapshot                                            to look at
    envsmith snapshot --python /opt/vendor/bin/python -o snapshots/a100.toml
    ENVSMITH_HOST_DRIVER=470.57.02 envsmith snapshot             for planning
    """
    from envsmith.commands.snapshot import run_verb as command

    linux_only("snapshot")
    return command(
        python,
        query=query,
        paths=paths,
        no_run=no_run,
        no_files=no_files,
        out=out,
        environ=os.environ,
        screen=screen(),
    )


@verb("diff")
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
def diff(a: str, b: str) -> Result:
    """Say in what two locks or bundles differ; a lock is a file, `stack/env`, or the path of a built env.

    \b
    envsmith diff a100/rl gpu/rl
    envsmith diff a100-old.tar a100-new.tar
    envsmith diff old.toml stacks/pylock.a100-rl.toml --json
    """
    from envsmith.commands.diff import run as command

    return command(a, b)


@verb("schema")
def schema() -> Result:
    """Print the JSON Schema of a recipe, for editors."""
    from envsmith.commands.schema import run as command

    return command()
