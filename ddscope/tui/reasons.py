"""Why a pane is empty and what to do, in a sentence or two: the words of panes that have nothing to show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ddscope.model import Step
from ddscope.session import EngineState, RankView, Session
from ddscope.session.tokens import visible
from ddscope.tui import laddering


class Why(NamedTuple):
    """Why there is nothing. full: with what to do, said in one place; few: in a few words, for the other panes."""

    full: str
    few: str


def steps_why(session: Session, state: EngineState) -> Why:
    """Why there is no step."""
    if session.trouble:
        return Why(session.trouble, "the recording has stopped")
    failed = [row for row in session.store.requests() if row.state == "error"]
    if failed and session.store.totals().steps == 0:
        why = session.store.facts().get("engine.error")
        said = f" {why['message']}." if isinstance(why, dict) and isinstance(why.get("message"), str) else ""
        full = f"No step was made: request {failed[-1].rid} ended with an error.{said} The findings say more."
        return Why(full, f"request {failed[-1].rid} ended with an error")
    if not session.is_live:
        indexed, size = session.store.progress
        if indexed < size:
            return Why("The trace is being indexed; its steps come as they are found.", "the trace is being indexed")
    if session.store.totals().steps and not session.can_control:
        return Why("This request has made no step by this moment.", "none by this moment")
    if not session.is_live:
        return hooks_why(session.store.ranks()) or Why(
            "This trace has no steps: it holds logs and facts only, or it ended before the first target forward.",
            "the trace has no steps",
        )
    if session.can_control:
        return _engine_why(state)
    if session.hosts and (told := _host_why(session)):
        return told
    engines = session.engines
    if engines and not any(status.state == "connected" for status in engines):
        full = next((status.reason for status in engines if status.reason), "The server is not connected yet.")
        return Why(full, "the server is not connected")
    if session.attached:
        return hooks_why(session.store.ranks()) or Why(
            "The server is connected, and no request has run a step since. Steps come with the next request.",
            "nothing has run since",
        )
    return Why("No steps yet: the hook is loaded, no request has run.", "nothing has run")


def steps_reason(session: Session, state: EngineState) -> str:
    """Why there is no step, in full."""
    return steps_why(session, state).full


def brief_reason(what: str, session: Session, state: EngineState) -> str:
    """For a pane beside the one that says it in full. what: is missing there."""
    return f"No {what}: {steps_why(session, state).few}."


def tree_reason(session: Session, state: EngineState) -> str:
    """Why there is no tree; of a host its whole ladder, too."""
    hosts = session.store.hosts() if not session.store.totals().steps else []
    rungs = laddering.lines(hosts)
    if not rungs:
        return steps_reason(session, state)
    # The rung that fails says what was seen; above it stands what that means.
    why = laddering.meaning(hosts) if session.is_live and not session.trouble else ""
    return f"{why or steps_reason(session, state)}\n\n{rungs}"


def _host_why(session: Session) -> Why | None:
    """Why a host gives no step; None when its hooks are connected and every rung holds."""
    hosts = session.store.hosts()
    failing = laddering.failing(hosts)
    if failing is not None:
        return Why(laddering.sentence(hosts), f"{failing[1].rung} fails")
    lost = [host.watch.reason for host in session.hosts if host.watch is not None and host.watch.state == "lost"]
    if lost:
        return Why(lost[0], "the connection is lost")
    if not session.engines:
        name = session.hosts[0].name
        full = (
            f"The server on {name} runs without hooks of ddscope, so it tells no steps: its journal, health and stacks "
            f"are shown. `ddscope hooks status --host {name}` says what is missing."
        )
        return Why(full, "the server has no hooks")
    return None


def _engine_why(state: EngineState) -> Why:
    """Why our own engine has made no step."""
    if state.state == "unknown":
        full = "The engine is starting: it loads the target and the drafter, which takes a few seconds."
        return Why(full, "the engine is starting")
    if state.state == "idle":
        return Why("No request has run yet. Press i and type a prompt.", "press i and type a prompt")
    if state.state in ("paused", "break"):
        full = "The engine is paused before the first step. Press s for one step, e to let it run."
        return Why(full, "the engine is paused")
    full = "The prompt is being read (prefill); the first tree comes with the first target forward."
    return Why(full, "the prompt is being read")


def hooks_why(ranks: Sequence[RankView]) -> Why | None:
    """Why the hooks of a server give no step; None when nothing they told explains it."""
    if not ranks:
        return None
    if all(rank.follower for rank in ranks):
        names = ", ".join(rank.src for rank in ranks)
        full = (
            f"Only {names} is attached, which tells counts: the trees come from the first rank. Attach its socket too."
        )
        return Why(full, "the first rank is not attached")
    telling = [rank for rank in ranks if not rank.follower]
    told = [rank for rank in telling if rank.taps is not None]
    if told and not any(tap.live for rank in told for tap in rank.taps or ()):
        missing = [tap for rank in told for tap in rank.missing]
        why = f": {missing[0].tap}: {missing[0].why}" if missing and missing[0].why else ""
        return Why(f"No tap of this server is live{why}. H shows all of them.", "no tap is live")
    sampling = next((rank.sampling for rank in telling if rank.sampling is not None), None)
    if sampling is not None and sampling.every == 0:
        full = "The server records no steps: sampling is off (every 0). S changes it where the server takes commands."
        return Why(full, "sampling is off")
    if sampling is not None and sampling.rid:
        full = f"The server records only requests whose id begins with {sampling.rid!r}. S changes it."
        return Why(full, f"only requests {sampling.rid}… are recorded")
    return None


def algorithm_of(session: Session, step: Step | None) -> str:
    """What the step's algorithm is called, or the server's."""
    if step is not None and step.algorithm:
        return step.algorithm
    ranks = [rank for rank in session.store.ranks() if rank.engine is not None]
    return next((rank.engine.algorithm for rank in ranks if rank.engine is not None and not rank.follower), "")


def bare_reason(session: Session, step: Step | None) -> str:
    """Why a step has no tree; empty when it has one."""
    if step is None or step.tree is not None:
        return ""
    told = [rank for rank in session.store.ranks() if rank.taps is not None]
    if not told:
        return "This step's record holds no tree: the source told none."
    if step.emitted is None:
        return "This step has no tree: the hooks of the server leave token ids out (DDSCOPE_REDACT=ids)."
    name = algorithm_of(session, step)
    tap = f"the server's {name} tap" if name else "the server's tap"
    missing = [tap for rank in told if not rank.follower for tap in rank.missing]
    more = f" Missing: {', '.join(tap.tap for tap in missing)} (H says why)." if missing else ""
    return f"This step has no tree: {tap} reveals none, only what was emitted.{more}"


def text_reason(session: Session, state: EngineState, steps: int) -> str:
    """Why there is no text. steps: of the request, so far."""
    if not steps:
        return brief_reason("text", session, state)
    return (
        f"The {steps:,} steps of this request tell no token ids: the hooks leave them out (DDSCOPE_REDACT=ids), or "
        "their tap reveals none."
    )


def curve_reason(session: Session, state: EngineState) -> str:
    """Why there is no depth curve."""
    if session.store.totals().steps == 0:
        return brief_reason("curve", session, state)
    name = algorithm_of(session, None)
    whose = f"The server's {name} tap" if name and session.store.facts().get("hooks.taps") else "The source"
    return f"{whose} does not tell which drafted tokens were accepted, so there is no curve."


def journal_reason(session: Session) -> str:
    """Why there is no log line."""
    logs = [status for status in session.sources if status.name.startswith(("journal/", "log/"))]
    if logs:
        said = [f"{status.name}: {status.reason or 'no line has come yet'}" for status in logs[:4]]
        return "\n".join(said)
    if session.is_live and session.hosts:
        servers = [host.server for host in session.store.hosts()]
        command = next((str(server["log_command"]) for server in servers if server.get("log_command")), "")
        if command:
            return (
                "No log is read: the server runs in a container and belongs to no systemd unit. Start again with "
                f"--log-command '{visible(command)}'."
            )
        return (
            "No log is read: the server belongs to no systemd unit. Start again with --log-file FILE (on its host), or "
            "with --log-command COMMAND."
        )
    if session.is_live:
        return (
            "No log is being read. Start with --unit NAME for the journal of a local systemd unit, "
            "or with --log-file FILE for a file; its lines then stand on the same time axis as the steps."
        )
    return "No log lines were recorded: the run was started without --unit and without --log-file."


def findings_reason(seen: int, total: int) -> str:
    """Why there is no finding."""
    if total == 0:
        return "Nothing to judge yet: no record has come."
    if seen < total:
        return f"Nothing found so far; {seen:,} of {total:,} records looked at."
    return f"Nothing wrong was found in {total:,} records."


def node_reason(session: Session, state: EngineState) -> str:
    """Why there is no node."""
    if session.store.totals().steps == 0:
        return brief_reason("node", session, state)
    return "No node: there is no tree under the time cursor."


def tensors_reason(session: Session) -> str:
    """Why there is no tensor."""
    if session.store.n == 0:
        return "No tensors yet: the engine tells each one when it first enters a module."
    name = algorithm_of(session, None)
    if session.store.facts().get("hooks.taps"):
        tap = f"the server's {name} tap" if name else "the server's taps"
        return f"No tensors were told: {tap} reveals none, or no request has run yet. H shows the taps."
    return "No tensors were told by this source. The embedded engine and the SGLang hook tell the drafter's inputs."


def timing_reason(session: Session, state: EngineState) -> str:
    """Why there is no stage time."""
    if session.store.totals().steps == 0:
        return brief_reason("times", session, state)
    return "The steps of this trace carry no times: their source did not measure stages."


def stacks_reason(session: Session, key: str = "") -> str:
    """Why there are no stacks. key: that takes them."""
    refused = session.store.facts().get("stack.refused")
    if isinstance(refused, dict) and isinstance(refused.get("why"), str):
        return f"No stacks: {refused['why']}."
    if session.hosts:
        return f"No stacks were taken yet. {key} takes them now; they are taken by themselves when the server stalls."
    if session.attached:
        return (
            "No stack dump was taken of this server. On its host, `py-spy dump --pid PID` shows where each of its "
            "threads stands."
        )
    where = "The embedded engine" if session.can_control else "This trace"
    return (
        f"{where} has no stack dumps: they are taken with py-spy. On a server's host, `py-spy dump --pid PID` shows "
        "where each of its threads stands."
    )
