"""A handle on a real SGLang in a process of its own: start, ask, stop. Nothing of SGLang is imported on this side."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[3]
PYTHON = ROOT / ".venv-sglang" / "bin" / "python"
START_S = 400
ANSWER_S = 240


class ServerDied(AssertionError):
    """The server's process ended, or did not answer in time; the message ends with its log's last lines."""


class Server:
    """One `runner.py`. `log` is everything SGLang printed."""

    def __init__(self, kind: str, arguments: Mapping[str, Any], folder: Path, env: Mapping[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log_path = folder / "server.log"
        self._log = self.log_path.open("wb")
        settings = {
            "PATH": f"{PYTHON.parent}:{os.environ['PATH']}",
            "HOME": os.environ.get("HOME", "/tmp"),
            "PYTHONPATH": str(HERE / "site"),
            "SGLANG_USE_CPU_ENGINE": "1",
            "TORCHDYNAMO_DISABLE": "1",  # compiling takes 17 s of the first step
            "TRITON_INTERPRET": "1",
            "OMP_NUM_THREADS": "1",
            "OMP_WAIT_POLICY": "PASSIVE",  # threads that spin while they wait starve the server's other processes
            "HF_HUB_OFFLINE": "1",
            "PYTHONDONTWRITEBYTECODE": os.environ.get("PYTHONDONTWRITEBYTECODE", ""),
        }
        self.process = subprocess.Popen(
            [str(PYTHON), str(HERE / "runner.py"), kind, json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=settings | dict(env),
            start_new_session=True,  # so that all its processes can be ended together
        )

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def stop(self) -> None:
        """End it and all its processes."""
        if self.process.stdin is not None and not self.process.stdin.closed:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                self.process.stdin.close()
                self.process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._log.close()

    def died(self, why: str) -> ServerDied:
        return ServerDied(f"{why}; the end of its log:\n" + "\n".join(self.log.splitlines()[-40:]))


class Engine(Server):
    """A `sglang.Engine`. The constructor returns when it is ready."""

    def __init__(self, arguments: Mapping[str, Any], folder: Path, env: Mapping[str, str]) -> None:
        super().__init__("engine", arguments, folder, env)
        self._rest = b""
        try:
            self._line(START_S)
        except ServerDied:
            self.stop()
            raise

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        tokens: int,
        rids: Sequence[str],
        *,
        each: Sequence[Mapping[str, Any]] = (),
        **sampling: Any,
    ) -> list[dict[str, Any]]:
        """Greedy, to exactly `tokens` tokens unless said otherwise. [{text, output_ids, meta_info}]

        each: what else is said of each request.
        """
        common = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True} | sampling
        given = [common | dict(more) for more in each] or common
        return self._ask({"do": "generate", "prompts": prompts, "sampling": given, "rids": rids})

    def scheduler(self, action: str, argument: str = "") -> Any:
        """An action of `ddscope_standins.remote`, inside the scheduler's process."""
        return self._ask({"do": "scheduler", "action": action, "argument": argument})

    def states(self) -> list[dict[str, Any]]:
        """`internal_states` of /server_info."""
        return self._ask({"do": "states"})

    def _ask(self, question: Mapping[str, Any]) -> Any:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(question).encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            raise self.died("the engine had ended before it was asked") from None
        answer = self._line(ANSWER_S)
        if not answer["ok"]:
            raise self.died(f"the engine answered with {answer['error']}")
        return answer["value"]

    def _line(self, seconds: float) -> dict[str, Any]:
        """The next line of its stdout."""
        assert self.process.stdout is not None
        fd, deadline = self.process.stdout.fileno(), time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(fd, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise self.died(f"the engine did not answer in {seconds} s")
                chunk = os.read(fd, 1 << 20)
                if not chunk:
                    raise self.died("the engine ended")
                self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)


class HttpServer(Server):
    """SGLang's HTTP server on a free port of the loopback. The constructor returns when it answers /health."""

    def __init__(self, arguments: Mapping[str, Any], folder: Path, env: Mapping[str, str]) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        super().__init__("http", {"host": "127.0.0.1", "port": self.port, **arguments}, folder, env)
        deadline = time.monotonic() + START_S
        while not self._up():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise self.died("the HTTP server did not come up")
            time.sleep(0.2)

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=ANSWER_S) as answer:
            return answer.read()

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            return json.loads(answer.read())

    def _up(self) -> bool:
        try:
            self.get("/health")
        except OSError:
            return False
        return True
