"""The ladder of liveness of one server: unit, process, port, health, generate, progress; each looked at sparingly.

A rung is told when it changes, and now and then while it does not. Slow questions run on threads, one of a kind.
"""

from __future__ import annotations

import re
import threading
import time
from typing import TYPE_CHECKING, Any

from ddscope.remote.there import discover, http, procs, units

if TYPE_CHECKING:
    from collections.abc import Callable

    Tell = Callable[[dict[str, Any]], None]

RETELL_S = 30.0
HEALTH_TIMEOUT_S = 5.0
PORT_TIMEOUT_S = 2.0
GIVE_UP_S = 900.0
STOPPED = {"T": "stopped (by a signal: SIGCONT lets it go on)", "t": "stopped by a debugger", "Z": "dead (a zombie)"}
RUNNING = re.compile(rb"^(?:sglang|vllm):num_(?:running_reqs|requests_running)(?:\{[^}]*\})? ([0-9.e+]+)", re.M)
TOKENS = re.compile(rb"^(?:sglang|vllm):generation_tokens_total(?:\{[^}]*\})? ([0-9.e+]+)", re.M)


class Slot:
    """Runs one question at a time on a thread. `since`: when it was asked; None when none is."""

    def __init__(self) -> None:
        self.since: float | None = None
        self._answer: list[Any] = []

    def ask(self, question: Callable[[], Any]) -> None:
        """Begin, unless one is in flight."""
        if self.since is None:
            self.since = time.monotonic()
            threading.Thread(target=lambda: self._answer.append(question()), daemon=True).start()

    def answer(self) -> Any:
        """What came back, once; None while there is nothing."""
        if not self._answer:
            return None
        self.since = None
        return self._answer.pop()


