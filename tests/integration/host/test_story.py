"""The story that this tool was born from, on a host with its own systemd, journald and sshd, from attach to the repair.

A DDTREE server without hidden states prints "!" only. The old NEXTN service is restored: its unit is active, /health
answers, its log shows a traceback of torchcodec, and four tokens do not come.
"""

from __future__ import annotations

import asyncio
import json
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddscope.cli import main
from ddscope.trace import verify
from tests.integration.environments.venvs import KEEPS, SPEC, SPEC_INFO, furnished
from tests.integration.host.container import NAME, SITE, Container, booted
from tests.integration.host.workbench import attached
from tests.tui.shell_support import until
from tests.unit.emit_support import wait_for

pytestmark = pytest.mark.slow

HOOKS = Path(__file__).parents[3] / "engine_hooks" / "ddscope_hooks"
UNIT = "sglang-qwen.service"
TEXT = """[Service]
RuntimeDirectory=ddscope
Environment=DDSCOPE=unix:/run/ddscope/%%p.sock
ExecStart=/opt/venv/bin/python -m sglang.launch_server --model-path Qwen/Qwen3-8B --port {port} \\
  --speculative-algorithm {algorithm}
"""
SAY_HI = """
import json, urllib.request
body = {{"text": "Say hi.", "sampling_params": {{"max_new_tokens": {count}, "temperature": 0}}}}
url = "http://127.0.0.1:{port}/generate"
print(urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode()), timeout={timeout}).read().decode())
"""
HEADLINE_S = 60.0
MADE_IT = {"shape.mismatch", "output.token_flood"}


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    """The host as it was found: files patched by hand, the DDTREE unit, the old one beside it."""
    with booted(tmp_path_factory.mktemp("host")) as made:
        made.run(f"systemctl stop {UNIT}", check=True)
        venv = furnished(
            made,
            {
                "sglang/launch_server.py": Path(__file__).with_name("story_server.py").read_text(),
                "sglang/service.py": (SITE / "sglang" / "launch_server.py").read_text(),
            },
        )
        shutil.copytree(HOOKS, venv.site / "ddscope_hooks", ignore=shutil.ignore_patterns("__pycache__"))
        venv.patch(SPEC, *KEEPS)
        (venv.site / (SPEC + ".bak")).write_text(SPEC_INFO)
        unit = made.root / "etc/systemd/system" / UNIT
        unit.write_text(TEXT.format(port=made.server_port, algorithm="DDTREE"))
        unit.with_name("old").write_text(TEXT.format(port=made.server_port, algorithm="NEXTN"))
        made.run(f"systemctl daemon-reload && systemctl start {UNIT}", check=True)
        made.await_server()
        yield made


def say_hi(box: Container, count: int, timeout: float) -> subprocess.CompletedProcess[str]:
    """What a person tries first."""
    script = SAY_HI.format(port=box.server_port, count=count, timeout=timeout)
    return box.run(f"python3 -c '{script}'")


def restore_the_old_service(box: Container) -> None:
    folder = "/etc/systemd/system"
    box.run(f"mv {folder}/old {folder}/{UNIT} && systemctl daemon-reload && systemctl restart {UNIT}", check=True)


async def from_attach_to_the_headline(box: Container, out: Path) -> None:
    """What a person does in front of the workbench, and what it says."""
    begun = time.monotonic()
    async with attached(out, "--probe-timeout", "5") as screen:
        pilot, store = screen.pilot, screen.session.store
        await until(pilot, lambda: store.totals().steps > 0, "steps of the probe")
        said = await asyncio.to_thread(say_hi, box, 8, 60)
        assert json.loads(said.stdout)["text"] == "!!!!!!!!", said.stderr
        await until(pilot, lambda: screen.found.keys() >= MADE_IT, "what made the !")
        text = await screen.opened("shape.mismatch", "hidden states are not captured for this algorithm")
        assert "draft.target_hidden is [12, 5120], expected [any, 25600]" in text

        await asyncio.to_thread(restore_the_old_service, box)
        left = HEADLINE_S - (time.monotonic() - begun)
        await until(pilot, lambda: "generate: no answer for" in screen.headline, "the headline", left)
        await until(pilot, lambda: "serve.alive_not_serving" in screen.found, "the finding", left)

        assert (await asyncio.to_thread(say_hi, box, 4, 1)).returncode != 0
        text = await screen.opened("serve.alive_not_serving", "health answers: /health answers 200")
        assert "no answer for 5 s to a request for 4 tokens" in text
        assert "a server that is still starting: this run has said that it is ready" in text
        await until(pilot, lambda: len(store.stacks()) > 0, "stacks, by themselves")


def told(trace: Path, doctor: Path, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """What `ddscope findings` says of the trace and the doctor's facts together."""
    capsys.readouterr()
    assert main(["findings", "--json", str(trace), str(doctor)]) == 1
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return found


async def test_the_story(
    box: Container, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DDSCOPE_SSH", " ".join(box.ssh))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    trace, doctor = tmp_path / "t.jsonl", tmp_path / "doctor.jsonl"
    await from_attach_to_the_headline(box, trace)
    assert verify(trace).problems == []
    wait_for(lambda: not box.run("ls /tmp | grep ddscope; pgrep -af 'python.*-c'").stdout, "nothing of ours there")

    assert main(["doctor", "--host", NAME, "--no-download", "--no-load", "-o", str(doctor)]) == 1
    found = {finding["id"]: finding for finding in told(trace, doctor, capsys)}
    assert list(found)[:2] == ["shape.mismatch", "serve.alive_not_serving"]
    assert found.keys() == {
        "shape.mismatch", "output.token_flood", "serve.alive_not_serving", "skew.files", "startup.optional_import",
    }  # fmt: skip
    assert "one layer given, five expected" in found["shape.mismatch"]["title"]
    assert found["serve.alive_not_serving"]["kind"] == "generate"
    noise = found["startup.optional_import"]
    assert noise["severity"] == "info" and "torchcodec" in noise["title"] and "libavutil.so.60" in noise["detail"]

    files = found["skew.files"]
    ruled = {one["what"]: one["why"] for one in files["ruled_out"]}
    assert "NEXTN (which is EAGLE)" in ruled["is_dflash as the cause"]
    assert "model_runner.py:3 ModelRunner.capture" in ruled["is_dflash as the cause"]
    assert "the members that were there kept theirs" in ruled["enum values that moved"]
    assert SPEC in files["title"] and NAME in files["title"]

    command = next(todo for todo in files["next"] if todo.startswith("Put the files back: ")).partition(": ddscope ")[2]
    assert main([*shlex.split(command), "--yes", "--no-download"]) == 0
    assert (box.root / "opt/venv/lib").glob(f"python3*/site-packages/{SPEC}").__next__().read_text() == SPEC_INFO
