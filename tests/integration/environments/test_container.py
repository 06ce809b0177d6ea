"""Doctor and hooks on a host with its own systemd, which is thrown away: a unit that drifted, a drop-in, and steps.

Skipped, with the reason, where no container can be booted.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddscope.trace import verify
from tests.integration.environments.venvs import MOVES, SPEC, SPEC_INFO, furnished
from tests.integration.host.container import NAME, Container, booted
from tests.integration.host.workbench import attached
from tests.tui.shell_support import until
from tests.unit.emit_support import wait_for

pytestmark = pytest.mark.slow

SERVER = """\
import http.server, json, os, sys, threading, time

def option(name): return sys.argv[sys.argv.index(name) + 1]

class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        told = {"speculative_algorithm": "EAGLE", "page_size": 1, "port": int(option("--port")), "model_path": "/m"}
        self.wfile.write(json.dumps(told).encode())

    def log_message(self, *words): pass

def steps():
    from ddscope_hooks.emit import Emitter

    emitter = Emitter("engine/0", {"format": "ddscope-trace", "version": "1.0", "min_reader": "1.0", "host": "ct129",
        "producer": {"name": "test", "version": "0"}}, token_text=lambda ids: [f" {one}" for one in ids])
    emitter.listen(os.environ["DDSCOPE"])
    emitter.emit("request", {"rid": "r1", "prompt_len": 3})
    n = 0
    while True:
        told = {"base": 3 + n, "root": n, "path": [0], "bonus": n + 1, "emitted": [n + 1]}
        emitter.emit("step", {"rid": "r1", "step": n, **told})
        n += 1
        time.sleep(0.02)

if os.environ.get("DDSCOPE"):
    threading.Thread(target=steps, daemon=True).start()
http.server.ThreadingHTTPServer(("127.0.0.1", int(option("--port"))), Answer).serve_forever()
"""
UNIT = """[Service]
Environment=CUDA_VISIBLE_DEVICES=0 "HF_TOKEN=hf_sEcReT"
ExecStart=/opt/venv/bin/python -m sglang.launch_server --model-path /m --port {port} --speculative-algorithm NEXTN
"""
PATH = "etc/systemd/system/sglang-qwen.service"


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    with booted(tmp_path_factory.mktemp("host")) as made:
        made.run("systemctl stop sglang-qwen.service", check=True)
        furnished(made, {"sglang/launch_server.py": SERVER})
        (made.root / PATH).write_text(UNIT.format(port=made.server_port))
        made.run("systemctl daemon-reload && systemctl start sglang-qwen.service", check=True)
        made.await_server()
        yield made


@pytest.fixture
def environ(box: Container, tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "DDSCOPE_SSH": " ".join(box.ssh), "XDG_CACHE_HOME": str(tmp_path / "cache")}


def ddscope(environ: dict[str, str], *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ddscope", *args], capture_output=True, text=True, timeout=300, env=environ
    )


def hashed(box: Container) -> str:
    """Of the environment and of systemd's folder, byte code left out, counted on the host."""
    done = box.run(
        "cd / && set -f && LESS='-not -path *__pycache__*' && WHERE='opt/venv etc/systemd/system' &&"
        " find $WHERE $LESS -printf '%p %M %l\\n' | sort | sha256sum;"
        " find $WHERE $LESS -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum",
        check=True,
    )
    return done.stdout


def main_pid(box: Container) -> str:
    return box.run("systemctl show -p MainPID --value sglang-qwen.service", check=True).stdout.strip()


def test_a_unit_that_was_edited_and_never_reloaded(box: Container, environ: dict[str, str]) -> None:
    unit = box.root / PATH
    before = unit.read_text()
    unit.with_name(unit.name + ".bak").write_text(before)
    wait_for(lambda: main_pid(box) != "0")
    try:
        unit.write_text(before.replace("NEXTN", "DDTREE").replace("DEVICES=0", "DEVICES=1"))
        done = ddscope(environ, "doctor", "--host", NAME, "--no-download", "--no-load", "--json")
        assert done.returncode == 1, done.stderr
        assert "sEcReT" not in done.stdout
        (one,) = json.loads(done.stdout)["hosts"]
        facts = {fact["name"]: fact["value"] for fact in one["facts"]}
        drift = facts["unit.drift"]
        assert drift["need_reload"] is True
        assert {row["what"] for row in drift["differ"]} == {"ExecStart", "Environment=CUDA_VISIBLE_DEVICES"}
        assert [backup["path"] for backup in drift["backups"]] == [f"/{PATH}.bak"]
        assert facts["server.args"]["requested"]["speculative_algorithm"] == "NEXTN"
        assert facts["server.args"]["effective"]["speculative_algorithm"] == "EAGLE"
    finally:
        unit.write_text(before)
        unit.with_name(unit.name + ".bak").unlink()
        box.run("systemctl daemon-reload", check=True)
    done = ddscope(environ, "doctor", "--host", NAME, "--no-download", "--no-load")
    assert "sglang-qwen.service runs as its files say" in done.stdout, done.stdout + done.stderr


