"""What a launch table makes of an environment: what goes, what stays, what comes first, what must be there."""

from __future__ import annotations

import pytest

from envsmith.errors import InputError
from envsmith.launch import DriverPlaces, LaunchEnvironment, LaunchTable, fill, path_filter_hook, resolve
from envsmith.modulefile import modulefile

ENV, SCRATCH = "/envs/a100-rl/0123", "/tmp/es0"
BARE = {"PYTHONNOUSERSITE": "1", "VIRTUAL_ENV": ENV}


def launched(table: LaunchTable, *, work_dirs: tuple[str, ...] = ()) -> LaunchEnvironment:
    return resolve(table, env_dir=ENV, scratch=SCRATCH, work_dirs=work_dirs)


def applied(table: LaunchTable, **environ: str) -> dict[str, str]:
    return launched(table).apply(environ)


# --- resolve ---


def test_an_empty_table_still_makes_the_env_the_one_that_runs() -> None:
    assert applied(LaunchTable()) == {**BARE, "PATH": f"{ENV}/bin"}


def test_user_site_is_off_unless_the_recipe_says_otherwise() -> None:
    assert applied(LaunchTable(set={"PYTHONNOUSERSITE": "0"}))["PYTHONNOUSERSITE"] == "0"


def test_nobody_else_names_the_environment() -> None:
    assert applied(LaunchTable(set={"VIRTUAL_ENV": "/other"}), VIRTUAL_ENV="/another")["VIRTUAL_ENV"] == ENV


def test_places_are_filled_in_everywhere() -> None:
    found = launched(
        LaunchTable(
            set={"A": "{env}/a:{scratch}", "B": "{other}"},
            prepend={"LD_LIBRARY_PATH": "{env}/lib"},
            short_dirs={"TMPDIR": "{scratch}/t"},
        )
    )
    assert dict(found.set) == {**BARE, "A": f"{ENV}/a:{SCRATCH}", "B": "{other}", "TMPDIR": f"{SCRATCH}/t"}
    assert dict(found.prepend) == {"LD_LIBRARY_PATH": f"{ENV}/lib", "PATH": f"{ENV}/bin"}
    assert found.directories == (f"{SCRATCH}/t",)


def test_the_env_comes_before_what_the_recipe_puts_on_path() -> None:
    assert dict(launched(LaunchTable(prepend={"PATH": "/opt/x/bin"})).prepend)["PATH"] == f"{ENV}/bin:/opt/x/bin"


def test_work_copies_come_first_of_all() -> None:
    found = launched(LaunchTable(prepend={"PYTHONPATH": "/p"}), work_dirs=("/w1", "/w2"))
    assert dict(found.prepend)["PYTHONPATH"] == "/w1:/w2:/p"
    assert found.apply({"PYTHONPATH": "/old"})["PYTHONPATH"] == "/w1:/w2:/p"


def test_what_is_set_is_not_unset() -> None:
    found = launched(LaunchTable(unset=("A", "B"), set={"A": "1"}))
    assert found.unset == ("B",)
    assert found.apply({"A": "0", "B": "0"})["A"] == "1"


def test_the_table_in_canonical_form_does_not_know_orders() -> None:
    one = LaunchTable(unset=("B", "A"), set={"X": "1", "W": "2"}, require=("R", "Q"), path_filter=("b", "a"))
    two = LaunchTable(unset=("A", "B"), set={"W": "2", "X": "1"}, require=("Q", "R"), path_filter=("a", "b"))
    assert one.to_dict() == two.to_dict()
    assert one.to_dict()["forward"] == ["W", "X"]
    assert LaunchTable(set={"X": "1"}, forward=()).forwarded == ()


# --- apply ---


def test_what_nobody_names_is_left_alone() -> None:
    assert applied(LaunchTable(), HOME="/h", PYTHONPATH="/p", PYTHONHOME="/q") == {
        **BARE, "HOME": "/h", "PATH": f"{ENV}/bin",
    }  # fmt: skip


def test_apply_does_not_change_what_it_is_given() -> None:
    environ = {"PATH": "/bin", "PYTHONPATH": "/p"}
    launched(LaunchTable()).apply(environ)
    assert environ == {"PATH": "/bin", "PYTHONPATH": "/p"}


@pytest.mark.parametrize(
    ("first", "before", "after"),
    [
        ("/a", None, "/a"),
        ("/a", "", "/a"),
        ("/a", "/b", "/a:/b"),
        ("/a", ":/b", "/a:/b"),
        ("/a", "/b:", "/a:/b"),
        ("/a", "/b::/c", "/a:/b:/c"),
        ("/a", ":", "/a"),
        ("/a", "/b:/a", "/a:/b"),
        ("/a:/b", "/b:/c:/a", "/a:/b:/c"),
        (":/a::/b:", "/c", "/a:/b:/c"),
        ("/a", "/aa:/a/", "/a:/aa:/a/"),
        ("/a", "/b:/b", "/a:/b:/b"),
    ],
)
def test_prepend_makes_no_empty_element_and_repeats_none(first: str, before: str | None, after: str) -> None:
    """An empty element means the current directory to a loader."""
    environ = {} if before is None else {"LD_LIBRARY_PATH": before}
    assert applied(LaunchTable(prepend={"LD_LIBRARY_PATH": first}), **environ)["LD_LIBRARY_PATH"] == after


