"""The engine as `ddscope run` uses it: a process with the real pair, driven over its socket."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddscope.model import Fact, Gap, Header, Step, Tensor
from ddscope.sources.engine_process import EngineProcess, EngineProcessError
from ddscope.trace import verify
from tests.integration.engine_support import LiveEngine

pytestmark = pytest.mark.engine

PROMPT = "What is a hash table?"


@pytest.fixture(scope="module")
def engine() -> Iterator[LiveEngine]:
    live = LiveEngine("--max-new-tokens", "24")
    yield live
    live.close()


@pytest.fixture(autouse=True)
def _at_rest(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test leaves the shared engine running, without breakpoints and idle."""
    yield
    if "engine" in request.fixturenames:
        live: LiveEngine = request.getfixturevalue("engine")
        facts = [r for r in live.records if isinstance(r, Fact) and r.name == "breakpoints"]
        for point in facts[-1].value if facts else []:
            live.send("unbreak", **point)
        live.send("self_check", every=0)
        live.send("resume")
        live.wait_state("idle")


def submit(live: LiveEngine, rid: str, **args: object) -> None:
    live.send("submit", rid=rid, **{"prompt": PROMPT, **args})


def test_a_run_is_a_valid_trace(engine: LiveEngine, tmp_path: Path) -> None:
    submit(engine, "valid")
    finish = engine.wait_finish("valid")
    assert isinstance(engine.records[0], Header)
    assert finish.reason == "length"
    assert finish.emitted == 24 == len(engine.output("valid"))
    assert finish.steps == len(engine.steps("valid"))
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"".join(engine.lines))
    assert verify(path).problems == []
    assert not [r for r in engine.records if isinstance(r, Gap)]
    counters = engine.source.counters
    assert (counters.dropped, counters.malformed) == (0, 0)


def test_all_algorithms_write_the_same_text(engine: LiveEngine) -> None:
    texts = []
    for algorithm in ("autoregressive", "dflash", "ddtree"):
        submit(engine, f"same-{algorithm}", algorithm=algorithm)
        engine.wait_finish(f"same-{algorithm}")
        texts.append(engine.output(f"same-{algorithm}"))
    assert texts[0] == texts[1] == texts[2]
    assert all(step.tree and not step.tree.tokens for step in engine.steps("same-autoregressive"))


def test_a_budget_of_auto_writes_the_same_text_and_tells_its_policy_and_every_choice(engine: LiveEngine) -> None:
    submit(engine, "fixed", budget=7)
    submit(engine, "auto", budget="auto", draft_rows=6)
    engine.wait_finish("auto")
    assert engine.output("auto") == engine.output("fixed")
    policies = [r.value for r in engine.records if isinstance(r, Fact) and r.name == "budget.auto"]
    assert len(policies) == 2  # as it was made, and with what it had learned at the end of the request
    assert policies[0]["trust"] == [] != policies[1]["trust"]
    for step in engine.steps("auto"):
        assert step.tree is not None
        assert step.tree.auto is not None
        assert len(step.tree.tokens) == step.tree.budget <= step.tree.auto.most == policies[0]["most"]
    assert all(step.tree is not None and step.tree.auto is None for step in engine.steps("fixed"))


def test_a_smaller_block_part_of_the_vocabulary_and_a_cut_tree_write_the_same_text(engine: LiveEngine) -> None:
    submit(engine, "plainly", algorithm="autoregressive")
    submit(engine, "cheaply", budget=5, draft_rows=6, draft_vocab=12288, cut=0.05)
    engine.wait_finish("cheaply")
    assert engine.output("cheaply") == engine.output("plainly")
    drafts = [step.draft for step in engine.steps("cheaply") if step.draft is not None]
    assert drafts
    assert all(len(draft.ids) == 5 and draft.logz is None for draft in drafts)
    assert max(token for draft in drafts for ids in draft.ids for token in ids) < 12288
    sizes = [len(step.tree.tokens) for step in engine.steps("cheaply") if step.tree is not None]
    assert max(sizes) <= 5
    assert min(sizes) < 5, "no tree was cut"


def test_pause_step_and_resume(engine: LiveEngine) -> None:
    engine.send("pause")
    submit(engine, "stepped")
    engine.wait_state("paused")
    assert engine.steps("stepped") == []
    for count in (1, 2):
        mark = engine.n
        engine.send("step")
        engine.wait(lambda rs, mark=mark: any(isinstance(r, Step) for r in rs[mark:]))
        engine.wait_state("paused", after=mark)
        assert len(engine.steps("stepped")) == count
    engine.send("resume")
    assert engine.wait_finish("stepped").emitted == 24


def test_parameters_change_between_steps(engine: LiveEngine) -> None:
    engine.send("pause")
    submit(engine, "changed")
    engine.wait_state("paused")
    for budget, algorithm in ((3, "ddtree"), (63, "ddtree"), (0, "ddtree"), (7, "autoregressive"), (7, "dflash")):
        mark = engine.n
        engine.send("set", budget=budget, algorithm=algorithm)
        engine.send("step")
        engine.wait(lambda rs, mark=mark: any(isinstance(r, Step) for r in rs[mark:]))
        engine.wait_state("paused", after=mark)
    engine.send("set", budget=15, algorithm="ddtree")
    engine.send("resume")
    engine.wait_finish("changed")
    kinds = [(step.algorithm, len(step.tree.tokens)) for step in engine.steps("changed")]  # type: ignore[union-attr]
    assert kinds[:4] == [("ddtree", 3), ("ddtree", 63), ("ddtree", 0), ("autoregressive", 0)]
    assert kinds[4][0] == "dflash"
    submit(engine, "unchanged")
    engine.wait_finish("unchanged")
    assert engine.output("changed") == engine.output("unchanged")


