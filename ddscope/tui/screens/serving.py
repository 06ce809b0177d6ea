"""Actions on a server that is not ours: what it records, flushing, a recording on its host. It is never paused.

What the screen shows of a server is what it said in its records; a command that it refuses comes back as a record too.
"""

from __future__ import annotations

from typing import Any

from ddscope.session import RankView
from ddscope.tui.screens.ask import Ask
from ddscope.tui.screens.bench import Bench
from ddscope.tui.screens.details import ServerDetails
from ddscope.tui.screens.sampling import SamplingSettings

NO_CONTROL = (
    "This server takes no commands from viewers: it was started without DDSCOPE_CONTROL=1. "
    "Set that in its environment and start it again."
)


class ServingActions(Bench):
    """Bound only where servers are attached, but for the details, which a recording has too."""

    _recording = ""  # the file that the host was asked to write

    def ranks(self) -> list[RankView]:
        """What the ranks said of themselves, wherever the time cursor stands."""
        return self.store.ranks()

    def why_no_command(self) -> str:
        """Why a command would not be taken; empty when it would."""
        told = [rank.sampling for rank in self.ranks() if rank.sampling is not None]
        if not told:
            return "This server has not said whether it takes commands: wait until its first records have come."
        return "" if any(sampling.control for sampling in told) else NO_CONTROL

    def _may_command(self) -> bool:
        why = self.why_no_command()
        if why:
            self.say(why, "warning")
        return not why

    def action_sampling(self) -> None:
        """Ask what the server is to record."""
        if not self._may_command():
            return
        now = next(rank.sampling for rank in self.ranks() if rank.sampling is not None)

        def apply(changes: dict[str, Any] | None) -> None:
            if changes:
                self.command("sampling", **changes)

        self.app.push_screen(SamplingSettings(now), apply)

    def action_flush(self) -> None:
        """Ask the server to send what it holds back."""
        if self._may_command():
            self.command("flush")
            self.say("Asked the server to flush.")

    def action_record_on_host(self) -> None:
        """Start a trace file on the server's host, or stop it."""
        if not self._may_command():
            return
        if self._recording:
            self.command("record_stop")
            self.say(f"Asked the server to stop writing {self._recording}.")
            self._recording = ""
            return
        several = len(self.ranks()) > 1
        said = (
            "The server writes what it tells into this file on its own host, whether or not a viewer is there. "
            f"%p is the process, %r the rank{': there are several, so one of them is needed' if several else ''}. "
            "An empty line stops a recording that runs."
        )

        def check(text: str) -> str:
            if not text:
                return ""
            if not text.startswith("/") or not text.endswith(".jsonl"):
                return "Give an absolute path that ends in .jsonl: the server's own folder is not this one's."
            if several and "%p" not in text and "%r" not in text:
                return "Several ranks cannot write one file: put %r into its name."
            return ""

        def begin(path: str | None) -> None:
            if path == "":
                self.command("record_stop")
            elif path:
                self._recording = path
                self.command("record", path=path)
                self.say(f"Asked the server to write {path}. The same key stops it.")

        value = "/tmp/ddscope-%r.jsonl" if several else "/tmp/ddscope.jsonl"
        self.app.push_screen(Ask("Record on the server's host", value=value, said=said, check=check), begin)

    def action_dump_stacks(self) -> None:
        """Ask for the stacks of the server's processes, and show where they come."""
        if self.session.take_stacks():
            self.say("Asked for the stacks; py-spy never stops the server.")
            self.show_pane("stacks")
        else:
            self.say("No stacks: no process of a server is watched, or its host is not connected.", "warning")

    def action_hooks(self) -> None:
        """Taps, sampling, versions and losses of every rank."""
        self.app.push_screen(ServerDetails(self.ranks, self.session))
