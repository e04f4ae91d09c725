"""Looking at the native libraries of an env, and at what LD_LIBRARY_PATH would put in their place."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from envsmith.checks.expected import within
from envsmith.checks.launch_env import Surrounding
from envsmith.checks.linking import Shadow, shadowed_by
from envsmith.checks.native import check_native, owned_by
from envsmith.commands.records import keep_beside, read_beside
from envsmith.commands.subject import Subject
from envsmith.errors import EnvsmithError
from envsmith.native import NativeFacts
from envsmith.observed import Observed
from envsmith.report import Finding
from envsmith.tools.device import has_nvidia_device, nvidia_devices
from envsmith.tools.driver import libcuda_versions
from envsmith.tools.files import sha256_file
from envsmith.tools.hostlibs import host_libraries, library_path
from envsmith.tools.nativescan import known_from_json, scan_native, to_json
from envsmith.tools.procfs import kernel_driver


@dataclass(frozen=True, kw_only=True)
class NativeLook:
    """The native side of an env, read once and only when it is asked for."""

    subject: Subject
    observed: Observed

    @cached_property
    def facts(self) -> NativeFacts:
        """What its native files say; rows that are known by their sha256 are kept beside the stat index."""
        path = self.subject.beside("native.json")
        text = read_beside(path)
        known = known_from_json(text) if text else {}
        facts = scan_native(self.subject.directory, self.observed.files, digests=self.observed.digests, known=known)
        if any(known.get(file.path) != file for file in facts.files):
            keep_beside(path, to_json(facts))
        return facts

    def judge(self, launched: Mapping[str, str]) -> Iterator[Finding]:
        """Run the family `native` against this host, as a launched process would find it."""
        devices = nvidia_devices(launched)
        here = tuple(dict.fromkeys(d.compute_capability for d in devices if d.compute_capability))
        yield from check_native(
            self.facts,
            host_libraries(launched, python=self.subject.executable),
            env_manifest=owned_by(self.subject.manifest, self.observed.digests),
            single_instance=tuple(self.subject.verify["single-instance"]),
            compute_capabilities=here or tuple(self.subject.verify["compute-capability"]),
            has_device=has_nvidia_device(),
        )

    def surrounding(self, environ: Mapping[str, str], shown: Mapping[str, str]) -> Surrounding:
        """What variables of a process lead to; `shown` are those that the process itself was seen with."""
        folders = library_path(environ.get("LD_LIBRARY_PATH", ""), machine=self.facts.machine)
        strange = [folder for folder in folders if not self._is_own(folder.path)]
        return Surrounding(
            environ=shown,
            folders=folders,
            shadows=tuple(s for s in shadowed_by(strange, self.facts) if not self._is_copy(s)) if strange else (),
            drivers=libcuda_versions(folder.path for folder in folders),
            kernel_driver=kernel_driver(),
        )

    def _is_copy(self, shadow: Shadow) -> bool:
        """Whether what would be loaded instead has the same bytes."""
        wanted = {self.observed.digests.get(path) for path in shadow.ours}
        with contextlib.suppress(EnvsmithError, OSError):
            return sha256_file(Path(os.path.realpath(shadow.path))) in wanted
        return False

    def _is_own(self, folder: str) -> bool:
        """Whether a folder is one of the env's, by whatever name."""
        return within(os.path.realpath(folder), (self.subject.env_dir,))
