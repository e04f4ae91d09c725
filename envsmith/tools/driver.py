"""The libcuda files in folders, by what their names say."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable


def libcuda_versions(folders: Iterable[str]) -> dict[str, str]:
    """The version of the libcuda.so.1 in each folder that has one: it is a link to `libcuda.so.580.95.05`."""
    found = {}
    for folder in dict.fromkeys(folders):
        name = os.path.basename(os.path.realpath(f"{folder}/libcuda.so.1"))  # noqa: PTH119
        match = re.fullmatch(r"libcuda\.so\.(\d+\.\d+(?:\.\d+)*)", name)
        if match:
            found[folder] = match[1]
    return found
