"""A stand-in for `systemctl --user` on machines without systemd: it loads unit files and drop-ins, and shows them.

Written onto the PATH as a program of its own. What it does is what the code asks systemd for, no more; the real one is
tried on a host of its own (tests/integration/host).
"""

from __future__ import annotations

import sys
from pathlib import Path

PROGRAM = r"""
import glob, json, os, shlex, sys
folder = os.path.expanduser("~/.config/systemd/user")
kept = os.path.join(os.environ["HOME"], "loaded.json")
args = [word for word in sys.argv[1:] if word not in ("--user", "--")]
def files(name):
    return [os.path.join(folder, name)] + sorted(glob.glob(os.path.join(folder, name + ".d", "*.conf")))
def read():
    return {name: [[path, open(path).read()] for path in files(name)]
            for name in os.listdir(folder) if name.endswith(".service")}
with open(os.path.join(os.environ["HOME"], "asked"), "a") as asked:
    asked.write(shlex.join(sys.argv[1:]) + "\n")
if args[0] == "daemon-reload":
    json.dump(read(), open(kept, "w"))
elif args[0] == "show":
    name = args[-1]
    if not os.path.exists(kept):
        json.dump(read(), open(kept, "w"))
    loaded = json.load(open(kept)).get(name)
    if loaded is None:
        print("Id=" + name + "\nLoadState=not-found")
        raise SystemExit
    environment, command = {}, ""
    for _, text in loaded:
        for line in text.splitlines():
            if line.startswith("Environment="):
                for word in shlex.split(line[12:]):
                    key, _, value = word.partition("=")
                    environment[key] = value.replace("%t", "/run/user/0").replace("%%", "%")
            elif line.startswith("ExecStart="):
                command = line[10:]
    print("Id=" + name)
    print("LoadState=loaded")
    print("Environment=" + " ".join(shlex.quote(key + "=" + value) for key, value in environment.items()))
    print("ExecStart={ path=" + command.split()[0] + " ; argv[]=" + command + " ; ignore_errors=no ; pid=0 }")
    print("NeedDaemonReload=" + ("no" if read().get(name) == loaded else "yes"))
    print("DropInPaths=" + " ".join(path for path, _ in loaded[1:]))
    print("MainPID=0")
else:
    raise SystemExit("this stand-in does not " + args[0])
"""


class Units:
    """A home folder with units in it, and the stand-in on a PATH of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.folder = home / ".config/systemd/user"
        self.folder.mkdir(parents=True)
        self.bin = home / "bin"
        self.bin.mkdir()
        program = self.bin / "systemctl"
        program.write_text(f"#!{sys.executable} -I\n{PROGRAM}")
        program.chmod(0o755)

    def add(self, name: str, text: str) -> Path:
        """A unit file."""
        path = self.folder / name
        path.write_text(text)
        return path

    def asked(self) -> list[str]:
        """What it was asked so far, `show` left out."""
        lines = (self.home / "asked").read_text().splitlines() if (self.home / "asked").exists() else []
        return [line for line in lines if " show " not in f" {line} "]
