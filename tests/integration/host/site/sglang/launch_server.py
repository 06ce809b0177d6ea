"""A small real HTTP service in the shape of a server: an HTTP process, and a scheduler process that makes the tokens.

It stands in for SGLang where that is too heavy: the same command line, processes, paths and log lines; /health is
answered by the HTTP process alone, as SGLang's is. SIGUSR1 closes the port or opens it, SIGUSR2 makes /generate hang.
"""

from __future__ import annotations

import http.server
import json
import os
import signal
import socketserver
import subprocess
import sys
import threading
import time
from typing import Any

SCHEDULER = "sglang::scheduler_TP0"


def say(text: str) -> None:
    """A line as SGLang's logger writes it."""
    print(time.strftime("[%Y-%m-%d %H:%M:%S") + "] " + text, flush=True)


def scheduler() -> None:
    """Reads one request a line, answers with one."""

    def event_loop() -> None:
        for line in sys.stdin:
            recv_request(json.loads(line))

    def recv_request(request: dict[str, Any]) -> None:
        count = request["sampling_params"]["max_new_tokens"]
        say(f"Decode batch, #running-req: 1, #token: {count}, #queue-req: 0")
        print(json.dumps({"text": " 4, 5", "meta_info": {"completion_tokens": count}}), file=answers, flush=True)

    answers = os.fdopen(3, "w")
    threading.Thread(target=time.sleep, args=(1e9,), name="watchdog", daemon=True).start()
    event_loop()


class Service:
    """The HTTP process."""

    def __init__(self, port: int) -> None:
        reader, writer = os.pipe()

        def third() -> None:
            os.dup2(writer, 3)

        command = [SCHEDULER, os.path.abspath(__file__), "--scheduler"]
        self.child = subprocess.Popen(
            command, executable=sys.executable, stdin=subprocess.PIPE, pass_fds=(3, writer), preexec_fn=third
        )
        os.close(writer)
        self.answers = os.fdopen(reader)
        self.lock = threading.Lock()
        self.hang = threading.Event()
        self.port = port
        self.server: Any = None

    def generate(self, request: dict[str, Any]) -> bytes:
        """Ask the scheduler; one request at a time."""
        while self.hang.is_set():
            time.sleep(0.05)
        with self.lock:
            assert self.child.stdin is not None
            self.child.stdin.write(json.dumps(request).encode() + b"\n")
            self.child.stdin.flush()
            return self.answers.readline().encode()

    def open(self) -> None:
        """Listen."""
        service = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def reply(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self) -> None:
                self.reply(200 if self.path == "/health" else 404, b"")

            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self.reply(200, service.generate(request))

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
            daemon_threads = True
            allow_reuse_address = True

        self.server = Server(("127.0.0.1", self.port), Handler)
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def toggle_port(self, *_: object) -> None:
        """SIGUSR1."""
        if self.server is None:
            self.open()
        else:
            server, self.server = self.server, None
            threading.Thread(target=lambda: (server.shutdown(), server.server_close())).start()

    def toggle_hang(self, *_: object) -> None:
        """SIGUSR2."""
        if self.hang.is_set():
            self.hang.clear()
        else:
            self.hang.set()


def main() -> None:
    if "--scheduler" in sys.argv:
        scheduler()
        return
    run(Service(int(sys.argv[sys.argv.index("--port") + 1])))


def run(service: Service) -> None:
    """Serve until the scheduler ends."""
    signal.signal(signal.SIGUSR1, service.toggle_port)
    signal.signal(signal.SIGUSR2, service.toggle_hang)
    service.open()
    say("The server is fired up and ready to roll!")
    while service.child.poll() is None:
        time.sleep(0.2)
    say(f"Subprocess scheduler_0 (pid={service.child.pid}) crashed with exit code {service.child.returncode}.")
    sys.exit(1)


if __name__ == "__main__":
    main()
