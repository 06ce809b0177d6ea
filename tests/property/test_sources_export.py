"""The Journal Export Format: whatever the values and however the stream is cut, the entries come out."""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddscope.sources.export import Entry, ExportError, ExportParser

NAMES = st.from_regex(rb"\A[A-Z_][A-Z0-9_]{0,20}\Z")
VALUES = st.binary(max_size=80) | st.sampled_from([b"", b"=", b"\n", b"\n\n", b"A=1\n\nB=2\n\n", b"\x00" * 9])
ENTRIES = st.lists(st.dictionaries(NAMES, VALUES, min_size=1, max_size=6), max_size=6)


def export(entries: list[Entry], binary: bool = False) -> bytes:
    """As journalctl writes them: text fields where it can."""
    out = b""
    for entry in entries:
        for name, value in entry.items():
            if binary or b"\n" in value or b"\x00" in value:
                out += name + b"\n" + struct.pack("<Q", len(value)) + value + b"\n"
            else:
                out += name + b"=" + value + b"\n"
        out += b"\n"
    return out


@given(ENTRIES, st.lists(st.integers(0, 2000)), st.booleans())
def test_entries_survive_any_cutting(entries: list[Entry], cuts: list[int], binary: bool) -> None:
    data = export(entries, binary)
    edges = sorted({0, len(data), *(c % (len(data) + 1) for c in cuts)})
    parser = ExportParser()
    found: list[Entry] = []
    for a, b in itertools.pairwise(edges):
        found += parser.feed(data[a:b])
    assert found == entries and not parser.pending


@given(ENTRIES.filter(bool), st.data())
def test_a_stream_that_stops_anywhere_gives_the_whole_entries_before(entries: list[Entry], data: st.DataObject) -> None:
    whole = export(entries)
    stop = data.draw(st.integers(0, len(whole)))
    parser = ExportParser()
    found = parser.feed(whole[:stop])
    complete = sum(len(export(entries[: n + 1])) <= stop for n in range(len(entries)))
    assert found == entries[:complete]
    assert found + parser.feed(whole[stop:]) == entries


@given(st.binary(max_size=200))
def test_rubbish_is_waited_out_or_refused_in_one_sentence(data: bytes) -> None:
    parser = ExportParser()
    try:
        parser.feed(data)
    except ExportError as error:
        assert str(error).startswith("The journal's export is damaged")


@pytest.mark.parametrize(
    "data",
    [
        b"=value\n",
        b"NAME\n" + struct.pack("<Q", 1 << 40),
        b"NAME\n" + struct.pack("<Q", 2) + b"abc\n",
        b"x" * 300 + b"\n" + b"\0" * 8,
    ],
)
def test_a_lost_place_is_refused(data: bytes) -> None:
    with pytest.raises(ExportError):
        ExportParser().feed(data)


def test_a_name_that_comes_twice_keeps_both_values() -> None:
    assert ExportParser().feed(b"A=1\nA=2\nB=3\n\n") == [{b"A": b"1\n2", b"B": b"3"}]


def test_a_large_field_that_comes_in_small_pieces_is_not_searched_again_and_again() -> None:
    value = b"x" * (8 << 20)
    data = export([{b"MESSAGE": value + b"\n"}])
    parser = ExportParser()
    found: list[Entry] = []
    for at in range(0, len(data), 1 << 18):
        found += parser.feed(data[at : at + (1 << 18)])
    assert found == [{b"MESSAGE": value + b"\n"}]
