"""One request to the server on its own host, and what it said in few words. No redirects, no proxies."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import time
from typing import Any

WORDS = 300


class Answer:
    """status None: there was no answer, and `words` says why. ms: until it was there, or given up."""

    def __init__(self, status: int | None, body: bytes, words: str, ms: float) -> None:
        self.status, self.body, self.words, self.ms = status, body, words, ms

    @property
    def said(self) -> str:
        """The server's own words on one line."""
        text = self.body.decode("utf-8", "replace")
        try:
            told = json.loads(text)
            inner = told.get("error", told.get("message", told)) if isinstance(told, dict) else told
            inner = inner.get("message", inner) if isinstance(inner, dict) else inner
            text = inner if isinstance(inner, str) else text
        except ValueError:
            pass
        return " ".join(text.split())[:WORDS]

    def json(self) -> Any:
        """The body as JSON; None when it is none."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None


def ask(where: dict[str, Any], path: str, timeout: float, body: Any = None) -> Answer:
    """GET, or POST where there is a body, to `{address, port, tls, key}`. Never raises."""
    begun = time.monotonic()
    address, port = where["address"], where["port"]
    headers = {"Authorization": "Bearer " + where["key"]} if where.get("key") else {}
    connection: http.client.HTTPConnection
    if where.get("tls"):
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # loopback: whose key it is matters not
        connection = http.client.HTTPSConnection(address, port, timeout=timeout, context=context)
    else:
        connection = http.client.HTTPConnection(address, port, timeout=timeout)
    status, data, words = None, b"", ""
    try:
        if body is None:
            connection.request("GET", path, headers=headers)
        else:
            headers["Content-Type"] = "application/json"
            connection.request("POST", path, body=json.dumps(body).encode(), headers=headers)
        answer = connection.getresponse()
        status, data = answer.status, answer.read(1 << 22)
    except ConnectionRefusedError:
        words = f"nobody listens on {address}:{port}"
    except (socket.timeout, TimeoutError):  # noqa: UP041 - two things before Python 3.10
        words = f"no answer in {timeout:g} s"
    except (OSError, http.client.HTTPException) as error:
        words = f"the connection broke: {error or type(error).__name__}"
    finally:
        connection.close()
    return Answer(status, data, words, (time.monotonic() - begun) * 1000)


def accepts(address: str, port: int, timeout: float) -> tuple[bool, float, str]:
    """Whether a port takes connections, how long that took in ms, and what it says in words."""
    begun = time.monotonic()
    where = f"{address}:{port}"
    try:
        socket.create_connection((address, port), timeout).close()
        ok, words = True, f"{where} takes connections"
    except ConnectionRefusedError:
        ok, words = False, f"nobody listens on {where}"
    except (socket.timeout, TimeoutError):  # noqa: UP041 - two things before Python 3.10
        ok, words = False, f"{where} does not answer in {timeout:g} s"
    except OSError as error:
        ok, words = False, f"{where}: {error.strerror or error}"
    return ok, (time.monotonic() - begun) * 1000, words