@pytest.mark.parametrize("first", ["", ":", "::"])
def test_prepending_nothing_changes_nothing(first: str) -> None:
    table = LaunchTable(prepend={"LD_LIBRARY_PATH": first, "PATH": first})
    assert applied(table, LD_LIBRARY_PATH="/x", PATH="/bin") == {
        **BARE, "LD_LIBRARY_PATH": "/x", "PATH": f"{ENV}/bin:/bin",
    }  # fmt: skip
    assert "LD_LIBRARY_PATH" not in applied(table)


def test_applying_twice_is_applying_once() -> None:
    found = launched(LaunchTable(set={"A": "1"}, prepend={"PATH": "/x", "L": "/y:/z"}))
    once = found.apply({"PATH": "/bin", "L": "/z"})
    assert found.apply(once) == once


def test_prepend_comes_after_set() -> None:
    assert applied(LaunchTable(set={"L": "/set"}, prepend={"L": "/first"}), L="/old")["L"] == "/first:/set"


def test_all_required_variables_that_are_missing_are_said_at_once() -> None:
    table = LaunchTable(require=("HAVE", "GONE", "EMPTY", "UNSET", "OURS"), unset=("UNSET",), set={"OURS": "1"})
    with pytest.raises(InputError) as caught:
        applied(table, HAVE="1", EMPTY="", UNSET="1")
    assert [p.where for p in caught.value.problems] == [f"launch.require:{n}" for n in ("GONE", "EMPTY", "UNSET")]
    assert {p.code for p in caught.value.problems} == {"launch-variable-missing"}


# --- the driver's library ---


def test_the_folder_of_the_drivers_library_comes_before_what_the_recipe_puts_first() -> None:
    table = LaunchTable(driver_library="host", prepend={"LD_LIBRARY_PATH": "/ours"})
    wish = launched(table)
    assert wish.driver_scratch == SCRATCH
    assert wish.apply({"LD_LIBRARY_PATH": "/old"})["LD_LIBRARY_PATH"] == "/ours:/old"
    found = wish.with_driver_folder("/s/driver-1.2")
    assert found.apply({"LD_LIBRARY_PATH": "/old:/s/driver-1.2"})["LD_LIBRARY_PATH"] == "/s/driver-1.2:/ours:/old"
    assert found.driver_scratch is None
    plain = launched(LaunchTable(driver_library="host")).with_driver_folder("/s/driver-1.2")
    assert plain.apply({})["LD_LIBRARY_PATH"] == "/s/driver-1.2"


def test_without_a_driver_nothing_is_put_anywhere() -> None:
    found = launched(LaunchTable(driver_library="host")).with_driver_folder(None)
    assert found == launched(LaunchTable())


def test_the_path_to_search_is_known_before_required_variables_are_there() -> None:
    table = LaunchTable(require=("GONE",), set={"LD_LIBRARY_PATH": "/set"}, prepend={"LD_LIBRARY_PATH": "/first"})
    assert launched(table).library_path({"LD_LIBRARY_PATH": "/old"}) == "/first:/set"
    assert launched(LaunchTable(require=("GONE",))).library_path({}) == ""


def test_the_scratch_folder_of_a_machine_is_in_no_record_of_the_table() -> None:
    table = LaunchTable(driver_library="host")
    assert table.to_dict()["driver-library"] == "host"
    assert SCRATCH not in str(table.to_dict())
    assert SCRATCH not in launched(table).shell()


def test_only_the_key_brings_the_search_into_files() -> None:
    wish, plain = launched(LaunchTable(driver_library="host")), launched(LaunchTable())
    assert "_envsmith_driver" in wish.shell()
    assert "nvidia" not in plain.shell()
    more = set(modulefile(wish, "t").splitlines()) - set(modulefile(plain, "t").splitlines())
    assert len(more) == 1
    assert more.pop().startswith("# launch.driver-library")


# --- files ---


def test_the_shell_form_sources_the_profile_before_anything_else() -> None:
    lines = launched(LaunchTable(profile="/opt/v e/env.sh", unset=("A",), require=("R",))).shell().splitlines()
    assert lines[:2] == [". '/opt/v e/env.sh'", "unset A"]
    assert lines[-1].startswith(': "${R:?')


def test_the_path_filter_is_one_comment_and_one_line_that_site_runs() -> None:
    comment, line = path_filter_hook(("a'b", "\\")).splitlines()
    assert comment.startswith("#")
    assert line.startswith("import sys; ")
    compile(line, "hook", "exec")


def test_a_value_is_no_place_for_another() -> None:
    assert fill("@A@ @B@ @C@", {"A": "@B@", "B": "@A@@B@"}) == "@B@ @A@@B@ @C@"
    places = DriverPlaces(versions=("/v/@FOLDERS@",), folders=("/f/@NODES@",), nodes=("/n/@LINKS@",), cache=None)
    text = resolve(LaunchTable(driver_library="host"), env_dir="/e", scratch="/s").shell(places)
    assert all(path in text for path in ("/v/@FOLDERS@", "/f/@NODES@", "/n/@LINKS@"))
