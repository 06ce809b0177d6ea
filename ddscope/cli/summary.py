"""What a headless run ends with: numbers of the whole run as plain values. Printing is `ddscope.cli.tables`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddscope.diagnose import Finding, to_json
from ddscope.session import Store
from ddscope.session.views import Curve, RequestRow, Timing


@dataclass(frozen=True)
class RequestSummary:
    """One request: its text, and how it went. tokens_per_s counts the whole request, prefill included."""

    rid: str
    text: str
    tokens: int
    steps: int
    tau: float | None
    tokens_per_s: float | None
    state: str
    reason: str | None


@dataclass(frozen=True)
class Summary:
    """A run: its requests in order, and the numbers over all of them."""

    requests: list[RequestSummary]
    curve: Curve
    timing: Timing
    dropped: int
    findings: list[Finding]
    trace: Path

    @property
    def steps(self) -> int:
        """Target forwards of all requests."""
        return sum(request.steps for request in self.requests)

    @property
    def tau(self) -> float | None:
        """Mean emitted per target forward over all steps; None without steps."""
        emitted = sum(request.tau * request.steps for request in self.requests if request.tau is not None)
        return emitted / self.steps if self.steps else None

    @property
    def tokens_per_s(self) -> float | None:
        """All tokens over the sum of the requests' times; None without tokens."""
        timed = [request for request in self.requests if request.tokens_per_s]
        seconds = sum(request.tokens / (request.tokens_per_s or 1) for request in timed)
        return sum(request.tokens for request in timed) / seconds if seconds else None

    def to_json(self) -> dict[str, Any]:
        """One object: text (of the only request, else a list), τ, tokens/s, depth curve, findings, requests, trace."""
        texts = [request.text for request in self.requests]
        return {
            "text": texts[0] if len(texts) == 1 else texts,
            "tau": self.tau,
            "tokens_per_s": self.tokens_per_s,
            "depth_curve": list(self.curve.p),
            "steps": self.steps,
            "dropped": self.dropped,
            "requests": [
                {
                    "rid": request.rid,
                    "text": request.text,
                    "tokens": request.tokens,
                    "steps": request.steps,
                    "tau": request.tau,
                    "tokens_per_s": request.tokens_per_s,
                    "state": request.state,
                    "reason": request.reason,
                }
                for request in self.requests
            ],
            "findings": [to_json(finding) for finding in self.findings],
            "trace": str(self.trace),
        }


def summarise(store: Store, findings: list[Finding], trace: Path) -> Summary:
    """The summary of what the store knows."""
    return Summary(
        requests=[_request(store, row) for row in store.requests()],
        curve=store.curve(None),
        timing=store.timing(None),
        dropped=sum(counters.dropped for counters in store.counters.values()),
        findings=findings,
        trace=trace,
    )


def _request(store: Store, row: RequestRow) -> RequestSummary:
    ids = [token for run in store.text(row.rid, prompt=False) for token in run.tokens]
    seconds = (row.last_t - row.t) / 1e6
    return RequestSummary(
        rid=row.rid,
        text=b"".join(store.tokens.text(token) or b"" for token in ids).decode("utf-8", "replace"),
        tokens=len(ids),
        steps=row.steps,
        tau=row.tau,
        tokens_per_s=len(ids) / seconds if seconds > 0 else None,
        state=row.state,
        reason=row.reason,
    )
