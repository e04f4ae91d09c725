"""Reports to render, and secrets to plant in them."""

from __future__ import annotations

import random
import string

from hypothesis import strategies as st

from envsmith.report import ContextRow, Finding, Package, Report, Severity, ordered

HOSTILE = '</script><script>alert(1)</script><img src=x onerror="alert(1)">\u202egpj.exe\x1b[31m\u200b&amp;\'"'

#: Texts around a secret: letters, marks that quote and break, control characters, other alphabets.
AROUND = st.text(alphabet=st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=30)
_WORD = string.ascii_letters + string.digits + "!$%*+-.~^"
SECRET_WORDS = st.text(alphabet=_WORD, min_size=8, max_size=40).map(lambda word: f"S3cr3T{word}")
_DICE = random.Random(20261130)
TOKENS = st.sampled_from([
    prefix + "".join(_DICE.choices(string.ascii_letters + string.digits, k=length))
    for prefix, length in (("ghp_", 36), ("glpat-", 20), ("hf_", 34), ("sk-", 48), ("", 40), ("", 64), ("pypi-", 80))
    for _ in range(6)
])  # fmt: skip
NAMES = ("HF_TOKEN", "WANDB_API_KEY", "PIP_PASSWORD", "AWS_SECRET_ACCESS_KEY", "MY_CREDENTIALS", "api_key", "DB-PASSWD")


def _planted(secret: str, form: str, before: str, after: str) -> tuple[str, str]:
    return secret, f"{before}{form.format(secret)}{after}"


#: A secret, and a text that holds it in a form that can be recognised.
PLANTED = st.one_of(
    st.builds(
        _planted,
        SECRET_WORDS,
        st.sampled_from([
            "https://user:{}@mirror.example/simple", "git+ssh://{}@host.example/x.git", "http://a:b/{}@host.example:80/",
            "https://host.example/file?signature={}&x=1", "--token {}", "--registry-password={}",
            "Authorization: Bearer {}", "authorization: basic {}",
            *(f"{name}={{}}" for name in NAMES), *(f'"{name}": "{{}}"' for name in NAMES), "export HF_TOKEN='{}'",
        ]),
        AROUND,
        AROUND.map(lambda text: f" {text}"),
    ),
    st.builds(_planted, TOKENS, st.just(" {} "), AROUND, AROUND),
)  # fmt: skip


def finding(severity: Severity = Severity.ERROR, **more: str | None) -> Finding:
    said = {"check": "files", "kind": "file-changed", "subject": "lib/a.py", "message": "a file was changed"} | more
    return Finding(severity=severity, **said)  # type: ignore[arg-type]


def report(*findings: Finding, subject: str = "a100/rl", **more: object) -> Report:
    families = ("files", "imports", "hooks")
    return Report(subject=subject, families=families, findings=ordered(findings), **more)  # type: ignore[arg-type]


def everywhere(text: str, fields: tuple[str, ...] = ("subject", "message", "expected", "actual", "hint")) -> Report:
    """A report that says one text in every place that others fill."""
    return report(
        *(finding(**{field: text}) for field in fields),
        finding(check=text, kind=text),
        subject=text,
        environment={text: "1", "directory": text},
        figures={"files": text},
        packages=(Package(name=text, version=text, locked=text, origin=text, files=1, findings=1),),
        contexts=(
            ContextRow(name=text, parent=None, facts={text: "1", "version": text}),
            ContextRow(name="spawn", parent=text, facts={"version": f"{text} "}, differs=("version",)),
        ),
    )