async def test_install_enable_restart_attach_rollback(
    box: Container, environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, pid = hashed(box), main_pid(box)
    options = ["--host", NAME, "--yes"]
    for part in ("install", "enable"):
        done = ddscope(environ, "hooks", part, *options)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "systemctl restart sglang-qwen.service" in done.stdout and main_pid(box) == pid  # it was never restarted
    assert hashed(box) != before
    box.run("systemctl restart sglang-qwen.service", check=True)
    box.await_server()
    told = json.loads(ddscope(environ, "hooks", "status", "--host", NAME, "--json").stdout)
    assert told["installed"] == told["viewer"] and told["running"] == told["loaded"] != ""
    socket = told["running"].removeprefix("unix:").replace("%p", str(told["pid"]))
    wait_for(lambda: box.run(f"test -S {socket}").returncode == 0, "the socket of the hooks")
    assert box.run(f"stat -c '%a %U' $(dirname {socket})", check=True).stdout == "700 root\n"

    monkeypatch.setenv("DDSCOPE_SSH", environ["DDSCOPE_SSH"])
    out = tmp_path / "t.jsonl"
    async with attached(out, "--no-probe") as screen:  # nothing was said of a socket: it finds it
        store = screen.session.store
        await until(screen.pilot, lambda: store.totals().steps > 10, "steps")
        so_far = store.totals().steps
        await until(screen.pilot, lambda: store.totals().steps > so_far, "more steps: they stream")
        await until(screen.pilot, lambda: "● LIVE" in screen.headline and "Steps" in screen.text, "the screen")
        assert [status.state for status in screen.session.engines] == ["connected"]
        first = screen.session.engines[0].name

        await asyncio.to_thread(box.run, "systemctl restart sglang-qwen.service", True)

        def again() -> bool:  # the new process has another socket, and the old one is no longer spoken of
            return [(one.name != first, one.state) for one in screen.session.engines] == [(True, "connected")]

        await until(screen.pilot, again, "the new process")
        await until(screen.pilot, lambda: "lost" not in screen.headline, "the title")
    assert verify(out).problems == []

    back = ddscope(environ, "hooks", "rollback", *options)
    # The server compiled byte code of what it imported; a rollback takes that of the hooks with it.
    assert back.returncode == 0 and "Equal" in back.stdout, back.stdout + back.stderr
    assert box.run("find /opt/venv -path '*ddscope*'").stdout == ""
    assert hashed(box) == before
    command = next(line for line in back.stdout.splitlines() if "systemctl restart" in line).partition(":  ")[2]
    box.run(command, check=True)
    assert box.run("find /run/ddscope -mindepth 1").stdout == ""


def test_a_patched_file_is_found_and_put_back(box: Container, environ: dict[str, str]) -> None:
    site = next((box.root / "opt/venv/lib").glob("python3*")) / "site-packages"
    before = hashed(box)
    (site / (SPEC + ".bak")).write_text(SPEC_INFO)
    text = SPEC_INFO
    for was, now in MOVES:
        text = text.replace(was, now)
    (site / SPEC).write_text(text)
    done = ddscope(environ, "doctor", "--host", NAME, "--no-download", "--no-load")
    assert done.returncode == 1 and "3 members moved" in done.stdout
    # NEXTN is EAGLE: what DFLASH's predicate says now is not on the way that this server takes.
    assert "For EAGLE, which this server runs, it is false as before: not on its path" in " ".join(done.stdout.split())
    back = ddscope(environ, "hooks", "rollback", "--host", NAME, "--yes", "--no-download", "--file", SPEC)
    assert back.returncode == 0, back.stderr
    (site / (SPEC + ".bak")).unlink()
    assert hashed(box) == before