class Ladder:
    """options: unit, every (s between two looks), health_every, probe (bool), probe_every, probe_timeout."""

    def __init__(self, server: dict[str, Any], options: dict[str, Any], tell: Tell) -> None:
        self.server = server
        self.unit: str = server.get("unit") or options.get("unit") or ""
        self._options = options
        self._tell = tell
        self._told: dict[str, tuple[Any, float]] = {}
        self._next: dict[str, float] = {}
        self._health, self._generate, self._metrics = Slot(), Slot(), Slot()
        self._members: dict[int, str] = {}
        self._healthy: bool | None = None
        self._serial = 0
        self._late_told = 0.0
        self._tokens: tuple[float, float] | None = None  # count, and when it last grew
        self.fresh: Callable[[], None] = lambda: None

    # telling --------------------------------------------------------------------------------------------------

    def tell(self, rung: str, ok: bool, detail: str, ms: float | None = None, *, always: bool = False) -> None:
        """Tell a rung when it is news, or was not told for long."""
        now = time.monotonic()
        said, at = self._told.get(rung, (None, 0.0))
        if said == (ok, detail) and now - at < RETELL_S and not always:
            return
        self._told[rung] = ((ok, detail), now)
        told = {"kind": "probe", "rung": rung, "ok": ok, "detail": detail, **stamp()}
        if ms is not None:
            told["ms"] = round(ms, 2)
        self._tell(told)

    def due(self, what: str, every: float) -> bool:
        """Whether it is time for something; then it is not for `every` s."""
        now = time.monotonic()
        if now < self._next.get(what, 0.0):
            return False
        self._next[what] = now + every
        return True

    def hurry(self) -> None:
        """Look at everything now, but ask nothing twice."""
        self._next.clear()

    # looking --------------------------------------------------------------------------------------------------

    def work(self) -> None:
        """Everything that is due. Takes a few milliseconds, a port that does not answer aside."""
        every = float(self._options.get("every", 2.0))
        if self.due("cheap", every):
            state = self._look_unit()
            self._look_process(state)
            self._look_port()
        self._look_health()
        self._look_generate()
        self._look_metrics()

    @property
    def where(self) -> dict[str, Any]:
        """Where requests go."""
        known = procs.process(int(self.server.get("pid") or 0))
        argv = known.argv if known is not None else []
        return {
            "address": self.server.get("address", "127.0.0.1"),
            "port": self.server.get("port", 0),
            "key": procs.secret(argv, "api-key"),
            "tls": "ssl-certfile" in self.server.get("args", {}),
        }

    def _look_unit(self) -> dict[str, str]:
        if not self.unit:
            return {}
        state = units.state_of(self.unit, self.server.get("user_unit", ""))
        if not state:
            self.tell("unit", False, "systemd does not answer")
            return state
        active, sub = state.get("ActiveState", ""), state.get("SubState", "")
        since = int(state.get("StateChangeTimestampMonotonic") or 0) / 1e6
        words = f"{self.unit} is {active} ({sub})"
        if since:
            words += f" since {clock(time.time() - time.monotonic() + since)}"
        if state.get("LoadState") == "not-found":
            words = f"systemd knows no unit {self.unit}"
        ok = active in ("active", "reloading")
        if not ok and state.get("Result") not in ("success", "", None):
            how = {"1": "status", "2": "signal", "3": "signal"}.get(state.get("ExecMainCode", ""), "status")
            words += f": {state['Result']}, {how} {state.get('ExecMainStatus')}"
        restarts = state.get("NRestarts", "0")
        if restarts not in ("0", ""):
            words += f", restarted {restarts} times" if restarts != "1" else ", restarted once"
        self.tell("unit", ok, words)
        return state

    def _look_process(self, state: dict[str, str]) -> None:
        known = procs.processes()
        root = int(self.server.get("pid") or 0)
        main = int(state.get("MainPID") or 0)
        if main and self.server.get("container"):
            main = discover.inside(main, known)  # of a unit that runs `docker run`
        alive = root in known and known[root].start == self.server.get("start")
        if (main and main in known and (main != root or not alive)) or (not main and not alive):
            alive = self._find_again(main, known) or (alive and not self.unit)
            root = int(self.server.get("pid") or 0)
        if not alive or root not in known:
            self._members.clear()
            self.tell("process", False, f"pid {root} is gone" if root else "there is no process")
            return
        family = procs.tree(root, known)
        bad = [
            f"pid {one.pid} {one.title} is {STOPPED[one.state]}"
            for one in family
            if one.state in STOPPED and (one.pid == root or "::" in one.title or one.state != "Z")
        ]
        here = {one.pid: one.title for one in family}
        bad += [f"pid {pid} {name} is gone" for pid, name in self._members.items() if pid not in here]
        self._members.update({pid: name for pid, name in here.items() if "::" in name})
        since = procs.started(known[root])
        born = f" since {clock(since)}" if since else ""
        many = f", {len(family)} processes" if len(family) > 1 else ""
        self.tell("process", not bad, "; ".join(bad) if bad else f"pid {root}{born}{many}")
        if self.due("describe", 5.0):
            self._describe(discover.describe(root, known, self.unit, int(self._options.get("port") or 0)))

    def _find_again(self, main: int, known: dict[int, procs.Process]) -> bool:
        """The server's new first process, when it was started again."""
        port = int(self._options.get("port") or 0)
        if not main and not self.unit and self.due("find", 3.0):
            kind, said = self.server.get("kind"), self.server.get("args", {}).get("port")
            again = [
                pid
                for pid in discover.roots(known)
                if discover.kind_of(known[pid]) == kind and procs.arguments(known[pid].argv).get("port") == said
            ]
            main = again[0] if again else 0
        if not main:
            return False
        self._members.clear()
        # What was asked of the one before says nothing of this one.
        self._health, self._generate, self._metrics, self._healthy = Slot(), Slot(), Slot(), None
        self.hurry()
        self._describe(discover.describe(main, known, self.unit, port))
        return True

    def _describe(self, server: dict[str, Any]) -> None:
        if server != self.server:
            self.server = server
            self.fresh()

    def _look_port(self) -> None:
        where = self.where
        if not where["port"]:
            if self._members or self.server.get("pid"):
                self.tell("port", False, "it listens on no port")
            return
        ok, ms, words = http.accepts(where["address"], where["port"], PORT_TIMEOUT_S)
        if not ok:
            others = sorted({port for _, port in procs.listening_tcp(list(self._pids()))} - {where["port"]})
            words += f"; it listens on {', '.join(map(str, others[:5]))}" if others else ""
        self.tell("port", ok, words, ms)

    def _pids(self) -> list[int]:
        root = int(self.server.get("pid") or 0)
        return [one.pid for one in procs.tree(root, procs.processes())]

    def _look_health(self) -> None:
        answer = self._health.answer()
        if answer is not None:
            self._healthy = answer.status == 200
            if answer.status is None:
                words = answer.words
            else:
                said = f": {answer.said}" if answer.said and answer.status != 200 else ""
                words = f"/health answers {answer.status}{said}"
            self.tell("health", self._healthy, words, answer.ms)
        every = float(self._options.get("health_every", 10.0))
        where = self.where
        if where["port"] and self.due("health", every if self._healthy else min(every, 3.0)):
            self._health.ask(lambda: http.ask(where, "/health", HEALTH_TIMEOUT_S))

    def _look_generate(self) -> None:
        if not self._options.get("probe", True):
            return
        answer = self._generate.answer()
        timeout = float(self._options.get("probe_timeout", 20.0))
        if answer is not None:
            ok, words = generated(answer)
            self.tell("generate", ok, words, answer.ms, always=True)
            self._next["generate"] = time.monotonic() + float(self._options.get("probe_every", 60.0))
        elif self._generate.since is not None:
            self._look_late(time.monotonic() - self._generate.since, timeout)
        elif self._healthy and self.due("generate", float(self._options.get("probe_every", 60.0))):
            self._serial += 1
            self._late_told = 0.0
            where, kind, rid = self.where, self.server.get("kind", ""), f"ddscope-probe-{self._serial}"
            self._generate.ask(lambda: generate(where, kind, rid, GIVE_UP_S))

    def _look_late(self, age: float, timeout: float) -> None:
        """A probe that has not come back: said when its time is over, and then now and then. No other one is sent."""
        if age >= timeout and age - self._late_told >= min(10.0, timeout):
            self._late_told = age
            sent = clock(time.time() - age)
            words = f"no answer for {age:.0f} s to a request for 4 tokens, sent at {sent}; no other is sent meanwhile"
            self.tell("generate", False, words, age * 1000, always=True)

    def _look_metrics(self) -> None:
        """Progress as the server counts it, where it has metrics: requests run, and tokens come or do not."""
        answer = self._metrics.answer()
        if answer is not None:
            self._judge_metrics(answer)
        if self._healthy and self.due("metrics", float(self._options.get("health_every", 10.0))):
            where = self.where
            self._metrics.ask(lambda: http.ask(where, "/metrics", HEALTH_TIMEOUT_S))

    def _judge_metrics(self, answer: http.Answer) -> None:
        running, tokens = RUNNING.findall(answer.body), TOKENS.findall(answer.body)
        if answer.status != 200 or not running or not tokens:
            self._next["metrics"] = time.monotonic() + 120.0  # it has none
            return
        busy, count, now = sum(map(float, running)), sum(map(float, tokens)), time.monotonic()
        if self._tokens is None or count != self._tokens[0] or not busy:
            grown = 0.0 if self._tokens is None else count - self._tokens[0]
            self._tokens = (count, now)
            words = f"{busy:.0f} requests run, {grown:.0f} more tokens" if busy else "no request runs"
            self.tell("progress", True, words)
            return
        age = now - self._tokens[1]
        stuck = age > 3 * float(self._options.get("health_every", 10.0))
        words = f"{busy:.0f} requests run, and no token has come for {age:.0f} s (by its /metrics)"
        self.tell("progress", not stuck, words)


