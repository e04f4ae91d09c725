"""What a bundle is made of: the types of its blobs, the keys of their annotations, and the title each type may bear.

Titles become paths on other machines, and whoever sends a bundle chooses them: only what is listed here may pass.
"""

from __future__ import annotations

import re

MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
OURS = "application/vnd.envsmith."
BUNDLE = f"{OURS}bundle.v1"
SIGNATURES = f"{OURS}signature.v1"
DELTAS = f"{OURS}delta.v1"

CONFIG = f"{OURS}bundle.config.v1+json"
SIGNATURE_CONFIG = f"{OURS}signature.config.v1+json"
DELTA_CONFIG = f"{OURS}delta.config.v1+json"
LOCK = f"{OURS}lock.v1+toml"
PYLOCK = f"{OURS}pylock.v1+toml"
RECIPE = f"{OURS}recipe.v1+toml"
SNAPSHOT = f"{OURS}snapshot.v1+toml"
SERIES = f"{OURS}series.v1"
PATCH = f"{OURS}patch.v1+diff"
SOURCE = f"{OURS}source.git.v1+bundle"
SDIST = f"{OURS}sdist.v1"
WHEEL = f"{OURS}wheel.v1+zip"
PYTHON = f"{OURS}python.v1.tar"
ASSET = f"{OURS}asset.v1"
INSTALLER = f"{OURS}bootstrap.v1+sh"
REPORT = f"{OURS}report.v1+json"
SHEET = f"{OURS}sheet.v1+markdown"
SIGNATURE = f"{OURS}signature.v1.sshsig"
WHEEL_DELTA = f"{OURS}wheel-delta.v1"

TITLE = "org.opencontainers.image.title"
VERSION = "org.opencontainers.image.version"
TAG = "org.opencontainers.image.ref.name"
LOCKS = "io.envsmith.locks"
ENVS = "io.envsmith.envs"
ROLES = "io.envsmith.roles"
DELTA_BASE = "io.envsmith.delta.base"
DELTA_RESULT = "io.envsmith.delta.result"

#: The type of the config of each artifact.
CONFIG_OF = {BUNDLE: CONFIG, SIGNATURES: SIGNATURE_CONFIG, DELTAS: DELTA_CONFIG}
#: Two files of one name and other content lie apart, below the name of their env.
_APART = r"([a-z0-9-]+/)?"
#: Which titles a kind may bear, in the order in which kinds stand in a manifest.
_TITLES: tuple[tuple[str, str], ...] = (
    (LOCK, r"stacks/pylock\.[a-z0-9-]+\.toml"),
    (PYLOCK, r"pylock\.[a-z0-9-]+\.toml"),
    (RECIPE, r"stacks/[a-z0-9-]+\.toml"),
    (SNAPSHOT, r"stacks/(?!pylock\.).+\.toml"),
    (INSTALLER, r"install\.sh"),
    (SHEET, r"MANIFEST\.md"),
    (REPORT, r"reports/[A-Za-z0-9._-]+\.json"),
    (SERIES, r"patches/.+"),
    (PATCH, r"patches/.+"),
    (SOURCE, r"sources/[a-z0-9-]+@[0-9a-f]{40}\.bundle"),
    (ASSET, r"assets/.+"),
    (SDIST, rf"sdists/{_APART}[^/]+"),
    (WHEEL, rf"wheels/{_APART}[^/]+\.whl"),
    (PYTHON, rf"python/{_APART}[^/]+\.tar"),
    (SIGNATURE, r"manifest\.[0-9]+\.sshsig"),
    (WHEEL_DELTA, r"deltas/[0-9a-f]{64}\.delta"),
)
#: Place of a kind in a manifest.
ORDER = {kind: number for number, (kind, _) in enumerate(_TITLES)}
_TITLE_OF = dict(_TITLES)
#: Kinds whose files also stand at the root of a folder or tar, for people and for plain tools.
AT_ROOT = (INSTALLER, SHEET, PYLOCK)
#: Limits of Linux (limits.h: NAME_MAX), and one of ours that leaves room for the folder a bundle is unpacked in.
_LONGEST_NAME, _LONGEST_TITLE = 255, 1024


def belongs(kind: str, artifact: str) -> bool:
    """Whether an artifact holds layers of this kind: signatures and deltas keep apart from what they are about."""
    home = {SIGNATURE: SIGNATURES, WHEEL_DELTA: DELTAS}.get(kind, BUNDLE)
    return kind in _TITLE_OF and home == artifact


def title_fault(kind: str, title: str) -> str | None:
    """Say why a blob of this kind may not have this title; None when it may."""
    expression = _TITLE_OF.get(kind)
    if expression is None:
        return f"has a kind that this envsmith does not know: `{kind[:80]}`"
    parts = title.split("/")
    if title.startswith("/") or "\\" in title or any(part in ("", ".", "..") for part in parts):
        return "is not a plain relative path"
    sizes = [len(part.encode("utf-8", "surrogatepass")) for part in parts]
    if not title.isprintable() or sum(sizes) + len(parts) - 1 > _LONGEST_TITLE or max(sizes) > _LONGEST_NAME:
        return "holds what no file name should hold"
    if not re.fullmatch(expression, title):
        return f"is not where a bundle keeps a `{kind.removeprefix(OURS)}`"
    return None


def laid_title(kind: str, title: str) -> str:
    """Where a file comes to lie when a bundle is laid out as a workspace: assets lie beside the recipe."""
    return f"stacks/{title.removeprefix('assets/')}" if kind == ASSET else title


def stands_at_root(name: str) -> bool:
    """Whether a name is one that a blob of some bundle has at the root too."""
    return any(re.fullmatch(_TITLE_OF[kind], name) for kind in AT_ROOT)
