"""The command line: parse words, run one verb, render its result once, exit with its code.

Verbs are imported when they run, so that `--version` and `--help` cost little more than the interpreter.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from envsmith import __version__
from envsmith.errors import EnvsmithError, HostError, InputError, Problem

if TYPE_CHECKING:
    from envsmith.commands.result import Result

EVERYDAY = ("build", "verify", "run")

Function = TypeVar("Function", bound=Callable[..., Any])


class VerbGroup(click.Group):
    """Lists everyday verbs first and says which verb was meant."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write two sections: everyday verbs in the order of use, then the rest."""
        shown = {name: command for name, command in self.commands.items() if not command.hidden}
        rest = sorted(name for name in shown if name not in EVERYDAY)
        everyday = [name for name in EVERYDAY if name in shown]
        for title, names in (("Everyday", everyday), ("More" if everyday else "Commands", rest)):
            if names:
                with formatter.section(title):
                    formatter.write_dl([(name, shown[name].get_short_help_str(90)) for name in names])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Suggest the nearest verb for an unknown one."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib

            close = difflib.get_close_matches(args[0], list(self.commands), n=1)
            hint = f" Did you mean `{close[0]}`?" if close else ""
            raise click.UsageError(f"there is no command `{args[0]}`.{hint}", ctx) from error


def shared_options(function: Function) -> Function:
    """Options that every verb takes; they may stand before or after it."""
    options = (
        click.option("--json", "as_json", is_flag=True, help="Print one JSON envelope on stdout, also on failure."),
        click.option("-q", "--quiet", count=True, help="Say less on stderr."),
        click.option("-v", "--verbose", count=True, help="Say more on stderr; -vv shows every command."),
        click.option("--color", type=click.Choice(["auto", "always", "never"]), help="When to colour messages."),
    )
    for option in reversed(options):
        function = option(function)
    return function


def verb(name: str, parent: click.Group | None = None, **settings: Any) -> Callable[[Function], click.Command]:
    """Register a verb: the function returns a Result and never prints. `parent` is the group of a two-word verb."""

    def register(function: Function) -> click.Command:
        def call(as_json: bool, quiet: int, verbose: int, color: str | None, **arguments: Any) -> None:
            root = click.get_current_context().find_root()
            shared = root.ensure_object(dict)
            _settle(shared, as_json=as_json, quiet=quiet, verbose=verbose, color=color)
            shared["command"] = name if parent is None else f"{parent.name} {name}"
            shared["result"] = function(**arguments)

        call.__doc__ = function.__doc__
        # The parameters that click's decorators have hung on the function belong to the wrapper.
        call.__click_params__ = list(getattr(function, "__click_params__", []))  # type: ignore[attr-defined]
        return (parent or group).command(name, **settings)(shared_options(call))

    return register


@click.group(
    cls=VerbGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="STACK is a recipe's name or path; ENV is `stack/env`, or a path that starts with / . or ~",
)
@click.version_option(__version__, prog_name="envsmith", message="%(prog)s %(version)s")
@shared_options
@click.pass_context
def group(ctx: click.Context, as_json: bool, quiet: int, verbose: int, color: str | None) -> None:
    """Build training environments that can be proved right.

    The lock, the disk and what every process loads are one thing; where they are not, `envsmith verify` says
    which file, why, and what to do.
    """
    _settle(ctx.ensure_object(dict), as_json=as_json, quiet=quiet, verbose=verbose, color=color)


def _settle(shared: dict[str, Any], **said: Any) -> None:
    for key, value in said.items():
        if value:
            shared[key] = value


