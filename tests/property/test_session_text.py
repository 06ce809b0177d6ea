"""The text of a request loses no byte, however characters are split over tokens, steps and gaps."""

from __future__ import annotations

import base64
import itertools
import re
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from ddscope.model import Raw64, Tokens
from ddscope.session import Store
from ddscope.session.tokens import decode_stream, hex_mark, marked, pending_bytes, visible
from tests.unit.session_support import Book, plain_step, request

chars = st.sampled_from(["a", " ", "\n", "é", "€", "😀", "\u202e", "\x07", "[/INST]"])
noise = st.sampled_from([b"\xff", b"\x80", b"\xe2", b"\xf0\x9f", b"\xed\xa0", b"\xc0", b"\xf4\x90", b""])
pieces = st.lists(st.one_of(chars.map(str.encode), noise), max_size=12).map(b"".join)


def bytewise(shown: str) -> str:
    """Hex marks byte by byte, because a run of bad bytes may lie in two runs of text."""
    return re.sub("⟨([0-9a-f]+)⟩", lambda m: "".join(f"⟨{m[1][i : i + 2]}⟩" for i in range(0, len(m[1]), 2)), shown)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@given(pieces, st.lists(st.integers(0, 100), max_size=8))
def test_decoding_in_parts_is_decoding_the_whole(data: bytes, places: list[int]) -> None:
    text, carry = "", b""
    for part in cut(data, places):
        more, carry = decode_stream(part, carry)
        text += more
    assert (text + carry.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape") == data
    assert text + carry.decode("utf-8", "surrogateescape") == data.decode("utf-8", "surrogateescape")


@given(st.binary(max_size=8))
def test_only_what_more_bytes_can_complete_is_pending(data: bytes) -> None:
    k = pending_bytes(data)
    tail = data[len(data) - k :]
    completions = [
        b"",
        b"\x80",
        b"\xbf",
        b"\x80\x80",
        b"\xbf\xbf",
        b"\x80\x80\x80",
        b"\x9f\x80\x80",
        b"\xa0\x80",
        b"\x90\x80\x80",
    ]

    def whole(candidate: bytes) -> bool:
        try:
            return len(candidate.decode()) == 1
        except UnicodeDecodeError:
            return False

    assert not k or (not whole(tail) and any(whole(tail + more) for more in completions))
    for longer in range(k + 1, min(3, len(data)) + 1):
        begun = data[len(data) - longer :]
        assert whole(begun) or not any(whole(begun + more) for more in completions)


@given(st.text())
def test_nothing_invisible_is_left_in_shown_text(text: str) -> None:
    for shown in (visible(text), marked(text)):
        assert all(c.isprintable() or c in " \n" for c in shown)
    assert "\n" not in marked(text) and " " not in marked(text)


@settings(max_examples=60, deadline=None)
@given(
    pieces, st.lists(st.integers(0, 60), max_size=14), st.lists(st.integers(1, 4), min_size=1, max_size=8), st.data()
)
def test_a_requests_runs_are_its_bytes(data: bytes, places: list[int], sizes: list[int], draw: st.DataObject) -> None:
    parts = cut(data, places) or [b""]
    ids = list(range(len(parts)))
    prompt, output = ids[: len(ids) // 3], ids[len(ids) // 3 :]
    book = Book()
    book.header()
    for token, part in enumerate(parts):
        try:
            text: str | Raw64 = part.decode()
        except UnicodeDecodeError:
            text = Raw64(base64.b64encode(part).decode())
        book.put(Tokens, ids=[token], text=[text])
    request(book, "r", prompt)
    root, rest, base = output[0], output[1:], len(prompt)
    step = 0
    while rest:
        size = sizes[step % len(sizes)]
        plain_step(book, "r", step, base, root, rest[:size])
        base, root, rest = base + len(rest[:size]), rest[:size][-1], rest[size:]
        step += 1
    with TemporaryDirectory() as folder:
        store = Store(book.write(Path(folder) / "t.jsonl"), use_sidecar=False)
        while store.poll(1.0):
            pass
        for at in (None, draw.draw(st.integers(0, len(book.records)))):
            runs = store.text("r", at)
            shown = [token for run in runs for token in run.tokens]
            steps = len(store.steps("r", at))
            output_shown = (
                output[: 1 + sum(len(store.step(row.record).emitted) for row in store.steps("r", at))] if steps else []
            )
            known_prompt = prompt if at is None or at >= 1 + len(parts) else []
            assert shown == [*known_prompt, *output_shown]
            whole = b"".join(parts[token] for token in shown)
            text, begun = decode_stream(whole)
            assert bytewise(runs.plain) == bytewise(visible(text) + hex_mark(begun))
            assert [runs[i] for i in range(len(runs))] == list(runs) == runs[:]
        assert store.text("r", prompt=False)[:1] == [] or store.text("r", prompt=False)[0].kind in ("root", "tail")
        store.close()
