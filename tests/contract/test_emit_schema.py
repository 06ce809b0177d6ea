"""What the emitter emits is what docs/trace-schema.json and the Structs say, with either encoder; recordings verify."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from ddscope.model import RECORD_TYPES, Step, Tokens, text_bytes
from ddscope.trace import Damaged, Unknown, decode, verify
from ddscope_hooks.emit import Emitter
from ddscope_hooks.emit.encoder import body_json, body_orjson

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "trace-schema.json").read_text("utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
NAN = float("nan")


def step(n: int, **more: Any) -> dict[str, Any]:
    """A step that breaks no invariant: 3 nodes, a path of two."""
    return {
        "rid": "r", "step": n, "algorithm": "ddtree", "batch": (0, 1), "rank": 0, "base": 2 + 2 * n, "root": 5,
        "draft": {"k": 2, "ids": [[7, 8], [9, 7]], "logprobs": [[-0.1, -2.0], [-0.5, -NAN]], "logz": [3.0, 4.0],
                  "entropy": [0.5, 0.25]},
        "tree": {"budget": 3, "tokens": [7, 8, 9], "parents": [0, 0, 1], "logprobs": [-0.1, -2.0, -0.5],
                 "positions": [2 + 2 * n, 3 + 2 * n, 3 + 2 * n, 4 + 2 * n], "mask": ["1", "3", "5", "b"]},
        "target": {"ids": [7, 5, 1, 2], "logprobs": [-0.1, -0.2, -0.3, float("inf")], "gap": [0.1, 0.2, 0.3, 0.4],
                   "topk": {"ids": [[7, 8], [5, 6]], "logprobs": [[-0.1, -3.0], [-0.2, -2.0]]}},
        "path": [0, 1], "bonus": 5, "emitted": [7, 5],
        "time": {"draft": 10, "build": 2, "mask": 1, "verify": 90, "commit": 3, "total": 106}, "time_domain": "host",
        "flags": {"nonfinite": {"draft": 1, "target": 0}, "graph": False, "sampled": False}, **more,
    }  # fmt: skip


EVERY_TYPE: list[tuple[str, dict[str, Any]]] = [
    ("request", {"rid": "r", "prompt_len": 2, "prompt_ids": [3, 4], "sampling": {"seed": 0}, "cached_tokens": 0}),
    ("step", step(0)),
    ("step", step(1)),
    ("step", {"rid": "r", "step": 2, "base": 6, "path": [0], "bonus": 7, "emitted": [7]}),
    ("step", step(0, rid="arrays", base=np.int64(2),
                  draft={"k": 1, "ids": np.array([[7]]), "logprobs": np.array([[NAN]])})),
    ("tensor", {"name": "draft.hidden", "shape": [1, 576], "dtype": "float32", "expect": [None, 2880], "ok": False}),
    ("finish", {"rid": "r", "reason": "length", "emitted": 6, "steps": 3}),
    ("log", {"message": b"\xff\xfe", "cursor": "c", "unit": "u", "pid": 1, "priority": 3, "ident": "i"}),
    ("log", {"message": "cut", "partial": True}),
    ("log", {"message": None}),
    ("probe", {"rung": "port", "ok": True, "ms": 1.5, "detail": "x"}),
    ("stack", {"pid": 1, "threads": [{"id": 1, "name": "m", "gil": True, "frames": ["f (a.py:1)"]}], "mode": "x"}),
    ("fact", {"name": "versions", "value": {"torch": "2", "path": b"/\xff", "odd": {1: (2, 3)}, "big": 2**70}}),
    ("control", {"command": "set", "args": {"budget": 31}, "by": "viewer"}),
    ("mark", {"text": "here", "at": {"src": "engine/0", "seq": 3}}),
    ("gap", {"of": "engine/0", "count": 4, "reason": "rate_limited"}),
    ("gap", {"of": "journal/u", "count": None, "reason": "cursor_lost"}),
]  # fmt: skip
HEADER = {
    "engine": {"name": "ddscope", "version": "0", "algorithm": "ddtree", "config": {"budget": 15, "nan": NAN}},
    "model": {"target": "t", "draft": "d", "vocab_size": 10, "hidden_size": 4, "num_layers": 2},
}


@pytest.fixture(params=[pytest.param(body_json, id="json"), pytest.param(body_orjson, id="orjson")])
def recording(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A file sink's recording of every type of record, and of what goes wrong."""
    emitter = Emitter("engine/0", HEADER, body=request.param, token_text=lambda ids: [b"\xe2%d" % i for i in ids])
    path = emitter.listen(f"file:{tmp_path}/t.jsonl")
    for type_, fields in EVERY_TYPE:
        emitter.emit(type_, fields)
    emitter.fault("tap", ValueError("\udcff surrogates in the message"))
    emitter.emit("fact", {"name": "bad", "value": object()})
    emitter.close()
    yield Path(path)


def test_every_line_fits_the_schema(recording: Path) -> None:
    lines = recording.read_bytes().splitlines()
    for line in lines:
        VALIDATOR.validate(json.loads(line))
    assert {json.loads(line)["type"] for line in lines} == set(RECORD_TYPES), "every type is tried"


def test_the_schema_would_refuse_a_wrong_line(recording: Path) -> None:
    line = json.loads(recording.read_bytes().splitlines()[0])
    for broken in ({**line, "seq": "0"}, {**line, "format": None}, {k: v for k, v in line.items() if k != "host"}):
        with pytest.raises(jsonschema.ValidationError):
            VALIDATOR.validate(broken)


def test_every_line_is_a_record_with_the_values_that_were_emitted(recording: Path) -> None:
    records = [decode(line) for line in recording.read_bytes().splitlines()]
    assert not [r for r in records if isinstance(r, (Unknown, Damaged))]
    steps = [r for r in records if isinstance(r, Step)]
    assert steps[0].tree is not None and steps[0].tree.parents == [0, 0, 1] and steps[0].batch == [0, 1]
    assert steps[0].draft is not None and steps[0].draft.logprobs == [[-0.1, -2.0], [-0.5, None]]
    assert steps[0].target is not None and steps[0].target.logprobs == [-0.1, -0.2, -0.3, None]
    assert steps[3].base == 2 and steps[3].draft is not None and steps[3].draft.ids == [[7]]
    told = {i: text_bytes(x) for r in records if isinstance(r, Tokens) for i, x in zip(r.ids, r.text, strict=True)}
    assert told == {i: b"\xe2%d" % i for i in (3, 4, 5, 7, 8, 9, 1, 2, 6)}


def test_the_recording_verifies(recording: Path) -> None:
    assert [p.text for p in verify(recording).problems] == []
