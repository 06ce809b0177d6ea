"""Two tensor-parallel ranks of a real SGLang: two schedulers over gloo, each a source, in one recording."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ddscope.model import Finish, Header, Request, Step
from ddscope.session import Session
from ddscope.trace.ranks import rank_of
from tests.integration.sglang.conftest import Tiny
from tests.integration.sglang.support import checks
from tests.integration.sglang.support.reading import Trace, told
from tests.integration.sglang.support.running import Run
from tests.integration.sglang.support.server import Engine

WAIT_S = 60
FIRST, SECOND = "engine/0", "engine/1"


class Ranks:
    """An engine of two ranks, and a session that records what both tell."""

    def __init__(self, engine: Engine, session: Session) -> None:
        self.session = session
        self.both = Trace(session.path)
        self.second = Trace(session.path, SECOND)
        self.run = Run(engine, Trace(session.path, FIRST))

    def wait(self, sources: tuple[str, ...], kind: type, count: int, rid: str | None = None) -> None:
        """Until each of the sources has told so many records of this kind (of this request)."""

        def there(_: object) -> bool:
            self.both.refresh()
            found = [r.src for r in self.both.of(kind) if rid is None or r.rid == rid]
            return all(found.count(source) >= count for source in sources)

        assert self.session.wait_for(there, WAIT_S), f"{count} {kind.__name__} of {sources}: {self.both.sources}"
        self.run.trace.refresh()
        self.second.refresh()


@pytest.fixture(scope="module")
def ranks(tiny: Tiny, tiny_baseline: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """After the baseline, so that its engine and this one do not run at once."""
    folder: Path = tmp_path_factory.mktemp("ranks")
    folder.chmod(0o700)
    env = {
        "DDSCOPE": f"unix:{folder}/%r.sock",
        "SGLANG_CPU_OMP_THREADS_BIND": "0|1",  # else SGLang wants a NUMA node for each rank
    }
    engine = Engine(tiny.tree("STANDALONE", tiny.standalone) | {"tp_size": 2}, folder, env)
    try:
        with Session.run(servers=[folder], out=folder / "trace.jsonl") as session:
            ranks = Ranks(engine, session)
            ranks.wait((FIRST, SECOND), Header, 1)
            yield ranks
    finally:
        engine.stop()


@pytest.fixture(scope="module")
def rids(ranks: Ranks, tiny: Tiny) -> list[str]:
    rids = ranks.run.generate(tiny.prompts, tiny.tokens)
    for rid in rids:
        ranks.wait((FIRST, SECOND), Finish, 1, rid)
    return rids


def test_each_rank_is_a_source_and_says_which_it_is(ranks: Ranks, rids: list[str]) -> None:
    assert set(ranks.both.sources) == {FIRST, SECOND}
    headers = {header.src: header for header in ranks.both.of(Header)}
    for source, header in headers.items():
        assert header.engine is not None and header.engine.config is not None
        config = header.engine.config
        assert (config["rank"], config["tp"], config["tp_size"]) == (rank_of(source), rank_of(source), 2)


def test_the_first_rank_tells_what_the_server_did(
    ranks: Ranks, rids: list[str], tiny_baseline: list[dict[str, Any]]
) -> None:
    checks.tokens_are_the_answers(ranks.run, rids)
    checks.counts_are_the_servers(ranks.run, rids)
    checks.trees_are_sound(ranks.run, rids, branching=True)
    for rid, plain in zip(rids, tiny_baseline, strict=True):
        assert ranks.run.outputs[rid]["output_ids"] == plain["output_ids"]


def test_the_other_rank_tells_the_same_steps_without_trees(ranks: Ranks, rids: list[str]) -> None:
    for rid in rids:
        steps, repeated = ranks.run.trace.steps(rid), ranks.second.steps(rid)
        assert [(step.step, step.emitted) for step in repeated] == [(step.step, step.emitted) for step in steps]
        assert all(step.tree is None and step.target is None and step.rank == 1 for step in repeated)
    assert {request.rid for request in ranks.second.of(Request)} == set(rids)


def test_both_ranks_are_on_one_time_axis(ranks: Ranks, rids: list[str]) -> None:
    """No rank can end a pass that the other has not begun: each waits in the collectives of that pass."""
    assert len({header.boot_id for header in ranks.both.of(Header)}) == 1
    for one, other in ((ranks.run.trace, ranks.second), (ranks.second, ranks.run.trace)):
        for before, after in pairwise(one.steps(rids[0])):
            (same,) = (step for step in other.steps(rids[0]) if step.step == after.step)
            assert before.mono < same.mono, f"step {after.step}"


def test_the_views_count_each_step_once(ranks: Ranks, rids: list[str]) -> None:
    rows = {row.rid: row for row in ranks.session.store.requests()}
    assert set(rows) == set(rids)
    for rid in rids:
        assert rows[rid].steps == ranks.run.outputs[rid]["meta_info"]["spec_verify_ct"]


def test_ranks_that_agree_are_found_to_agree(ranks: Ranks, rids: list[str]) -> None:
    assert [found.title for found in ranks.both.findings() if found.id == "hang.rank_divergence"] == []
    for source, (emitted, received, dropped) in ranks.both.sources.items():
        assert emitted == received + dropped and dropped == 0, source


def test_a_token_that_only_one_rank_emits_is_named(ranks: Ranks, rids: list[str], tiny: Tiny) -> None:
    ranks.run.engine.scheduler("part", "ids 2")
    (rid,) = ranks.run.generate(tiny.prompts[:1], tiny.tokens, "ids")
    ranks.wait((FIRST, SECOND), Finish, 1, rid)
    one, two = ranks.run.trace.steps(rid), ranks.second.steps(rid)
    assert [a.step for a, b in zip(one, two, strict=True) if a.emitted != b.emitted] == [2]
    (found,) = (found for found in ranks.both.findings() if found.id == "hang.rank_divergence")
    assert (found.kind, found.rid) == ("ids", rid)
    assert "Ranks 0, 1" in found.title and f"first at step 2 of request {rid}" in found.title


def test_a_rank_that_accepts_less_is_named_though_the_server_answers(ranks: Ranks, rids: list[str], tiny: Tiny) -> None:
    """The last test here: the first rank is done and answers, the other waits for it in its next collective, for ever.

    The request is cut to end with a step in which a draft was accepted: there the second rank has one token less.
    """
    steps = ranks.run.trace.steps(rids[0])
    last = next(step for step in steps if step.step and len(told(step)) > 1)
    tokens = 1 + sum(len(told(step)) for step in steps[: last.step + 1])
    ranks.run.engine.scheduler("part", f"counts {last.step}")
    (rid,) = ranks.run.generate(tiny.prompts[:1], tokens, "counts")
    assert len(ranks.run.outputs[rid]["output_ids"]) == tokens
    ranks.wait((FIRST, SECOND), Step, last.step + 1, rid)
    one, two = ranks.run.trace.steps(rid)[-1], ranks.second.steps(rid)[-1]
    assert one.step == two.step == last.step
    assert len(told(two)) == len(told(one)) - 1
    assert [finish.rid for finish in ranks.second.of(Finish) if finish.rid == rid] == []
    found = next(found for found in ranks.both.findings() if found.id == "hang.rank_divergence")
    assert found.kind == "counts" and found.severity == "critical"
    assert "the next collective may wait for ever" in found.detail