def generate(where: dict[str, Any], kind: str, rid: str, timeout: float) -> http.Answer:
    """Ask for four tokens, as the kind of server wants it; another way where it knows no such path."""
    native = {
        "text": "1, 2, 3,",
        "rid": rid,
        "sampling_params": {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True},
    }
    if kind != "vllm":
        answer = http.ask(where, "/generate", timeout, native)
        if answer.status != 404:
            return answer
    models = http.ask(where, "/v1/models", HEALTH_TIMEOUT_S).json()
    data = models.get("data") if isinstance(models, dict) else None
    model = data[0].get("id", "") if isinstance(data, list) and data and isinstance(data[0], dict) else ""
    body = {"model": model, "prompt": "1, 2, 3,", "max_tokens": 4, "temperature": 0}
    return http.ask(where, "/v1/completions", timeout, body)


def generated(answer: http.Answer) -> tuple[bool, str]:
    """Whether tokens came, and what came in words."""
    if answer.status is None:
        return False, f"{answer.words} (a request for 4 tokens)"
    if answer.status != 200:
        return False, f"a request for 4 tokens is answered {answer.status}: {answer.said or 'without a word'}"
    told = answer.json()
    told = told[0] if isinstance(told, list) and told else told
    if not isinstance(told, dict):
        return False, f"what comes for a request for 4 tokens is no answer: {answer.said}"
    choices = told.get("choices")
    text = choices[0].get("text") if isinstance(choices, list) and choices else told.get("text")
    meta = told.get("meta_info") or told.get("usage") or {}
    count = meta.get("completion_tokens") if isinstance(meta, dict) else None
    if count == 0 or (count is None and not text):
        return False, "a request for 4 tokens is answered 200, without a token"
    many = f"{count} token{'s' if count != 1 else ''}" if count is not None else "text"
    return True, f"{many} in {answer.ms:.0f} ms: {text!r}"[: http.WORDS]


def stamp() -> dict[str, int]:
    """Now: µs since the epoch and of the monotonic clock."""
    return {"t": time.time_ns() // 1000, "mono": time.monotonic_ns() // 1000}


def clock(seconds: float) -> str:
    """A time of the host as people read it."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