@verb("build")
@click.argument("stack", required=False)
@click.option("--env", "envs", multiple=True, metavar="E", help="Only this env; may be given again.")
@click.option("--root", metavar="DIR", help="Where envs are built [default: $ENVSMITH_ROOT or .envsmith/envs].")
@click.option("--offline", is_flag=True, help="Never try the network.")
@click.option("--locked", is_flag=True, help="Stop when the lock is missing or older than its recipe.")
@click.option("--source", "sources", multiple=True, metavar="N=PATH", help="Take the git source N from here.")
@click.option("--dry-run", is_flag=True, help="Print the plan and do nothing.")
@click.option("--rebuild", is_flag=True, help="Build anew beside an env that stands, for one that has drifted.")
def build(
    stack: str | None,
    envs: tuple[str, ...],
    root: str | None,
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

    _linux_only("build")
    return command(
        stack,
        envs=envs,
        root=root,
        offline=offline,
        locked=locked,
        sources=sources,
        dry_run=dry_run,
        rebuild=rebuild,
        environ=os.environ,
        screen=_screen(),
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
) -> Result:
    """Compare the disk and what processes load with the lock; nothing is written into the env.

    ENV is `stack/env`, or the path of any environment, whoever made it.

    \b
    envsmith verify quickstart/worker          the default: no package code runs
    envsmith verify quickstart/worker --all    every byte, real imports, the child chain
    envsmith verify /opt/vendor/venv           an env that another tool made
    envsmith verify a100/rl --pid 4711         what the process that failed really loaded
    envsmith verify                            every env under the root
    """
    from envsmith.commands.verify import Output
    from envsmith.commands.verify import run as command

    _linux_only("verify")
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
        screen=_screen(),
    )


@verb("run")
@click.argument("env", metavar="ENV")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.option("--root", metavar="DIR", help="Where envs were built [default: $ENVSMITH_ROOT or .envsmith/envs].")
@click.option("--print", "print_only", is_flag=True, help="Print the environment as lines for a shell instead.")
def run(env: str, command: tuple[str, ...], root: str | None, print_only: bool) -> Result:
    """Run a command in exactly the launch environment of ENV.

    \b
    envsmith run quickstart/worker -- python train.py
    envsmith run quickstart/worker --print -- > launch.sh
    """
    from envsmith.commands.run import run as command_run

    _linux_only("run")
    return command_run(env, command, root=root, print_only=print_only, environ=os.environ, screen=_screen())


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
        screen=_screen(),
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

    _linux_only("work")
    return command(env, source, out=out, root=root, forget=forget, environ=os.environ)


@verb("check")
@click.argument("stack")
@click.option("--env", "envs", multiple=True, metavar="E", help="Only this env; may be given again.")
@click.option("--config", metavar="FILE", help="Judge this job: a LLaMA-Factory YAML file, or Hydra overrides of VERL.")
def check(stack: str, envs: tuple[str, ...], config: str | None) -> Result:
    """Check recipe, patches, lock freshness and rules of STACK; no network, no writes.

    \b
    envsmith check a100
    envsmith check a100 --env sft --config train.yaml    a job, before it is started
    """
    from envsmith.commands.check import run as command

    return command(stack, envs=envs, config=config, environ=os.environ)


@group.group("patch", cls=VerbGroup, invoke_without_command=True, no_args_is_help=False)
@shared_options
@click.pass_context
def patch(ctx: click.Context, as_json: bool, quiet: int, verbose: int, color: str | None) -> None:
    """Make, move and check the patches of series."""
    _settle(ctx.find_root().ensure_object(dict), as_json=as_json, quiet=quiet, verbose=verbose, color=color)
    if ctx.invoked_subcommand is None:
        raise click.UsageError(f"say which: {', '.join(patch.commands)}", ctx)


@verb("new", parent=patch)
@click.argument("directory", metavar="DIR")
@click.option(
    "-o", "--output", "out", required=True, metavar="FILE", help="patches/PROJECT-BASE/NNNN-verb-object.patch"
)
@click.option("--series", required=True, metavar="FILE", help="The series beside it that gets the entry.")
@click.option("--description", multiple=True, metavar="TEXT", help="What it does; again for symptom and cause.")
@click.option("--seen-as", default="", metavar="TEXT", help="The message that one would search for.")
@click.option("--origin", default="", metavar="TEXT", help="Who wrote it, or where it was taken from.")
@click.option("--forwarded", default="no", metavar="TEXT", help="Where it was sent [default: no].")
@click.option("--bug", default="", metavar="URL", help="An address that describes the fault.")
@click.option("--layer", metavar="LAYER", help="device, fix or research; for a series that is new.")
@click.option("--base", metavar="BASE", help="Full commit or name==version; work copies of `envsmith work` know it.")
@click.option("--since", metavar="COMMIT", help="Where the change begins [default: the last patch, the copy, HEAD].")
@click.option("--context", type=click.IntRange(1, 100), metavar="N", help="Lines around a change [default: 3].")
def patch_new(
    directory: str,
    out: str,
    series: str,
    description: tuple[str, ...],
    seen_as: str,
    origin: str,
    forwarded: str,
    bug: str,
    layer: str | None,
    base: str | None,
    since: str | None,
    context: int | None,
) -> Result:
    """Turn the edits of the work copy DIR into a patch, and list it in a series.

    \b
    envsmith patch new ../my-verl -o patches/verl-1bf9d2d/0003-log-rewards.patch --series mine.series \\
        --layer research --description "log rewards" --seen-as "no rewards in the log" --origin "me"
    """
    from envsmith.commands.patch_new import Words
    from envsmith.commands.patch_new import run as command

    words = Words(description="\n".join(description), seen_as=seen_as, origin=origin, forwarded=forwarded, bug=bug)
    return command(
        directory,
        out=out,
        series=series,
        layer=layer,
        base=base,
        since=since,
        context=context,
        words=words,
        environ=os.environ,
    )


