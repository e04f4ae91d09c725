"""tests.support.stage: what one test does to the built project, no other sees."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.support.index import SimpleIndex
from tests.support.project import Project
from tests.support.stage import Stage

#: What a copy cannot keep, and is written anew for it.
RENEWED = (".stat.json", ".rev")


def listing(folder: Path) -> dict[str, tuple[int, int, bytes | str]]:
    """Mode, time and content of everything below a folder."""
    found: dict[str, tuple[int, int, bytes | str]] = {}
    for path in folder.rglob("*"):
        state = path.lstat()
        content = str(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else b""
        if not path.name.endswith(RENEWED):
            found[str(path.relative_to(folder))] = (state.st_mode, state.st_mtime_ns, content)
    return found


def test_what_was_done_is_undone(built: Project, index: SimpleIndex, stage: Stage) -> None:
    before = listing(stage.now)
    assert "store/envs.txt" in before
    (built.site / "alpha/extra.py").write_text("X = 2\n")
    (built.site / "litter.py").write_text("")
    (built.current.resolve() / "bin/beta-run").chmod(0o600)
    shutil.rmtree(stage.store / "blobs")
    built.envs.chmod(0)
    built.lock.write_text("")
    (stage.now / "more").mkdir()
    assert listing(stage.now) != before
    again = stage.reset()
    assert listing(stage.now) == before
    quick = again.verify("--quick")
    assert (quick.code, quick.json["data"]["findings"]) == (0, [])


def test_the_copy_is_as_good_as_what_was_built(built: Project, stage: Stage, tmp_path: Path) -> None:
    """The stat index vouches for the files, and uv takes what it has unpacked."""
    stage.reset()
    said = built.verify()
    assert (said.code, said.json["data"]["envs"][0]["hashed_bytes"]) == (0, 0)
    archives = sorted((stage.store / "uv" / "archive-v0").iterdir())
    assert archives
    assert built.run("build", "demo", "--root", tmp_path / "second").code == 0
    kept = [path for path in archives if path.exists()]
    assert len(kept) >= len(archives) - 1  # the wheel of the editable source is made anew
    new = set((stage.store / "uv" / "archive-v0").iterdir()) - set(archives)
    assert len(new) == 1, new
