"""Failed imports whose words are known: the cause is named, and what only misleads is not."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from envsmith.checks.failures import failures
from envsmith.checks.imports import check_real_imports
from envsmith.facts import Import
from envsmith.probe import Request, probe
from envsmith.report import Finding
from tests.support.facts import expected, facts


def failed(words: str, **more: Any) -> Import:
    kind, _, text = words.partition(": ")
    values: dict[str, Any] = {"ok": False, "error_type": kind, "error": text, "file": None, "version": None}
    return Import(**{**values, "seconds": 0.1, **more})


def judged(result: Import) -> list[Finding]:
    return list(check_real_imports(expected(imports=("mod",)), facts(imports={"mod": result})))


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("AttributeError: _ARRAY_API not found", "native-abi-numpy"),
        ("ImportError: numpy.core.multiarray failed to import", "native-abi-numpy"),
        ("TypeError: Descriptors cannot not be created directly.\nIf this call came", "native-abi-protobuf"),
        ("TypeError: Descriptors cannot be created directly.", "native-abi-protobuf"),
        (
            "ImportError: /e/flash_attn_2_cuda.cpython-311-x86_64-linux-gnu.so: undefined symbol: "
            "_ZN3c104cuda9SetDeviceEab",
            "flash-attn-abi",
        ),
        (
            "ImportError: /e/torch_musa/lib/libmusa_kernels.so: undefined symbol: _ZN2at18_GeneratorRegisterC1ESt8",
            "vendor-ext-torch-mismatch",
        ),
        ("ImportError: /e/vllm/_C.abi3.so: undefined symbol: _ZNK3c1010TensorImpl", "torch-abi"),
        (
            "ImportError: /e/libcusparse.so.12: undefined symbol: __nvJitLinkComplete_12_4",
            "duplicate-native-lib-nvjitlink",
        ),
        ("ImportError: /e/libtorch_cuda.so: undefined symbol: ncclCommRegister", "duplicate-native-lib-nccl"),
        ("RuntimeError: cuDNN version incompatibility: PyTorch was compiled", "duplicate-native-lib-cudnn"),
        ("ImportError: /lib/libstdc++.so.6: version `GLIBCXX_3.4.30' not found", "native-abi-glibcxx"),
        ("ImportError: /lib/libc.so.6: version `GLIBC_2.32' not found", "glibc-too-old"),
        ("ImportError: libGL.so.1: cannot open shared object file: No such file or directory", "library-missing"),
        ("ModuleNotFoundError: No module named 'mod'", "import-failed"),
    ],
)
def test_the_words_of_a_failed_import_name_its_cause(words: str, kind: str) -> None:
    (finding,) = judged(failed(words))
    assert finding.kind == kind
    assert finding.severity.value == "error"
    assert finding.subject == "mod"
    assert words.splitlines()[0].split(": ", 1)[1].split(" ")[0] in (finding.actual or "")


def test_every_known_failure_has_a_cause_a_hint_and_a_row_of_its_own() -> None:
    kinds = [failure.kind for failure in failures()]
    assert len(kinds) == len(set(kinds))
    assert all(failure.cause and failure.hint for failure in failures())


def test_an_import_that_only_prints_its_failure_is_found() -> None:
    words = (
        "\nA module that was compiled using NumPy 1.x cannot be run in\nNumPy 2.2.6 as it may crash. To support both\n"
    )
    (finding,) = judged(failed(": ", ok=True, error_type=None, error=None, said=words))
    assert finding.kind == "native-abi-numpy"


def test_other_words_of_an_import_that_worked_are_nobodys_business() -> None:
    assert judged(failed(": ", ok=True, error_type=None, error=None, said="FutureWarning: pynvml is deprecated")) == []


def test_d51_the_exception_that_hides_the_cause_is_not_reported() -> None:
    hidden = "ImportError: /e/torch_musa/lib/libmusa_kernels.so: undefined symbol: _ZN2at18_GeneratorRegisterC1E"
    (finding,) = judged(failed("ImportError: Please try running Python from a different directory!", cause=hidden))
    assert finding.kind == "vendor-ext-torch-mismatch"
    assert "different directory" not in str(finding.to_dict())


def test_a_real_process_reports_the_hidden_cause_and_what_native_code_printed(tmp_path: Path) -> None:
    package = tmp_path / "modules"
    package.mkdir()
    (package / "ext.py").write_text("import os\nos.write(2, b'AttributeError: _ARRAY_API not found\\n')\n")
    (package / "outer.py").write_text(
        "try:\n    raise ImportError('libx.so: undefined symbol: _ZN2at4fooEv')\n"
        "except ImportError:\n    raise ImportError('Please try running Python from a different directory!')\n"
    )
    answer = probe(
        Path(sys.executable),
        Request(imports=("ext", "outer", "json")),
        env={"PYTHONPATH": str(package), "PATH": "/usr/bin"},
    )
    assert answer.imports["ext"].ok
    assert "_ARRAY_API" in (answer.imports["ext"].said or "")
    assert answer.imports["outer"].cause == "ImportError: libx.so: undefined symbol: _ZN2at4fooEv"
    assert answer.imports["json"].said is None
    assert answer.imports["json"].cause is None
