"""What OpenSSH says when it cannot connect, as one sentence with what to do. Pure."""

from __future__ import annotations

import re

_PORT = re.compile(r"port (\d+)")
_METHODS = re.compile(r"Permission denied \(([^)]*)\)")
_RESOLVE = re.compile(r"Could not resolve hostname ([^:]*)")


def sentence(name: str, said: str) -> str:
    """The words of ssh's standard error for a host; empty when it said nothing."""
    lines = [line.strip() for line in said.splitlines() if line.strip() and not line.startswith("debug")]
    text = "\n".join(lines)
    for needle, words in _KNOWN:
        if re.search(needle, text, re.IGNORECASE):
            return _filled(words, name, text)
    return f"ssh to {name} failed: {lines[-1].rstrip('.')}." if lines else ""


def _filled(words: str, name: str, text: str) -> str:
    port = _PORT.search(text)
    methods = _METHODS.search(text)
    resolve = _RESOLVE.search(text)
    address = resolve[1].strip() if resolve is not None else name
    return words.format(
        name=name,
        port=f" on port {port[1]}" if port else "",
        methods=f" ({methods[1]})" if methods else "",
        address=address,
        alias="" if address == name else f", which ~/.ssh/config gives for {name},",
        last=text.splitlines()[-1].rstrip("."),
    )


# In this order: a changed key ends with the same line as an unknown one.
_KNOWN = (
    (
        "REMOTE HOST IDENTIFICATION HAS CHANGED|host key .* has changed",
        "The host key of {name} is not the one that is known: the host was set up anew, or somebody is in between. "
        "Find out which; if it was set up anew, `ssh-keygen -R {name}`, then `ssh {name}` once.",
    ),
    (
        "Host key verification failed|No .* host key is known",
        "The host key of {name} is not known yet: run `ssh {name}` once and confirm its fingerprint.",
    ),
    (
        "Could not resolve hostname",
        "There is no host {address}{alias}: neither ~/.ssh/config nor the name service knows it.",
    ),
    (
        "Too many authentication failures",
        "{name} gave up after too many keys: name the right one (IdentityFile and IdentitiesOnly in ~/.ssh/config).",
    ),
    (
        "Permission denied",
        "{name} does not let this user in without a question{methods}: load a key (`ssh-add`) and check that "
        "`ssh {name} true` asks nothing; ddscope never asks for passwords.",
    ),
    ("Connection refused", "{name} refuses connections{port}: is sshd running there, and on that port?"),
    (
        "timed out|Connection to .* port .* timed out|banner exchange",
        "{name} does not answer{port}: is it up, and is the network (VPN) to it?",
    ),
    ("No route to host|Network is unreachable", "There is no way to {name}: is the network (VPN) up?"),
    (
        "kex_exchange_identification|Connection closed by|Connection reset by",
        "{name} closed the connection before it was set up ({last}): its sshd may be overloaded or forbid this user.",
    ),
    (
        "Bad owner or permissions|Bad configuration option|terminating, \\d+ bad configuration|Can't open user config",
        "ssh does not accept its configuration: {last}.",
    ),
    ("unix_listener: path .* too long|ControlPath", "ssh cannot make its control socket: {last}."),
)
