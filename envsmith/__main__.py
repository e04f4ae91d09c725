"""The program `envsmith`, and `python -m envsmith`.

Nothing but the standard library is imported before the caller's PYTHONPATH has lost its hold on us: the variable that
breaks an environment must not break the tool that is to say so. Children still get it where it is what is looked at.
"""

import os
import sys


def main() -> None:
    """Run the command line."""
    sys.path[:] = _own_path(sys.path, os.environ.get("PYTHONPATH", ""))
    from envsmith.cli import main as run

    run()


def _own_path(entries: list[str], variable: str) -> list[str]:
    """`sys.path` without what PYTHONPATH put there, but for the folder that envsmith itself comes from."""
    if not variable or sys.flags.ignore_environment:
        return list(entries)
    own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
    items = {os.path.abspath(item) for item in variable.split(os.pathsep)}  # noqa: PTH100
    return [entry for entry in entries if os.path.abspath(entry) == own or os.path.abspath(entry) not in items]  # noqa: PTH100


if __name__ == "__main__":
    main()
