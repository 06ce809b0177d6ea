"""The pictures of the README: the real workbench over real runs, headless, as SVG and PNG.

`python screenshots/make.py` makes all, `… make.py replay light` some. Traces that are not there yet are recorded first
by the embedded engine; the picture of a live run drives the engine while it is taken.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from textual.pilot import Pilot

from ddscope.diagnose import Diagnosis
from ddscope.session import Session
from ddscope.sources.engine_process import EngineProcess
from ddscope.tui.app import DdscopeApp
from ddscope.tui.screens.workbench import Workbench
from ddscope.tui.widgets.tree import DraftTree

HERE = Path(__file__).parent
TRACES = HERE / "traces"
RUN = "import sys; from ddscope.cli import main; sys.exit(main())"
FONT = "DejaVu Sans Mono"
PNG_WIDTH = 1700  # pixels
DEADLINE_S = 300.0


@dataclass(frozen=True)
class Recording:
    """A run of the embedded engine that a picture shows."""

    prompt: str
    options: tuple[str, ...] = ()


RECORDINGS = {
    "hash-table": Recording("What is a hash table?", ("--budget", "31", "--max-new-tokens", "96")),
    "nan-norm": Recording("What is a hash table?", ("--fault", "nan-norm", "--max-new-tokens", "24")),
    "final-layer-only": Recording("What is a hash table?", ("--fault", "final-layer-only", "--max-new-tokens", "24")),
}


@dataclass(frozen=True)
class Picture:
    """What is shown, how large, and which keys are pressed before.

    trace None: a live run, from step `steps` on as soon as a step accepts three tokens or more, so that a path is seen.
    host: instead, the throw-away host of the tests, whose server "serves" or "hangs".
    """

    trace: str | None
    size: tuple[int, int]
    keys: tuple[str, ...] = ()
    theme: str = "dark"
    at: int | None = None
    steps: int = 12
    host: str = ""


PICTURES = {
    "live": Picture(None, (140, 46)),
    "replay": Picture("hash-table", (140, 46), at=13),
    "token-flood": Picture("nan-norm", (140, 46), ("2", "enter")),
    "shape-mismatch": Picture("final-layer-only", (140, 40), ("2", "enter")),
    "light": Picture("hash-table", (120, 40), ("4",), theme="light", at=6),
    "80x24": Picture("hash-table", (80, 24), at=0),
    "attach": Picture(None, (140, 40), ("1",), host="serves"),
    "not-serving": Picture(None, (140, 40), ("5",), host="hangs"),
}


def record(name: str) -> Path:
    """The trace of a recording; run by the engine when it is not there."""
    path = TRACES / f"{name}.jsonl"
    if path.exists():
        return path
    TRACES.mkdir(exist_ok=True)
    print(f"recording {path.name} …", flush=True)
    recording = RECORDINGS[name]
    command = [sys.executable, "-c", RUN, "run", "--headless", "--prompt", recording.prompt]
    done = subprocess.run(
        [*command, *recording.options, "--out", str(path)], capture_output=True, text=True, check=False
    )
    # 1: a request failed or something was found, which is what faults are for.
    if done.returncode not in (0, 1) or not path.exists():
        raise SystemExit(f"The engine could not record {name}: {(done.stderr or done.stdout).strip().splitlines()[-1]}")
    return path


async def until(pilot: Pilot[None], condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition; end with a sentence when it does not come."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"Gave up after {DEADLINE_S:.0f} s: {what} did not come.")
        await pilot.pause(0.05)
    await pilot.pause()


def worth_showing(bench: Workbench, steps: int) -> bool:
    """Whether the tree on the screen has a path to look at."""
    view = bench.query_one(DraftTree).view
    return view is not None and view.step >= steps and (view.accepted or 0) >= 3


async def shoot(session: Session, picture: Picture, diagnosis: Diagnosis | None) -> str:
    """The screen as SVG once everything that is there is on it."""
    app = DdscopeApp(session, theme=picture.theme, diagnosis=diagnosis)
    async with app.run_test(size=picture.size) as pilot:
        await until(pilot, lambda: isinstance(app.screen, Workbench), "the workbench")
        bench = app.screen
        assert isinstance(bench, Workbench)
        if picture.host:
            await until(pilot, lambda: host_shown(session, picture.host), f"a host that {picture.host}")
            app.clear_notifications()
        elif picture.trace is None:
            await until(pilot, lambda: worth_showing(bench, picture.steps), f"a deep step from step {picture.steps} on")
        else:
            await until(pilot, lambda: session.settled and bench.diagnosing.caught_up, "the end of the trace")
            await until(pilot, lambda: bench.first is None and bench.journal.entries.complete, "the whole journal")
        for key in picture.keys:
            await pilot.press(key)
            await pilot.pause()
        return app.export_screenshot(title="ddscope")


def host_shown(session: Session, state: str) -> bool:
    """Whether everything of a host is there to be looked at: all rungs, or the failing one with stacks."""
    rungs = {row.rung: row.ok for row in session.store.probes()}
    if state == "serves":
        return len(rungs) >= 5 and all(rungs.values()) and len(session.store.logs()) > 5
    compared = [view for view in session.store.stacks() if view.before_t is not None]
    return rungs.get("generate") is False and len(compared) > 1


def hosted(picture: Picture) -> str:
    """A picture of a server on a host: a container with its own systemd, by a real ssh; see tests/integration/host."""
    sys.path.insert(0, str(HERE.parent))
    from ddscope.remote.attached import AttachedHost, Wanted
    from tests.integration.host.container import NAME, Container, missing

    if why := missing():
        raise SystemExit(f"There is no host to take a picture of: {why}.")
    diagnosis = Diagnosis()
    with TemporaryDirectory() as folder, Container(Path(folder)) as box:
        wanted = Wanted(health_every=2.0, probe_every=3.0, probe_timeout=4.0)
        attached = AttachedHost(NAME, wanted, ssh=box.ssh)
        if picture.host == "hangs":
            box.run("systemctl kill --signal=USR2 --kill-whom=main sglang-qwen", check=True)
        out = Path(folder) / "host.jsonl"
        with Session.run(hosts=[attached], out=out, observers=[diagnosis.observe]) as session:
            return asyncio.run(shoot(session, picture, diagnosis))


def make(picture: Picture) -> str:
    """Any picture."""
    if picture.host:
        return hosted(picture)
    return live(picture) if picture.trace is None else replayed(picture)


def replayed(picture: Picture) -> str:
    """A picture of a recording."""
    assert picture.trace is not None
    with Session.replay(record(picture.trace), at=picture.at, use_sidecar=False) as session:
        return asyncio.run(shoot(session, picture, None))


def live(picture: Picture) -> str:
    """A picture of the engine at work."""
    diagnosis = Diagnosis()
    with TemporaryDirectory() as folder, EngineProcess(["--budget", "31"]) as engine:
        engine.start(lambda *_: None)
        out = Path(folder) / "live.jsonl"
        with Session.run(engine.socket, out=out, log_files=[engine.log], observers=[diagnosis.observe]) as session:
            session.control("submit", rid="r1", prompt="What is a hash table?", max_new_tokens=128)
            return asyncio.run(shoot(session, picture, diagnosis))


def portable(svg: str) -> str:
    """Textual's SVG for any renderer: no web font, an installed monospace one, spaces kept so that columns stand."""
    svg = re.sub(r"@font-face\s*\{[^}]*\}", "", svg)
    svg = svg.replace("Fira Code", FONT)
    return svg.replace("<text ", '<text xml:space="preserve" ')


def write(name: str, svg: str, converter: str | None) -> None:
    """NAME.svg, and NAME.png where there is a converter."""
    path = HERE / f"{name}.svg"
    path.write_text(portable(svg), encoding="utf-8")
    made = path.name
    if converter is not None:
        png = path.with_suffix(".png")
        subprocess.run([converter, "-w", str(PNG_WIDTH), str(path), "-o", str(png)], check=True)
        made += f" and {png.name}"
    print(f"wrote {made}", flush=True)


def main() -> None:
    """Make the pictures that are asked for."""
    parser = argparse.ArgumentParser(description="Make the pictures of the README from real runs.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PICTURES)}; all of them by default")
    names = parser.parse_args().names or list(PICTURES)
    unknown = [name for name in names if name not in PICTURES]
    if unknown:
        raise SystemExit(f"There is no picture {unknown[0]!r}; there are {', '.join(PICTURES)}.")
    os.environ["TZ"] = "UTC"
    time.tzset()
    converter = shutil.which("rsvg-convert")
    if converter is None:
        print("rsvg-convert is not installed (package librsvg2-bin), so only the SVG files are made.")
    for name in names:
        picture = PICTURES[name]
        write(name, make(picture), converter)


if __name__ == "__main__":
    main()
