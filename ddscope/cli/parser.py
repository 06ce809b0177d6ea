"""The parser: every command and option, and nothing that is slow to import."""

from __future__ import annotations

import argparse

from ddscope import __version__
from ddscope.cli import attach, completion, doctor, findings, hooks, record, replay, run, trace


def build_parser() -> argparse.ArgumentParser:
    """The parser. Each command sets `run`, a function of the parsed arguments that returns an exit status."""
    parser = argparse.ArgumentParser(
        prog="ddscope",
        description="A debugger for tree speculative decoding: what the drafter proposed, what the target verified, "
        "what was accepted, and why the rest was not.",
    )
    parser.add_argument("--version", action="version", version=f"ddscope {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in (run, attach, record, replay, trace, findings, doctor, hooks, completion):
        module.add(commands)
    return parser