@verb("refresh", parent=patch)
@click.argument("series", metavar="SERIES")
@click.option("--onto", required=True, metavar="BASE", help="The new tree: a full commit, or name==version.")
@click.option("--source", required=True, metavar="PATH", help="The repository that has it, or the sdist.")
@click.option("-o", "--output", "out", metavar="DIR", help="The new folder [default: PROJECT-BASE beside the old one].")
def patch_refresh(series: str, onto: str, source: str, out: str | None) -> Result:
    """Try a series on another tree and say which hunk does not apply; write it anew when all do.

    \b
    envsmith patch refresh patches/verl-1bf9d2d/a100.series --onto COMMIT --source ../verl
    """
    from envsmith.commands.patch_refresh import run as command

    return command(series, onto=onto, source=source, out=out, environ=os.environ)


@verb("check", parent=patch)
@click.argument("series", nargs=-1, metavar="[SERIES]...")
@click.option("--source", "sources", multiple=True, metavar="N=PATH", help="Apply series below N-… to this source.")
def patch_check(series: tuple[str, ...], sources: tuple[str, ...]) -> Result:
    """Check every series and patch below patches/: headers, order, orphans, duplicates, and that they apply.

    \b
    envsmith patch check
    envsmith patch check --source verl=../verl
    """
    from envsmith.commands.patch_check import run as command

    return command(series, sources=sources, environ=os.environ)


@verb("diff")
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
def diff(a: str, b: str) -> Result:
    """Say in what two locks differ; each is a lock file, `stack/env`, or the path of a built env.

    \b
    envsmith diff a100/rl gpu/rl
    envsmith diff old.toml stacks/pylock.a100-rl.toml --json
    """
    from envsmith.commands.diff import run as command

    return command(a, b)


@verb("schema")
def schema() -> Result:
    """Print the JSON Schema of a recipe, for editors."""
    from envsmith.commands.schema import run as command

    return command()


def main(argv: list[str] | None = None) -> None:
    """Run the command line and exit; nothing but a result reaches stdout, and no traceback a user."""
    words = sys.argv[1:] if argv is None else argv
    shared: dict[str, Any] = {"as_json": "--json" in _before_dashes(words)}
    for name in ("SIGTERM", "SIGHUP"):
        signal.signal(getattr(signal, name), _interrupt)
    sys.exit(_print_safely(_run(words, shared), shared))


def _interrupt(number: int, frame: object) -> None:
    """End as on ^C: what is under way is given up in order, and children are ended with us."""
    raise KeyboardInterrupt


def _print_safely(result: Result | int, shared: dict[str, Any]) -> int:
    """Render a result; a reader that has gone is no error of ours, a full disk behind stdout is said."""
    if isinstance(result, int):
        return result
    try:
        return _render(result, shared)
    except BrokenPipeError:
        _drop_stdout()
        return result.exit_code
    except OSError as error:
        _drop_stdout()
        problem = Problem(code="output-failed", message=f"the result could not be written: {error.strerror}")
        click.echo(problem.text(), err=True)
        return 4