@pytest.mark.parametrize(
    ("point", "holds"),
    [
        ({"kind": "accepted_zero"}, lambda step: len(step.path) == 1),
        ({"kind": "step", "value": 2}, lambda step: step.step == 2),
        ({"kind": "token_text", "value": "data"}, lambda step: step.step >= 0),
    ],
    ids=lambda value: value["kind"] if isinstance(value, dict) else "",
)
def test_a_breakpoint_stops_before_the_commit(engine: LiveEngine, point: dict[str, object], holds) -> None:  # type: ignore[no-untyped-def]
    rid = f"break-{point['kind']}"
    mark = engine.n
    engine.send("break", **point)
    # One node a step: a hash table's first 24 tokens have it rejected somewhere, and deeper trees need not.
    submit(engine, rid, budget=1)
    state = engine.wait_state("break", after=mark)
    stopped = engine.steps(rid)[-1]
    assert holds(stopped)
    assert state.value["step"] == stopped.step
    assert state.value["reason"]
    assert stopped.time is not None
    assert stopped.time.commit is None  # the tree is on the screen, and nothing was committed
    assert stopped.time.verify
    mark = engine.n
    engine.send("check_now")
    fact = engine.wait(
        lambda rs: next((r for r in rs[mark:] if isinstance(r, Fact) and r.name == "replay_check"), None)
    )
    assert fact.value["ok"] is True
    engine.send("unbreak", **point)
    engine.send("resume")
    engine.wait_finish(rid)
    following = next(step for step in engine.steps(rid) if step.step == stopped.step + 1)
    assert following.base == stopped.base + len(stopped.path)
    assert [step.step for step in engine.steps(rid)] == list(range(len(engine.steps(rid))))


def test_step_at_a_breakpoint_commits_and_stands(engine: LiveEngine) -> None:
    mark = engine.n
    engine.send("break", kind="step", value=1)
    submit(engine, "stand")
    engine.wait_state("break", after=mark)
    mark = engine.n
    engine.send("step")
    engine.wait_state("paused", after=mark)
    assert len(engine.steps("stand")) == 2


def test_abort_ends_a_request_at_a_breakpoint(engine: LiveEngine) -> None:
    mark = engine.n
    engine.send("break", kind="step", value=0)
    submit(engine, "aborted")
    engine.wait_state("break", after=mark)
    engine.send("abort", rid="aborted")
    assert engine.wait_finish("aborted").reason == "abort"


@pytest.mark.parametrize(
    ("command", "args"),
    [
        ("submit", {}),
        ("submit", {"prompt_ids": []}),
        ("submit", {"prompt": "x", "temperature": -1}),
        ("submit", {"prompt": "x", "algorithm": "magic"}),
        ("set", {"budget": 10**9}),
        ("set", {"what": 1}),
        ("break", {"kind": "never"}),
        ("break", {"kind": "step", "value": "soon"}),
        ("abort", {"rid": "nobody"}),
        ("dance", {}),
    ],
)
def test_a_command_that_does_not_fit_is_refused_in_words(
    engine: LiveEngine, command: str, args: dict[str, object]
) -> None:
    mark = engine.n
    engine.send(command, **args)
    refusal = engine.wait_refusal(after=mark)
    assert refusal.value["command"] == command
    assert refusal.value["why"].endswith(".")


def test_a_prompt_the_target_cannot_take_ends_that_request_only(engine: LiveEngine) -> None:
    submit(engine, "outside", prompt_ids=[10**7])
    assert engine.wait_finish("outside").reason == "error"
    submit(engine, "after", max_new_tokens=2)
    assert engine.wait_finish("after").reason == "length"


def test_the_shape_that_does_not_fit_stops_at_its_breakpoint_and_ends_the_request() -> None:
    live = LiveEngine("--max-new-tokens", "8", "--fault", "final-layer-only")
    try:
        live.send("break", kind="shape_mismatch")
        submit(live, "shape")
        state = live.wait_state("break")
        assert "576" in state.value["reason"]
        assert "2880" in state.value["reason"].replace(",", "")
        live.send("resume")
        assert live.wait_finish("shape").reason == "error"
        tensor = next(r for r in live.records if isinstance(r, Tensor) and r.name == "draft.target_hidden")
        assert (tensor.ok, tensor.shape[-1], tensor.expect) == (False, 576, [None, 2880])
    finally:
        live.close()


def test_the_engine_leaves_when_its_parent_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time\n"
        "from ddscope.sources.engine_process import EngineProcess\n"
        "engine = EngineProcess([]); engine.start()\n"
        "print(engine._process.pid, engine.socket, flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid, _socket = parent.stdout.readline().split()
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with contextlib.suppress(FileNotFoundError):
            # A zombie waits for init only; what counts is that it no longer runs.
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX":
                time.sleep(0.05)
                continue
        return
    raise AssertionError("the engine still runs")


@pytest.mark.parametrize(
    "options",
    [
        ["--fault", "no-such-fault"],
        ["--target", "/nonexistent", "--draft", "/nonexistent"],
        ["--device", "cuda"],
        ["--budget", "5000"],
    ],
    ids=" ".join,
)
def test_an_engine_that_cannot_start_says_why_in_one_sentence(options: list[str]) -> None:
    import torch

    if options == ["--device", "cuda"] and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with EngineProcess(options) as process, pytest.raises(EngineProcessError) as refused:
        process.start()
    assert "Traceback" not in str(refused.value)
    assert "\n" not in str(refused.value)
