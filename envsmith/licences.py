"""What a wheel's METADATA says of its licence, as its author wrote it: a reading, not a judgement.

Nothing is guessed. `BSD` names no licence text and `Apache Software License` no version, so neither becomes an SPDX
id; a field that holds a whole licence and more is not called by the first one's name. Nothing here does I/O or raises.
Source: PEP 639 and its appendix on classifiers, read 2026-11-30.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

from envsmith.errors import printable

Statement = Literal["expression", "field", "classifier", "none"]

#: Headers end long before; the rest of a METADATA is a description.
_READ = 1 << 20
#: Longer than any expression that people write, short enough for the parser of any.
_LONGEST_EXPRESSION = 500
_LONGEST_TEXT = 120
_LONGEST_LIST = 20

#: Single classifiers that mean one licence. Those that PEP 639's appendix calls ambiguous are not here on purpose.
#: Source: the list of trove-classifiers 2026.9.21.13 against the appendix, read 2026-11-30.
_CLASSIFIERS = {
    "Blue Oak Model License (BlueOak-1.0.0)": "BlueOak-1.0.0",
    "Boost Software License 1.0 (BSL-1.0)": "BSL-1.0",
    "CC0 1.0 Universal (CC0 1.0) Public Domain Dedication": "CC0-1.0",
    "CEA CNRS Inria Logiciel Libre License, version 2.1 (CeCILL-2.1)": "CECILL-2.1",
    "CMU License (MIT-CMU)": "MIT-CMU",
    "CeCILL-B Free Software License Agreement (CECILL-B)": "CECILL-B",
    "CeCILL-C Free Software License Agreement (CECILL-C)": "CECILL-C",
    "Common Development and Distribution License 1.0 (CDDL-1.0)": "CDDL-1.0",
    "Eclipse Public License 1.0 (EPL-1.0)": "EPL-1.0",
    "Eclipse Public License 2.0 (EPL-2.0)": "EPL-2.0",
    "Educational Community License, Version 2.0 (ECL-2.0)": "ECL-2.0",
    "European Union Public Licence 1.0 (EUPL 1.0)": "EUPL-1.0",
    "European Union Public Licence 1.1 (EUPL 1.1)": "EUPL-1.1",
    "European Union Public Licence 1.2 (EUPL 1.2)": "EUPL-1.2",
    "GNU Affero General Public License v3 or later (AGPLv3+)": "AGPL-3.0-or-later",
    "GNU General Public License v2 or later (GPLv2+)": "GPL-2.0-or-later",
    "GNU General Public License v3 or later (GPLv3+)": "GPL-3.0-or-later",
    "GNU Lesser General Public License v3 or later (LGPLv3+)": "LGPL-3.0-or-later",
    "Historical Permission Notice and Disclaimer (HPND)": "HPND",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "MIT No Attribution License (MIT-0)": "MIT-0",
    "MirOS License (MirOS)": "MirOS",
    "Mozilla Public License 1.0 (MPL)": "MPL-1.0",
    "Mozilla Public License 1.1 (MPL 1.1)": "MPL-1.1",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Mulan Permissive Software License v2 (MulanPSL-2.0)": "MulanPSL-2.0",
    "NASA Open Source Agreement v1.3 (NASA-1.3)": "NASA-1.3",
    "Open Software License 3.0 (OSL-3.0)": "OSL-3.0",
    "PostgreSQL License": "PostgreSQL",
    "Python License (CNRI Python License)": "CNRI-Python",
    "Python Software Foundation License": "PSF-2.0",
    "SIL Open Font License 1.1 (OFL-1.1)": "OFL-1.1",
    "Sleepycat License": "Sleepycat",
    "The Unlicense (Unlicense)": "Unlicense",
    "University of Illinois/NCSA Open Source License": "NCSA",
    "Zero-Clause BSD (0BSD)": "0BSD",
    "zlib/libpng License": "Zlib",
}

#: What the ids of an ambiguous classifier begin with, to see whether an expression contradicts it.
_FAMILIES = {
    "Academic Free License (AFL)": ("AFL-",),
    "Apache Software License": ("Apache-",),
    "Artistic License": ("Artistic-",),
    "BSD License": ("BSD-", "0BSD"),
    "GNU Affero General Public License v3": ("AGPL-",),
    "GNU General Public License (GPL)": ("GPL-",),
    "GNU General Public License v2 (GPLv2)": ("GPL-",),
    "GNU General Public License v3 (GPLv3)": ("GPL-",),
    "GNU Lesser General Public License v2 (LGPLv2)": ("LGPL-",),
    "GNU Lesser General Public License v2 or later (LGPLv2+)": ("LGPL-",),
    "GNU Lesser General Public License v3 (LGPLv3)": ("LGPL-",),
    "GNU Library or Lesser General Public License (LGPL)": ("LGPL-",),
    "Other/Proprietary License": ("LicenseRef-",),
    "Zope Public License": ("ZPL-",),
}

#: Names that authors give in the field, by their words in any order; `license` and the like are no words.
#: Source: the fields of 233 wheels of the a100 stack, read 2026-11-30.
_NAMES = {
    frozenset(words.split()): spdx
    for spdx, names in {
        "Apache-2.0": ("apache 2.0", "apache 2", "asl 2.0"),
        "BSD-2-Clause": ("bsd 2 clause", "simplified bsd"),
        "BSD-3-Clause": ("bsd 3 clause", "new bsd", "modified bsd"),
        "ISC": ("isc", "isc iscl"),
        "MIT": ("mit", "expat", "mit expat"),
        "MPL-2.0": ("mpl 2.0", "mozilla public 2.0", "mozilla public mpl 2.0"),
        "PSF-2.0": ("psf 2.0", "python foundation 2.0"),
        "Unlicense": ("unlicense",),
        "Zlib": ("zlib", "zlib libpng"),
    }.items()
    for words in names
}
_NO_WORDS = {"the", "license", "licence", "software", "version", "v"}
_NOTHING = {"", "unknown", "none", "n/a", "na", "-", "tbd", "license", "licence"}

_GNU = re.compile(r"\b([al]?)gpl|\bgnu\s+(affero|lesser|library)?\s*general\s+public\s+licen[cs]e", re.I)
_GNU_NAMES = {"a": "AGPL", "affero": "AGPL", "l": "LGPL", "lesser": "LGPL", "library": "LGPL", "": "GPL"}
#: What the texts of the GPL 3 say of the other two. Source: section 13 and the end of GPL-3.0, read 2026-11-30.
_SIBLINGS = re.compile(
    r"13\. use with the gnu affero general public license"
    r"|under version 3 of the gnu affero general public license into a single"
    r"|requirements of the gnu affero general public license, section 13"
    r"|use the gnu lesser general public license instead|why-not-lgpl",
    re.I,
)
_PROPRIETARY = re.compile(r"propriet|nvidia|\beula\b|commercial licen[cs]e", re.I)
_IDS = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]*")


@dataclass(frozen=True, kw_only=True, slots=True)
class Licence:
    """What an author states; the words are theirs, so whoever shows them has to escape them."""

    expression: str | None = None
    """A valid SPDX expression in its normal form."""
    text: str = ""
    """What was written, on one line and shortened; empty where nothing was."""
    classifiers: tuple[str, ...] = ()
    """Last parts of the `License ::` classifiers, in file order."""
    source: Statement = "none"
    """Which statement the expression is from, or the text where there is no expression."""
    copyleft: tuple[str, ...] = ()
    """Those of AGPL, GPL and LGPL that any statement names, whole licence texts included."""

    @property
    def words(self) -> str:
        """The licence in the fewest words that hide nothing."""
        if self.expression is None:
            return self.text or "none stated"
        unknown = self.source == "classifier" and self.text and self.text not in self.classifiers
        return f"{self.expression} (field: {self.text})" if unknown else self.expression

    @property
    def proprietary(self) -> bool:
        """Whether a statement names a proprietary licence."""
        said = (self.expression or "", self.text, *self.classifiers)
        return any(_PROPRIETARY.search(one) for one in said)

    @property
    def contradicted(self) -> tuple[str, ...]:
        """Classifiers that name another licence than the expression does."""
        ids = _IDS.findall(self.expression or "")
        return tuple(
            one
            for one in self.classifiers
            if ids and (wanted := _meant(one)) and not any(name.startswith(wanted) for name in ids)
        )


def licence_of(metadata: bytes) -> Licence:
    """Read the licence out of a METADATA: expression, then field, then classifiers; anything odd is just not there."""
    headers = _headers(metadata)
    classifiers = _classifiers(headers.get("classifier", ()))
    stated = _first(headers.get("license-expression", ()))
    field = _first(headers.get("license", ()))
    copyleft = _copyleft((stated, field, *classifiers))

    def made(expression: str | None, text: str, source: Statement) -> Licence:
        return Licence(
            expression=expression, text=_short(text), classifiers=classifiers, source=source, copyleft=copyleft
        )

    if expression := _spdx(stated):
        return made(expression, stated, "expression")
    if expression := _recognised(field):
        return made(expression, field, "field")
    listed = "; ".join(classifiers)
    if expression := _only(classifiers):
        return made(expression, field or listed, "classifier")
    if stated:
        return made(None, stated, "expression")
    if field:
        return made(None, _opening(field), "field")
    return made(None, listed, "classifier" if listed else "none")


def _headers(metadata: bytes) -> Mapping[str, list[str]]:
    """Values by lower-case name. The email package is stricter than the writers of old wheels."""
    found: dict[str, list[str]] = {}
    last: list[str] | None = None
    text = metadata[:_READ].decode("utf-8", errors="replace").lstrip("\ufeff\r\n")
    for raw in text.split("\n"):
        line = raw.rstrip("\r")
        if not line:
            break
        if line[0] in " \t":
            if last:
                last.append(line)
            continue
        name, colon, value = line.partition(":")
        last = found.setdefault(name.strip().lower(), []) if colon else None
        if last is not None:
            last.append(f"\0{value}")
    return {name: "\n".join(lines).lstrip("\0").split("\n\0") for name, lines in found.items()}


def _first(values: Iterable[str]) -> str:
    return next((value for value in values if value.strip().lower() not in _NOTHING), "").strip()


def _classifiers(values: Iterable[str]) -> tuple[str, ...]:
    parts = (value.strip().split(" :: ") for value in values if value.strip().startswith("License ::"))
    tails = dict.fromkeys(_short(found[-1]) for found in parts)
    if len(tails) > 1:
        tails.pop("OSI Approved", None)  # the parent of all others
    return tuple(tails)[:_LONGEST_LIST]


def _spdx(text: str) -> str | None:
    if not text or len(text) > _LONGEST_EXPRESSION:
        return None
    try:
        return str(canonicalize_license_expression(text))
    except (InvalidLicenseExpression, ValueError, RecursionError, MemoryError, SyntaxError):
        return None


def _recognised(field: str) -> str | None:
    """An expression, a name that means one licence, or exactly one whole licence."""
    if found := _spdx(field):
        return found
    if len(field) <= _LONGEST_TEXT:
        words = re.findall(r"[^\W\d]+|\d+(?:\.\d+)*", field.lower())
        return _NAMES.get(frozenset(words) - _NO_WORDS)
    found, length = _whole_text(field)
    return found if length <= _LENGTHS.get(found or "", 0) else None


#: Characters of a licence with its names and copyright lines; a longer text says more than the licence.
_LENGTHS = {
    "Apache-2.0": 12000, "BSD-2-Clause": 1600, "BSD-3-Clause": 2000, "ISC": 1000, "MIT": 1400, "MPL-2.0": 17500,
}  # fmt: skip
_APACHE = re.compile(r"(the )?apache license,? version 2\.0,? january 2004")
_MPL = re.compile(r"mozilla public license,? version 2\.0")
_GRANTS = {
    "MIT": "permission is hereby granted, free of charge, to any person obtaining a copy",
    "BSD": "redistribution and use in source and binary forms, with or without modification, are permitted",
    "ISC": "permission to use, copy, modify, and/or distribute this software for any purpose with or without fee is "
    "hereby granted, provided that",
}


def _whole_text(field: str) -> tuple[str | None, int]:
    """The licence that a long text begins with, and the length of the whole without its layout."""
    text = " ".join(field.lower().split())
    if _APACHE.match(text):
        return "Apache-2.0", len(text)
    if _MPL.match(text):
        return "MPL-2.0", len(text)
    places = {name: at for name, grant in _GRANTS.items() if 0 <= (at := text.find(grant)) < 600}
    name = min(places, key=lambda one: places[one], default=None)
    if name != "BSD":
        return name, len(text)
    body = text[places["BSD"] : places["BSD"] + 1600]
    if "advertising materials" in body:
        return None, len(text)
    return ("BSD-3-Clause" if "neither the name" in body else "BSD-2-Clause"), len(text)


def _opening(field: str) -> str:
    """What to call a text that is no one licence: its first licence where known, and how long it is."""
    if len(field) <= _LONGEST_TEXT:
        return field
    found, length = _whole_text(field)
    line = found or _short(field.split("\n", 1)[0], 60)
    return f"{line}, and more in a text of {length} characters"


def _only(classifiers: tuple[str, ...]) -> str | None:
    """PEP 639: of several classifiers nobody knows whether all apply or one may be chosen."""
    return _CLASSIFIERS.get(classifiers[0]) if len(classifiers) == 1 else None


def _meant(classifier: str) -> tuple[str, ...]:
    exact = _CLASSIFIERS.get(classifier)
    return (exact,) if exact else _FAMILIES.get(classifier, ())


def _copyleft(said: Iterable[str]) -> tuple[str, ...]:
    texts = (_SIBLINGS.sub("", " ".join(one.split())) for one in said)
    found = (match for text in texts for match in _GNU.finditer(text))
    return tuple(sorted({_GNU_NAMES[(match[1] or match[2] or "").lower()] for match in found}))


def _short(text: str, longest: int = _LONGEST_TEXT) -> str:
    """One line without control characters, cut in words' sight."""
    line = printable(" ".join(text[: longest * 4].split()), keep="")
    return line if len(line) <= longest else f"{line[: longest - 1]}…"
