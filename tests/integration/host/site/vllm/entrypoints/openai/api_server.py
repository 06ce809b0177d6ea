"""A small real HTTP service in the shape of a vLLM server: an API process, and the engine core that makes the tokens.

The same command lines, processes, paths and log lines; /health is answered by the API process. --host is obeyed.
"""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
import time
from typing import Any

ENGINE = "VLLM::EngineCore"


def say(text: str, who: str = "APIServer", where: str = "api_server.py:1839") -> None:
    """A line as vLLM's logger writes it."""
    print(f"({who} pid={os.getpid()}) INFO {time.strftime('%m-%d %H:%M:%S')} [{where}] {text}", flush=True)


def engine() -> None:
    """Reads one request a line, answers with one."""
    say("Loading weights took 0.01 seconds", "EngineCore_DP0", "default_loader.py:267")
    answers = os.fdopen(int(sys.argv[-1]), "w")
    for line in sys.stdin:
        count = json.loads(line)["max_tokens"]
        told = {"choices": [{"text": " 4, 5"}], "usage": {"completion_tokens": count}}
        print(json.dumps(told), file=answers, flush=True)


def option(name: str, default: str) -> str:
    """The value of an option in either form."""
    for place, word in enumerate(sys.argv):
        if word.startswith(f"--{name}="):
            return word.partition("=")[2]
        if word == f"--{name}":
            return sys.argv[place + 1]
    return default


def main() -> None:
    """Serve until the engine core ends."""
    if "--engine" in sys.argv:
        engine()
        return
    say("vLLM API server version 0.11.0")
    reader, writer = os.pipe()
    command = [ENGINE, os.path.abspath(__file__), "--engine", str(writer)]
    child = subprocess.Popen(command, executable=sys.executable, stdin=subprocess.PIPE, pass_fds=(writer,))
    os.close(writer)
    answers, lock = os.fdopen(reader), threading.Lock()

    class Handler(http.server.BaseHTTPRequestHandler):
        def reply(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            if self.path == "/v1/models":
                self.reply(200, b'{"data": [{"id": "m"}]}')
            else:
                self.reply(200 if self.path == "/health" else 404, b"")

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path != "/v1/completions" or json.loads(body)["model"] != "m":
                self.reply(404, b"")
                return
            with lock:
                assert child.stdin is not None
                child.stdin.write(body + b"\n")
                child.stdin.flush()
                self.reply(200, answers.readline().encode())

        def log_message(self, format: str, *args: Any) -> None:
            print(f'(APIServer pid={os.getpid()}) INFO:     127.0.0.1:1 - "{format % args}"', flush=True)

    address = (option("host", "127.0.0.1"), int(option("port", "8000")))
    server = http.server.ThreadingHTTPServer(address, Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    say(f"Starting vLLM API server 0 on http://{address[0]}:{address[1]}")
    child.wait()
    sys.exit(1)


if __name__ == "__main__":
    main()
