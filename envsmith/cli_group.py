"""What every verb of the command line shares: the group, the options, progress, and the refusal of other systems.

Verbs are imported when they run, so that `--version` and `--help` cost little more than the interpreter.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from envsmith import __version__
from envsmith.errors import HostError, Problem

if TYPE_CHECKING:
    pass

EVERYDAY = ("build", "verify", "run", "bundle", "install", "diagnose")

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
            settle(shared, as_json=as_json, quiet=quiet, verbose=verbose, color=color)
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
    settle(ctx.ensure_object(dict), as_json=as_json, quiet=quiet, verbose=verbose, color=color)


def settle(shared: dict[str, Any], **said: Any) -> None:
    """Remember the shared options that were given, before or after the verb."""
    for key, value in said.items():
        if value:
            shared[key] = value


def use_color(choice: str | None) -> bool:
    """Say whether messages on stderr are coloured: the option, then NO_COLOR, then whether a person looks."""
    if choice in ("always", "never"):
        return choice == "always"
    return "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb" and sys.stderr.isatty()


def screen() -> Any:
    """What long work draws on, for the verb that runs now."""
    from envsmith.commands.screen import Screen

    shared = click.get_current_context().find_root().ensure_object(dict)
    return Screen(
        quiet=bool(shared.get("quiet")),
        verbose=int(shared.get("verbose", 0)),
        color=use_color(shared.get("color")),
    )


def linux_only(command: str) -> None:
    """Refuse other systems.

    Raises:
        HostError: `platform-unsupported`.
    """
    if not sys.platform.startswith("linux"):
        raise HostError(
            Problem(
                code="platform-unsupported",
                message=f"`envsmith {command}` works on Linux (x86_64, aarch64), this is {sys.platform}",
                hint="lock, check and schema work here; build on the target, or on any Linux machine",
            )
        )
