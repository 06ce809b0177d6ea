"""Real virtual environments with a small package in them that looks like a server's, RECORD and all."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.integration.host.container import Container

SPEC_INFO = '''\
"""Algorithms of speculation."""

from enum import Enum, IntEnum, auto


class SpeculativeAlgorithm(Enum):
    """What there is."""

    DFLASH = auto()
    EAGLE = auto()
    STANDALONE = auto()
    NONE = auto()

    def is_none(self) -> bool:
        return self == SpeculativeAlgorithm.NONE

    def is_dflash(self) -> bool:
        return self == SpeculativeAlgorithm.DFLASH

    def is_dflash_family(self) -> bool:
        return self.is_dflash()

    def is_eagle(self) -> bool:
        return self in (SpeculativeAlgorithm.EAGLE,)


class SpecInputType(IntEnum):
    EAGLE_DRAFT = auto()
    EAGLE_VERIFY = auto()
'''
ASKS = """\
class ModelRunner:
    def capture(self):
        if self.spec_algorithm.is_dflash():
            return "layers"
        return None


def sizes(algorithm):
    return (
        algorithm
        .is_dflash()
    )
"""
FILES = {
    "sglang/__init__.py": '__version__ = "9.9.1"\n',
    "sglang/srt/__init__.py": "",
    "sglang/srt/speculative/__init__.py": "",
    "sglang/srt/speculative/spec_info.py": SPEC_INFO,
    "sglang/srt/model_runner.py": ASKS,
    "sglang/srt/video.py": "def frames():\n    import torchcodec\n\n    return torchcodec\n",
}
SPEC = "sglang/srt/speculative/spec_info.py"


def digest(data: bytes) -> str:
    """sha256 as a RECORD writes it."""
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


class Venv:
    """A virtual environment; `site` is its folder of packages."""

    def __init__(self, folder: Path, *, pip: bool = False) -> None:
        options = [] if pip else ["--without-pip"]
        subprocess.run([sys.executable, "-m", "venv", *options, str(folder)], check=True, timeout=300)
        self.folder = folder
        self.python = str(folder / "bin" / "python")
        self.site = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)}))

    def install(self, name: str, version: str, files: dict[str, str], requires: tuple[str, ...] = ()) -> None:
        """A package as an installer leaves it."""
        info = f"{name.replace('-', '_')}-{version}.dist-info"
        needs = "".join(f"Requires-Dist: {one}\n" for one in requires)
        whole = {
            **files,
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
            f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{info}/INSTALLER": "pip\n",
        }
        rows = [f"{path},sha256={digest(text.encode())},{len(text.encode())}\n" for path, text in whole.items()]
        whole[f"{info}/RECORD"] = "".join([*rows, f"{info}/RECORD,,\n"])
        for path, text in whole.items():
            target = self.site / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)

    def patch(self, path: str, *swaps: tuple[str, str]) -> None:
        """Change a file by hand."""
        text = (self.site / path).read_text()
        for was, now in swaps:
            assert was in text
            text = text.replace(was, now)
        (self.site / path).write_text(text)


def server(folder: Path, *, pip: bool = False) -> Venv:
    """An environment with the small sglang."""
    made = Venv(folder, pip=pip)
    made.install("sglang", "9.9.1", FILES, ("torchcodec",))
    return made


def furnished(box: Container, files: dict[str, str]) -> Venv:
    """The same at /opt/venv of a throw-away host, with more files; it runs there alone."""
    box.run("python3 -m venv --without-pip /opt/venv", check=True)
    made = Venv.__new__(Venv)
    made.folder, made.python = box.root / "opt/venv", "/opt/venv/bin/python"
    made.site = next((made.folder / "lib").glob("python3*")) / "site-packages"
    made.install("sglang", "9.9.1", {**FILES, **files})
    return made


MOVES = (
    ("    DFLASH = auto()\n", "    DFLASH = auto()\n    DDTREE = auto()\n"),
    (
        "return self == SpeculativeAlgorithm.DFLASH\n",
        "return self in (SpeculativeAlgorithm.DFLASH, SpeculativeAlgorithm.DDTREE)\n",
    ),
)
"""A patch whose new member stands in the middle: those after it move."""
KEEPS = (("    NONE = auto()\n", "    NONE = auto()\n    DDTREE = auto()\n"), MOVES[1])
"""The same with the new member last."""
