"""A live run: the engine process, the session that records it, and either the workbench or the headless front end."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddscope.cli.errors import CommandError
from ddscope.cli.progress import Progress, progress_for
from ddscope.cli.run import engine_options
from ddscope.diagnose import Diagnosis, render_text
from ddscope.session import Session, Store
from ddscope.sources import SourceError
from ddscope.sources.engine_process import EngineProcess, EngineProcessError
from ddscope.trace import TraceError

if TYPE_CHECKING:
    from ddscope.cli.summary import Summary

POLL_S = 0.5
"""Seconds between two looks at whether the engine is still alive."""


@contextlib.contextmanager
def _engine(args: argparse.Namespace, progress: Progress) -> Iterator[EngineProcess]:
    with EngineProcess(engine_options(args)) as engine:
        try:
            engine.start(progress.loading)
        except EngineProcessError as problem:
            raise CommandError(str(problem)) from None
        finally:
            progress.loaded()
        yield engine


def _session(args: argparse.Namespace, engine: EngineProcess, diagnosis: Diagnosis) -> Session:
    if args.out is not None and args.out.exists() and args.out.stat().st_size:
        raise CommandError(f"{args.out} exists and is not empty; give --out another name, so that nothing is lost.")
    log_files = [engine.log] + ([args.log_file] if args.log_file is not None else [])
    try:
        return Session.run(
            engine.socket,
            out=args.out,
            units=[args.unit] if args.unit else [],
            log_files=log_files,
            observers=[diagnosis.observe],
        )
    except TraceError as problem:
        raise CommandError(str(problem)) from None


def _submit(session: Session, prompts: Sequence[dict[str, Any]]) -> list[str]:
    rids = [f"r{number}" for number in range(1, len(prompts) + 1)]
    try:
        for rid, prompt in zip(rids, prompts, strict=True):
            session.control("submit", rid=rid, **prompt)
    except SourceError as problem:
        raise CommandError(str(problem)) from None
    return rids


def run_workbench(args: argparse.Namespace, prompts: Sequence[dict[str, Any]]) -> int:
    """The workbench on a live engine. Says afterwards where the recording is."""
    diagnosis = Diagnosis()
    with _engine(args, progress_for(screen=True)) as engine:
        with _session(args, engine, diagnosis) as session:
            _submit(session, prompts)
            from ddscope import tui

            tui.run(session, diagnosis=diagnosis, theme=args.theme)
        print(f"Recorded: {session.path}\nOpen it again with: ddscope replay {session.path}")
    return 0


def run_headless(args: argparse.Namespace, prompts: Sequence[dict[str, Any]]) -> int:
    """Run the prompts, print what came of them. 1 where a request failed or a detector found a fault, else 0."""
    from ddscope.cli.summary import summarise

    diagnosis = Diagnosis()
    progress = progress_for(screen=False)
    interrupted = False
    with _engine(args, progress) as engine, _session(args, engine, diagnosis) as session:
        rids = _submit(session, prompts)
        try:
            _await(session, engine, rids, progress, args.max_new_tokens)
        except KeyboardInterrupt:
            interrupted = True
        progress.done()
        session.finish()
        summary = summarise(session.store, session.ask(diagnosis.findings), session.path)
    _print(summary, as_json=args.json, kept=args.out)
    if interrupted:
        return 130
    failed = any(request.state == "error" for request in summary.requests)
    return 1 if failed or any(finding.severity != "info" for finding in summary.findings) else 0


def _await(session: Session, engine: EngineProcess, rids: list[str], progress: Progress, limit: int) -> None:
    """Until every request has finished; CommandError when the engine or the recording ends before that."""
    while True:
        states = _states(session.store, rids)
        progress.requests(states, limit)
        if all(state in ("finished", "error") for state, _ in states.values()):
            return
        if not engine.alive:
            raise CommandError(
                f"The engine ended with exit status {engine.exit_status} before the requests did; "
                f"what it had sent is kept in {session.path}."
            )
        if session.trouble is not None:
            raise CommandError(session.trouble)
        version = session.version
        session.wait_for(lambda _, version=version: session.version != version, POLL_S)  # type: ignore[misc]


def _states(store: Store, rids: list[str]) -> dict[str, tuple[str, int]]:
    """State and emitted tokens of each request, waiting ones included."""
    states = dict.fromkeys(rids, ("waiting", 0))
    for row in store.requests():
        if row.rid in states:
            states[row.rid] = (row.state, row.emitted + (row.steps > 0))  # the prefill's token is in no step
    return states


def _print(summary: Summary, *, as_json: bool, kept: Path | None) -> None:
    if as_json:
        sys.stdout.write(json.dumps(summary.to_json(), ensure_ascii=False) + "\n")
        return
    from rich.console import Console

    from ddscope.cli.tables import run_summary
    from ddscope.cli.text import printable

    for request in summary.requests:
        print(f"── {printable(request.rid)} " + "─" * 60)
        print(printable(request.text))
    run_summary(Console(), summary)
    print(render_text(summary.findings), end="")
    if kept is None:
        print(f"Recorded: {summary.trace}")