def _drop_stdout() -> None:
    """Point stdout at nothing: Python would complain again when it closes the stream."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _before_dashes(words: list[str]) -> list[str]:
    return words[: words.index("--")] if "--" in words else words


def _run(words: list[str], shared: dict[str, Any]) -> Result | int:
    """Run one verb; an exit code alone means that there is nothing to render, as after `--help`."""
    from envsmith.commands.result import Result

    try:
        _require_folder()
        done = group.main(args=words or ["--help"], prog_name="envsmith", standalone_mode=False, obj=shared)
        result = shared.get("result")
        return result if isinstance(result, Result) else done if isinstance(done, int) else 0
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        hint = "put `--` before the command: `envsmith run ENV -- COMMAND`" if _lacks_dashes(error, words) else None
        where = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "envsmith"
        problem = Problem(
            code="usage",
            message=error.format_message().rstrip("."),
            hint=hint or f"`{where} --help` shows how it is used",
        )
        return Result(command=_command(shared, words), exit_code=2, errors=(problem,))
    except EnvsmithError as error:
        data = {"log": error.log} if error.log else {}
        return Result(command=_command(shared, words), data=data, exit_code=error.exit_code, errors=error.problems)
    except (KeyboardInterrupt, click.Abort):
        problem = Problem(code="interrupted", message="interrupted", hint="run it again: what is done is kept")
        return Result(command=_command(shared, words), exit_code=130, errors=(problem,))
    except Exception as error:
        return _bug(error, _command(shared, words))


def _require_folder() -> None:
    try:
        Path.cwd()
    except FileNotFoundError as error:
        problem = Problem(
            code="folder-gone", message="the current folder does not exist any more", hint="change to another folder"
        )
        raise InputError(problem) from error


def _lacks_dashes(error: click.ClickException, words: list[str]) -> bool:
    return isinstance(error, click.NoSuchOption) and "run" in words and "--" not in words


def _command(shared: dict[str, Any], words: list[str]) -> str:
    return str(shared.get("command") or next((word for word in words if word in group.commands), ""))


def _render(result: Result, shared: dict[str, Any]) -> int:
    if shared.get("as_json"):
        _print(json.dumps(result.envelope(), indent=2, sort_keys=True))
        return result.exit_code
    if result.text:
        _print(result.text.rstrip("\n"))
    for problem in result.errors:
        click.echo(_coloured(problem, shared), err=True)
    if result.errors and result.data.get("log"):
        click.echo(f"log: {result.data['log']}", err=True)
    return result.exit_code


def _print(text: str) -> None:
    """Write one result on stdout, whatever its encoding; names of files need not be text."""
    stream = sys.stdout
    if stream is None:  # closed by whoever started us
        return
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
    stream.flush()


def _coloured(problem: Problem, shared: dict[str, Any]) -> str:
    text = problem.text()
    if not use_color(shared.get("color")):
        return text
    head, _, rest = text.partition(": ")
    return (
        click.style(head, fg="red", bold=True) + ": " + rest.replace("\nhint:", click.style("\nhint", fg="cyan") + ":")
    )


def use_color(choice: str | None) -> bool:
    """Say whether messages on stderr are coloured: the option, then NO_COLOR, then whether a person looks."""
    if choice in ("always", "never"):
        return choice == "always"
    return "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb" and sys.stderr.isatty()


def _screen() -> Any:
    """What long work draws on, for the verb that runs now."""
    from envsmith.commands.screen import Screen

    shared = click.get_current_context().find_root().ensure_object(dict)
    return Screen(
        quiet=bool(shared.get("quiet")),
        verbose=int(shared.get("verbose", 0)),
        color=use_color(shared.get("color")),
    )


def _linux_only(command: str) -> None:
    if not sys.platform.startswith("linux"):
        raise HostError(
            Problem(
                code="platform-unsupported",
                message=f"`envsmith {command}` works on Linux (x86_64, aarch64), this is {sys.platform}",
                hint="lock, check and schema work here; build on the target, or on any Linux machine",
            )
        )


def _store_logs() -> Path:
    from envsmith.tools.store import open_store

    try:
        return open_store(os.environ).home / "logs"
    except EnvsmithError:
        return Path("/nonexistent")


def _bug(error: Exception, command: str) -> Result:
    """Keep the traceback in a file, where whoever reports the bug finds it."""
    import tempfile
    import traceback

    from envsmith.commands.result import Result

    text = f"envsmith {__version__} {sys.version}\n{' '.join(sys.argv)}\n\n{traceback.format_exc()}"
    log = "(could not be written)"
    for folder in (_store_logs(), Path(tempfile.gettempdir())):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            handle, log = tempfile.mkstemp(prefix="bug-", suffix=".log", dir=folder, text=True)
            with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as stream:
                stream.write(text)
            break
        except OSError:
            continue
    problem = Problem(
        code="bug",
        message=f"envsmith met a case it does not know: {type(error).__name__}: {error}",
        where=log,
        hint="please report it with that log",
    )
    return Result(command=command, exit_code=70, errors=(problem,))
