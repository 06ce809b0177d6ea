"""Why a pane is empty and what to do, in a sentence or two: the words of panes that have nothing to show."""

from __future__ import annotations

from ddscope.session import EngineState, Session


def steps_reason(session: Session, state: EngineState) -> str:
    """Why there is no step."""
    if session.trouble:
        return session.trouble
    failed = [row for row in session.store.requests() if row.state == "error"]
    if failed and session.store.totals().steps == 0:
        why = session.store.facts().get("engine.error")
        said = f" {why['message']}." if isinstance(why, dict) and isinstance(why.get("message"), str) else ""
        return f"No step was made: request {failed[-1].rid} ended with an error.{said} The findings say more."
    if not session.is_live:
        indexed, size = session.store.progress
        if indexed < size:
            return "The trace is being indexed; its steps come as they are found."
        return "This trace has no steps: it holds logs and facts only, or it ended before the first target forward."
    if session.can_control:
        if state.state == "unknown":
            return "The engine is starting: it loads the target and the drafter, which takes a few seconds."
        if state.state == "idle":
            return "No request has run yet. Press i and type a prompt."
        if state.state in ("paused", "break"):
            return "The engine is paused before the first step. Press s for one step, e to let it run."
        return "The prompt is being read (prefill); the first tree comes with the first target forward."
    lost = [status for status in session.sources if status.name == "engine" and status.reason]
    return lost[0].reason if lost else "No steps yet: the hook is loaded, no request has run."


def journal_reason(session: Session) -> str:
    """Why there is no log line."""
    logs = [status for status in session.sources if status.name.startswith(("journal/", "log/"))]
    if logs:
        said = [f"{status.name}: {status.reason or 'no line has come yet'}" for status in logs]
        return "\n".join(said)
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


def tensors_reason(session: Session) -> str:
    """Why there is no tensor."""
    if session.store.n == 0:
        return "No tensors yet: the engine tells each one when it first enters a module."
    return "No tensors were told by this source. The embedded engine and the SGLang hook tell the drafter's inputs."


def timing_reason(session: Session, state: EngineState) -> str:
    """Why there is no stage time."""
    if session.store.totals().steps == 0:
        return steps_reason(session, state)
    return "The steps of this trace carry no times: their source did not measure stages."


def stacks_reason(session: Session) -> str:
    """Why there are no stacks."""
    where = "The embedded engine" if session.can_control else "This trace"
    return (
        f"{where} has no stack dumps. They are taken with py-spy from a server: attach to a server to see where each "
        "of its threads stands, on demand and by itself when it stalls."
    )
