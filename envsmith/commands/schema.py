"""`envsmith schema`: the JSON Schema of a recipe."""

from __future__ import annotations

import json

from envsmith.commands.result import Result
from envsmith.recipe import schema


def run() -> Result:
    """Print the schema, so that an editor can complete and check recipes."""
    made = schema()
    return Result(command="schema", data=made, text=json.dumps(made, indent=2, sort_keys=True))
