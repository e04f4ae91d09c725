"""A licence is read as its author stated it: nothing is guessed, nothing odd raises."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.licenses import canonicalize_license_expression

from envsmith.licences import _CLASSIFIERS, _FAMILIES, Licence, licence_of

MIT = """MIT License

Copyright (c) 2024 Some Body

Permission is hereby granted, free of charge, to any person obtaining a copy
of this software and associated documentation files (the "Software"), to deal
in the Software without restriction. The above copyright notice and this permission
notice shall be included in all copies or substantial portions of the Software."""
BSD = """Copyright (c) 2005-2023, Some Developers.
All rights reserved.

Redistribution and use in source and binary forms, with or without
modification, are permitted provided that the following conditions are met:
* Redistributions of source code must retain the above copyright notice.
"""
NEITHER = "* Neither the name of the Developers nor the names of any contributors may be used to endorse.\n"
ADVERTISING = "* All advertising materials mentioning features must display an acknowledgement.\n"
APACHE = "                 Apache License\n           Version 2.0, January 2004\n\n" + "TERMS AND CONDITIONS " * 20
MPL = "Mozilla Public License Version 2.0\n==================================\n\n" + "1. Definitions " * 20
ISC = (
    "Permission to use, copy, modify, and/or distribute this software for any purpose with or without fee is hereby\n"
    "granted, provided that the above copyright notice and this permission notice appear in all copies."
)


def metadata(*headers: tuple[str, str], body: str = "") -> bytes:
    lines = [f"{name}: {value}".replace("\n", "\n        ") for name, value in headers]
    return "\n".join(["Metadata-Version: 2.4", "Name: x", *lines, "", body]).encode()


def of(field: str) -> Licence:
    return licence_of(metadata(("License", field)))


def classified(*tails: str) -> Licence:
    return licence_of(metadata(*(("Classifier", f"License :: {tail}") for tail in tails)))


# --- the three statements ---


def test_the_expression_outranks_the_field_and_the_field_the_classifier() -> None:
    classifier = ("Classifier", "License :: OSI Approved :: ISC License (ISCL)")
    expression, field = ("License-Expression", "mit or apache-2.0"), ("License", "BSD-3-Clause")
    found = [licence_of(metadata(*given)) for given in ((classifier, field, expression), (classifier, field))]
    assert [(one.expression, one.source) for one in found] == [
        ("MIT OR Apache-2.0", "expression"),
        ("BSD-3-Clause", "field"),
    ]
    last = licence_of(metadata(classifier))
    assert (last.expression, last.source, last.classifiers) == ("ISC", "classifier", ("ISC License (ISCL)",))


def test_an_expression_that_is_none_gives_way_to_a_field_that_is_one() -> None:
    found = licence_of(metadata(("License-Expression", "Apache 2"), ("License", "MIT")))
    assert (found.expression, found.source) == ("MIT", "field")
    alone = licence_of(metadata(("License-Expression", "Use after midnight")))
    assert (alone.expression, alone.text, alone.source) == (None, "Use after midnight", "expression")


@pytest.mark.parametrize("nothing", ["", " ", "UNKNOWN", "None", "n/a"])
def test_a_word_for_nothing_states_nothing(nothing: str) -> None:
    assert of(nothing) == Licence()
    assert of(nothing).words == "none stated"


def test_the_description_states_nothing() -> None:
    assert licence_of(metadata(body="License: MIT\nLicense-Expression: MIT")) == Licence()


@pytest.mark.parametrize(
    ("field", "expression"),
    [
        ("Apache 2.0", "Apache-2.0"), ("Apache License, Version 2.0", "Apache-2.0"), ("mit", "MIT"),
        ("the apache software licence v2.0", "Apache-2.0"), ("MIT License", "MIT"), ("The MIT License (MIT)", "MIT"),
        ("3-Clause BSD License", "BSD-3-Clause"), ("BSD 2-Clause", "BSD-2-Clause"), ("ISC License", "ISC"),
        ("MPL 2.0", "MPL-2.0"), ("MPL-2.0 AND MIT", "MPL-2.0 AND MIT"), ("Apache 2.0 License", "Apache-2.0"),
    ],
)  # fmt: skip
def test_names_that_mean_one_licence_are_known(field: str, expression: str) -> None:
    assert of(field).expression == expression


@pytest.mark.parametrize("field", ["BSD", "Apache", "GPL", "PSF", "Dual License", "not MIT", "MIT or so", "LGPLv3"])
def test_names_that_mean_several_or_none_stay_words(field: str) -> None:
    assert (of(field).expression, of(field).words, of(field).source) == (None, field, "field")


@pytest.mark.parametrize(
    ("text", "expression"),
    [
        (MIT, "MIT"), (BSD, "BSD-2-Clause"), (BSD + NEITHER, "BSD-3-Clause"), (APACHE, "Apache-2.0"), (MPL, "MPL-2.0"),
        (ISC, "ISC"), (BSD + ADVERTISING, None), ("Copyright (c) Us.\n" + "You may not use this. " * 20, None),
    ],
)  # fmt: skip
def test_whole_texts_are_known_by_their_grant(text: str, expression: str | None) -> None:
    assert of(text).expression == expression


@pytest.mark.parametrize(("text", "name"), [(MIT, "MIT"), (BSD + NEITHER, "BSD-3-Clause"), (ISC, "ISC")])
def test_a_text_that_says_more_than_its_licence_is_not_called_by_it(text: str, name: str) -> None:
    more = of(text + "\n\nFiles: x.libs/libgfortran.so\nLicense: GPL-3.0-with-GCC-exception\n" + "More terms. " * 200)
    assert more.expression is None
    assert more.words.startswith(f"{name}, and more in a text of ")
    assert more.copyleft == ("GPL",)


def test_what_the_text_of_the_gpl_says_of_its_siblings_does_not_name_them() -> None:
    gpl = (
        "GNU GENERAL PUBLIC LICENSE\nVersion 3\n13. Use with the GNU Affero General Public License.\n"
        "licensed\nunder version 3 of the GNU Affero General Public License into a single combined work, the special\n"
        "requirements of the GNU Affero General Public License, section 13. If this is what you want to do, use the\n"
        "GNU Lesser General Public License instead of this License."
    )
    assert of(gpl).copyleft == ("GPL",)
    assert of(gpl + "\nThis file is under the GNU Lesser General Public License.").copyleft == ("GPL", "LGPL")


@pytest.mark.parametrize(
    ("field", "names"),
    [
        ("AGPL-3.0-or-later", ("AGPL",)), ("LGPL-2.1-only", ("LGPL",)), ("GPLv3", ("GPL",)), ("MIT", ()),
        ("MIT OR GPL-2.0-only", ("GPL",)), ("GNU Library General Public Licence", ("LGPL",)),
        ("GNU Affero General Public License v3", ("AGPL",)),
    ],
)  # fmt: skip
def test_copyleft_is_named_however_it_is_written(field: str, names: tuple[str, ...]) -> None:
    assert of(field).copyleft == names


def test_proprietary_is_seen_in_each_statement() -> None:
    stated = licence_of(metadata(("License-Expression", "LicenseRef-NVIDIA-Proprietary")))
    assert stated.expression == "LicenseRef-NVIDIA-Proprietary"
    assert stated.proprietary
    assert of("NVIDIA Proprietary Software").proprietary
    assert classified("Other/Proprietary License").proprietary
    assert not of("MIT").proprietary
    assert not of(BSD).proprietary


# --- classifiers ---


@pytest.mark.parametrize(("tail", "expression"), sorted(_CLASSIFIERS.items()))
def test_every_classifier_of_the_table_gives_a_valid_expression(tail: str, expression: str) -> None:
    assert canonicalize_license_expression(expression) == expression
    assert classified(f"OSI Approved :: {tail}").expression == expression
    assert tail not in _FAMILIES


@pytest.mark.parametrize("tail", sorted(_FAMILIES))
def test_an_ambiguous_classifier_is_words_and_no_expression(tail: str) -> None:
    found = classified(f"OSI Approved :: {tail}")
    assert (found.expression, found.words, found.source) == (None, tail, "classifier")


def test_of_several_classifiers_none_is_chosen_but_their_parent_does_not_count() -> None:
    two = classified("OSI Approved :: MIT License", "OSI Approved :: Apache Software License")
    assert (two.expression, two.words) == (None, "MIT License; Apache Software License")
    assert classified("OSI Approved", "OSI Approved :: MIT License").expression == "MIT"
    assert classified("OSI Approved").words == "OSI Approved"


def test_a_field_beside_a_classifier_is_still_shown() -> None:
    found = licence_of(metadata(("License", "our own terms"), ("Classifier", "License :: OSI Approved :: MIT License")))
    assert (found.expression, found.source, found.words) == ("MIT", "classifier", "MIT (field: our own terms)")


def test_classifiers_that_contradict_the_expression_are_named() -> None:
    classifiers = [
        ("Classifier", f"License :: {tail}")
        for tail in ("Other/Proprietary License", "OSI Approved :: BSD License", "OSI Approved :: MIT License")
    ]
    assert licence_of(metadata(("License", "BSD-3-Clause"), *classifiers)).contradicted == (
        "Other/Proprietary License",
        "MIT License",
    )
    assert licence_of(metadata(("License", "MIT AND BSD-2-Clause"), *classifiers[1:])).contradicted == ()
    assert licence_of(metadata(("License", "our terms"), *classifiers)).contradicted == ()


# --- odd metadata ---


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\xff\xfe\x00", b"\n\n", b"License", b":", b" leading\n", b"License:\n\tMIT\xff",
        b"License: " + b"(" * 400, b"License-Expression: " + b"MIT OR " * 100_000, b"License: \x00\x1b[31m\xe2\x80\xae",
        b"Classifier: License ::\n" * 1000, b"x" * 3_000_000, b"License: MIT\r\nLicense: GPL\r\n\r\n",
        b"\n".join(b"Classifier: License :: OSI Approved :: A%d" % n for n in range(5000)),
    ],
)  # fmt: skip
def test_odd_metadata_gives_a_short_printable_answer(data: bytes) -> None:
    found = licence_of(data)
    said = (found.text, found.words, *found.classifiers)
    assert all(len(one) <= 1000 and one.isprintable() for one in said)
    assert len(found.classifiers) <= 20


def test_old_line_ends_a_mark_and_a_folded_value_are_read() -> None:
    assert licence_of(b"\xef\xbb\xbfLicense: MIT\r\nName: x\r\n\r\n").expression == "MIT"
    assert licence_of(b"license:\n  Apache License,\n  Version 2.0\n\n").expression == "Apache-2.0"


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["License", "License-Expression", "Classifier", "X"]),
            st.one_of(st.text(max_size=80), st.sampled_from(["MIT", "(MIT", "License :: A :: B", MIT, BSD])),
        ),
        max_size=6,
    )
)
def test_no_metadata_raises(headers: list[tuple[str, str]]) -> None:
    data = "\n".join(f"{name}: {value}" for name, value in headers).encode(errors="surrogatepass")
    found = licence_of(data)
    assert found == licence_of(data)
    assert found.words.isprintable()
    assert (found.source == "none") == (found.expression is None and not found.text)
