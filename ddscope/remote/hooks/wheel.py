"""The slim wheel: nothing but `ddscope_hooks` and its entry point. Equal sources make equal bytes."""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable

from ddscope_hooks import __version__

ENTRY = ("sglang.srt.plugins", "ddscope", "ddscope_hooks.plugin:register")
"""The entry point by which SGLang finds the hooks, as in pyproject.toml. Importing the plug-in leads to torch."""
_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Wheel:
    """A wheel in memory. version: with a local part that is a hash of the sources, so that it says what is in it."""

    name: str
    version: str
    data: bytes
    files: tuple[str, ...]

    @property
    def sha256(self) -> str:
        """Of the whole file, in hex."""
        return hashlib.sha256(self.data).hexdigest()


def build() -> Wheel:
    """The wheel of the hooks that this viewer has."""
    sources = dict(sorted(_sources(resources.files("ddscope_hooks"), "ddscope_hooks/")))
    digest = hashlib.sha256()
    for path, data in sources.items():
        digest.update(f"{path}\0{len(data)}\0".encode() + data)
    version = f"{__version__}+h{digest.hexdigest()[:10]}"
    info = f"ddscope_hooks-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: ddscope-hooks\nVersion: {version}\nSummary: The hooks of ddscope.\n"
    files = {
        **sources,
        f"{info}/METADATA": (metadata + "License: Apache-2.0\nRequires-Python: >=3.10\n").encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: ddscope\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[{ENTRY[0]}]\n{ENTRY[1]} = {ENTRY[2]}\n".encode(),
        f"{info}/top_level.txt": b"ddscope_hooks\n",
    }
    rows = [f"{path},sha256={_hash(data)},{len(data)}\n" for path, data in files.items()]
    files[f"{info}/RECORD"] = "".join([*rows, f"{info}/RECORD,,\n"]).encode()
    packed = io.BytesIO()
    # Stored, not deflated: what deflate makes depends on the library that did it.
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        for path, data in files.items():
            entry = zipfile.ZipInfo(path, _EPOCH)
            entry.external_attr = 0o100644 << 16
            entry.create_system = 3
            archive.writestr(entry, data)
    return Wheel(f"ddscope_hooks-{version}-py3-none-any.whl", version, packed.getvalue(), tuple(files))


def _sources(folder: Traversable, prefix: str) -> list[tuple[str, bytes]]:
    found = []
    for entry in folder.iterdir():
        if entry.is_dir() and entry.name != "__pycache__":
            found += _sources(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith((".py", ".typed")):
            found.append((prefix + entry.name, entry.read_bytes()))
    return found


def _hash(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
