"""Live ≡ replay: the same records in any pieces, with looks in between, give every view of the finished file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddscope.model import (
    Control,
    Fact,
    Finish,
    Flags,
    Footer,
    Gap,
    Header,
    Log,
    Mark,
    Position,
    Probe,
    Raw64,
    Record,
    Request,
    Stack,
    Step,
    StepTime,
    Tensor,
    Thread,
    Tokens,
    Tree,
)
from ddscope.session import STAGES, Store
from ddscope.trace import encode
from tests.unit.session_support import flags, header, lists, maybe, steps

RIDS = ("r1", "r2", "r3")
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
foreign = st.one_of(text, st.builds(Raw64, b64=st.sampled_from(["4g==", "gqw=", "/w==", "not base64", ""])))
rid = st.sampled_from(RIDS)
token = st.integers(0, 7)
value = st.recursive(
    st.one_of(st.none(), st.booleans(), token, text), lambda inner: st.lists(inner, max_size=2), max_leaves=3
)


@st.composite
def likely_steps(draw: st.DrawFn) -> Step:
    """A step as an engine would tell it, some fields missing."""
    accepted = draw(st.integers(0, 3))
    tokens = draw(st.lists(token, min_size=accepted, max_size=accepted + 2))
    base = draw(maybe(st.integers(3, 30)))
    emitted = [*tokens[:accepted], draw(token)]
    truncated = draw(st.booleans())
    return Step(
        src="engine/0",
        seq=0,
        t=0,
        mono=0,
        rid=draw(rid),
        step=draw(st.integers(0, 50)),
        base=base,
        root=draw(maybe(token)),
        tree=draw(maybe(st.just(Tree(budget=5, tokens=tokens, parents=list(range(len(tokens))))))),
        path=draw(maybe(st.just(list(range(accepted + 1))))),
        bonus=emitted[-1],
        emitted=draw(maybe(st.just(emitted[:1] if truncated else emitted))),
        time=draw(maybe(st.builds(StepTime, **dict.fromkeys((*STAGES, "total"), maybe(st.integers(0, 900)))))),
        flags=Flags(truncated=truncated) if truncated else draw(maybe(flags)),
    )


def kinds() -> st.SearchStrategy[Record]:
    """One record of any kind; src, seq and times are set afterwards."""
    common: dict[str, Any] = {"src": st.just("engine/0"), "seq": st.just(0), "t": st.just(0), "mono": st.just(0)}
    return st.one_of(
        likely_steps(),
        likely_steps(),
        steps(rid, st.integers(-5, 2**40)).filter(encodable),
        st.builds(Tokens, ids=lists(token), text=lists(foreign), **common),
        st.builds(
            Request,
            rid=rid,
            prompt_len=st.integers(0, 9),
            prompt_ids=maybe(lists(token)),
            sampling=st.just({"temperature": 0}),
            cached_tokens=maybe(token),
            **common,
        ),
        st.builds(
            Finish, rid=rid, reason=st.sampled_from(["stop", "length", "error"]), emitted=token, steps=token, **common
        ),
        st.builds(
            Tensor,
            name=st.sampled_from(["x", "y"]),
            shape=lists(st.integers(0, 3000), 2),
            dtype=st.just("f"),
            expect=maybe(lists(maybe(st.integers(0, 3000)), 2)),
            ok=maybe(st.booleans()),
            **common,
        ),
        st.builds(
            Fact, name=st.sampled_from(["engine.state", "breakpoints", "fault", "version"]), value=facts(), **common
        ),
        st.builds(Control, command=text, args=st.just({"rid": "r1"}), by=maybe(text), **common),
        st.builds(
            Mark,
            text=text,
            at=st.builds(Position, st.sampled_from(["engine/0", "viewer"]), st.integers(0, 20)),
            **common,
        ),
        st.builds(
            Log, message=maybe(foreign), priority=maybe(st.integers(0, 7)), partial=maybe(st.booleans()), **common
        ),
        st.builds(Gap, of=st.sampled_from(["engine/0", "journal/x"]), count=st.none(), reason=text, **common),
        st.builds(Probe, rung=st.sampled_from(["unit", "port"]), ok=st.booleans(), ms=maybe(st.floats(0, 9)), **common),
        st.builds(Stack, pid=token, threads=st.just([Thread(id=1)]), **common),
        st.just(header()),
    )


def facts() -> st.SearchStrategy[Any]:
    """Values of facts: as documented, or anything."""
    return st.one_of(
        value,
        st.fixed_dictionaries(
            {"state": st.sampled_from(["idle", "running", "break", 3]), "rid": maybe(rid), "step": value}
        ),
        st.just([{"kind": "step", "value": 3}, 4]),
        st.just({"name": "nan-norm", "what": "…"}),
    )


def encodable(record: Record) -> bool:
    """Whether the arbitrary record is one that a source could have written."""
    try:
        encode(record)
    except ValueError:
        return False
    return True


SOURCES = {Log: "journal/x", Mark: "viewer", Probe: "probe", Stack: "stack"}


@st.composite
def traces(draw: st.DrawFn) -> bytes:
    """Lines of a trace: sources interleaved, seqs in order, gaps counted, some lines unknown or damaged."""
    drawn = [header(), *draw(st.lists(kinds(), max_size=28))]
    seqs: dict[str, int] = {}
    lines = []
    for i, record in enumerate(drawn):
        src = SOURCES.get(type(record), draw(st.sampled_from(["engine/0"] * 5 + ["engine/1"])))
        if isinstance(record, Header):
            src = "engine/0"
            seqs.pop(src, None)
        elif isinstance(record, Gap) and draw(st.booleans()):
            src = record.of
            lost = draw(st.integers(1, 4))
            seqs[src] = seqs.get(src, -1) + lost - 1
            record = Gap(src=src, seq=0, t=0, mono=0, of=src, count=lost, reason=record.reason)
        seqs[src] = seqs.get(src, -1) + 1
        fields = {name: getattr(record, name) for name in record.__struct_fields__}
        lines.append(encode(type(record)(**(fields | {"src": src, "seq": seqs[src], "t": 1000 * i, "mono": 900 * i}))))
        odd = draw(st.integers(0, 30))
        if odd == 0:
            lines.append(
                b'{"type":"future","src":"engine/0","seq":%d,"t":1,"mono":1}\n' % (seqs.get("engine/0", -1) + 1)
            )
            seqs["engine/0"] = seqs.get("engine/0", -1) + 1
        elif odd == 1:
            lines.append(b'{"type":"step","rid":"r1","step":"x"}\n')
        elif odd == 2:
            lines.append(b'{"type":"step","src":"engine/0","seq":0,"t":1,"mono":1,"rid":"r1","step":1,"draft":3}\n')
    if draw(st.booleans()):
        total = sum(seqs.values()) + len(seqs)
        lines.append(
            encode(
                Footer(
                    src="viewer",
                    seq=seqs.get("viewer", -1) + 1,
                    t=1,
                    mono=1,
                    records={},
                    emitted=total,
                    dropped=0,
                    sha256="",
                )
            )
        )
    return b"".join(lines)


def everything(store: Store, moments: list[int | None]) -> dict[str, Any]:
    """Every view, as of some moments."""
    n = store.n
    seen: dict[str, Any] = {
        "n": n,
        "header": store.header,
        "counters": store.counters,
        "newest": store.newest_rid(),
        "anomalies": {rid: list(store.anomaly_records(rid)) for rid in (None, *RIDS)},
        "rids": [store.rid_of(i) for i in range(-1, n + 1)],
        "trees": [repr(store.tree(i)) for i in range(-1, n + 1)],  # repr: NaN equals itself
        "steps": [repr(store.step(i)) for i in range(-1, n + 1)],
        "progress": store.progress,
    }
    for at in moments:
        seen[f"at {at}"] = {
            "requests": list(store.requests(at)),
            "request": [store.request(rid, at) for rid in RIDS],
            "steps": [list(store.steps(rid, at)) for rid in RIDS],
            "text": [list(store.text(rid, at)) for rid in RIDS],
            "output": [store.text(rid, at, prompt=False).plain for rid in RIDS],
            "curve": [store.curve(rid, at) for rid in (None, *RIDS)],
            "timing": [store.timing(rid, at) for rid in (None, *RIDS)],
            "totals": store.totals(at),
            "tensors": store.tensors(at),
            "logs": list(store.logs(at)),
            "facts": repr(store.facts(at)),
            "ranks": repr(store.ranks(at)),
            "state": repr(store.state(at)),
            "gaps": list(store.gaps(at)),
            "marks": store.marks(at),
            "probes": store.probes(at),
            "stack": repr(store.stack(at)),
        }
    return seen


def settle(store: Store) -> None:
    """Take in all there is."""
    for _ in range(10_000):
        if not store.poll(0.01) and store.settled:
            return
    raise AssertionError("the store does not settle")


WHOLE, CUT, LOOK, TORN = range(4)


def pieces(data: bytes, how: list[int]) -> Iterator[tuple[bytes, bool]]:
    """The bytes as they come, and whether somebody looks after each piece; `how` repeats, one a line."""
    held = b""
    for line, ending in zip(data.splitlines(keepends=True), cycle(how), strict=False):
        held += line
        if ending == TORN:
            yield held[: -(len(line) // 2)], True
            held = held[-(len(line) // 2) :]
        elif ending != WHOLE:
            yield held, ending == LOOK
            held = b""
    yield held, False


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(traces(), st.lists(st.integers(WHOLE, TORN), min_size=1, max_size=9), st.lists(st.integers(0, 40), max_size=2))
def test_every_view_is_the_same_live_and_in_replay(data: bytes, how: list[int], moments: list[int]) -> None:
    asked: list[int | None] = [None, -1, *moments]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "live.jsonl"
        path.touch()
        live = Store(path, growing=True, use_sidecar=False)
        fd = os.open(path, os.O_WRONLY | os.O_APPEND)
        for piece, look in pieces(data, how):
            os.write(fd, piece)
            live.poll(0.0)
            if look and live.n:
                everything(live, asked)  # what is cached on the way must not stay when it is no longer true
        os.close(fd)
        settle(live)
        expected = everything(live, asked)
        live.close()

        other = Path(folder) / "replay.jsonl"
        other.write_bytes(data)
        for use_sidecar in (False, True, True):  # the second of the last two reads what the first of them wrote
            replay = Store(other, use_sidecar=use_sidecar)
            settle(replay)
            found = everything(replay, asked)
            replay.close()
            assert found == expected
