"""The taps on a small server whose every number is known: output, paths, books, cuts, faults; and no host sync."""

from __future__ import annotations

import types
from collections import defaultdict
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from ddscope.model import Step
from ddscope.trace.stepcheck import follow_problems, step_problems
from ddscope_hooks.config import Config, Sample
from ddscope_hooks.taps import registry
from ddscope_hooks.taps.hooks import Hook
from ddscope_hooks.taps.place import Place
from tests.unit.hooks_support import HostSync, Params, Reason, Req, Server, device, following, serving


def requests(*lengths: int) -> list[Req]:
    return [Req(f"r{i}", [3 + i, 4, 5 + i], Params(max_new_tokens=n)) for i, n in enumerate(lengths)]


def steps_of(server: Server) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for record in server.records("step"):
        found[record["rid"]].append(record)
    return found


def outputs(server: Server) -> dict[str, list[int]]:
    """Each request's output by its records: the root of its first step, then what its steps emitted."""
    return {
        rid: [steps[0]["root"], *(t for s in steps for t in s["emitted"])] for rid, steps in steps_of(server).items()
    }


def assert_sound(server: Server) -> None:
    for steps in steps_of(server).values():
        records = [msgspec.convert(step, Step) for step in steps]
        assert [record.step for record in records] == list(range(len(records)))
        for record in records:
            assert list(step_problems(record)) == []
        for before, after in pairwise(records):
            assert list(follow_problems(before, after)) == []


def no_faults(server: Server) -> None:
    assert [f["value"] for f in server.records("fact") if f["name"] == "hook.fault"] == []


@pytest.mark.parametrize("spec", [True, False])
@pytest.mark.parametrize("overlap", [True, False])
def test_recorded_is_returned_token_for_token(spec: bool, overlap: bool) -> None:
    algorithm = "STANDALONE" if spec else "autoregressive"
    with serving(spec=spec, overlap=overlap, algorithm=algorithm) as server:
        reqs = requests(16, 7, 9)
        server.run(reqs)
        no_faults(server)
        assert outputs(server) == {req.rid: req.returned for req in reqs}
        assert_sound(server)
        finishes = {f["rid"]: f for f in server.records("finish")}
        for req in reqs:
            assert finishes[req.rid]["emitted"] == len(req.returned) and finishes[req.rid]["reason"] == "length"
            if spec:
                assert finishes[req.rid]["steps"] == req.spec_verify_ct == len(steps_of(server)[req.rid])


def test_a_speculative_step_shows_tree_path_choices_and_positions() -> None:
    with serving(right=lambda step: 2) as server:
        (req,) = reqs = requests(6)
        server.prefill(reqs)
        server.decode(reqs)
        (step,) = server.records("step")
        root = req.returned[0]
        one = following(root)
        assert step["tree"]["tokens"] == [one, one + 1, following(one)] and step["tree"]["parents"] == [0, 0, 1]
        assert step["tree"]["positions"] == [3, 4, 4, 5] and step["tree"]["mask"] == ["1", "3", "5", "b"]
        assert step["base"] == 3 and step["root"] == root and step["path"] == [0, 1, 3]
        assert step["target"]["ids"] == [one, following(one), following(one + 1), following(following(one))]
        assert (
            step["emitted"] == [one, following(one), following(following(one))] and step["bonus"] == step["emitted"][-1]
        )
        assert step["batch"] == [0, 1] and step["algorithm"] == "standalone" and step["time_domain"] == "host"
        assert {"draft", "verify", "commit", "total"} == step["time"].keys()
        assert step["flags"] == {"graph": False, "overlap": True, "sampled": False}


def test_what_the_next_pass_overwrites_was_copied_before() -> None:
    """The stand-in spoils logits and draft tokens as soon as its worker has made the result."""
    with serving() as server:
        reqs = requests(12)
        server.run(reqs)
        assert not any("nonfinite" in step["flags"] for step in server.records("step"))
        assert_sound(server)


def test_top_k_is_told_on_the_path_and_only_where_asked_for() -> None:
    with serving(config=Config(topk=3), right=lambda step: 1) as server:
        reqs = requests(5)
        server.prefill(reqs)
        server.decode(reqs)
        (step,) = server.records("step")
        top = step["target"]["topk"]
        assert [row[0] for row in top["ids"]] == [step["target"]["ids"][node] for node in step["path"]]
        assert all(len(row) == 3 and row == sorted(row, reverse=True) for row in top["logprobs"])
        assert step["target"]["gap"] == [5.0] * 4
    with serving() as server:
        reqs = requests(5)
        server.prefill(reqs)
        server.decode(reqs)
        assert "topk" not in server.records("step")[0]["target"]


def test_the_request_comes_first_with_its_prompt_and_settings() -> None:
    with serving() as server:
        (req,) = reqs = requests(3)
        req.cached_tokens = 2
        server.run(reqs)
        (record,) = server.records("request")
        assert record["prompt_ids"] == [3, 4, 5] and record["prompt_len"] == 3 and record["cached_tokens"] == 2
        assert record["sampling"]["temperature"] == 0 and record["sampling"]["max_new_tokens"] == 3
        assert record["seq"] < min(step["seq"] for step in server.records("step"))


@pytest.mark.parametrize(("redact", "prompt", "tree"), [("text", True, True), ("ids", False, False)])
def test_redacted_ids_leave_neither_prompt_nor_tokens(redact: str, prompt: bool, tree: bool) -> None:
    with serving(config=Config(redact=redact)) as server:
        server.run(requests(8))
        assert ("prompt_ids" in server.records("request")[0]) == prompt
        for step in server.records("step"):
            assert ("tree" in step) == tree and ("emitted" in step) == tree and "path" in step


def test_results_of_requests_that_ended_or_were_retracted_meanwhile_are_no_steps() -> None:
    """Under overlap the next pass is launched before the last result is processed."""
    with serving() as server:
        done, retracted, alive = reqs = requests(16, 16, 16)
        server.prefill(reqs)

        def meanwhile() -> None:
            done.finished_reason = Reason("stop")
            retracted.is_retracted = True

        server.decode(reqs, meanwhile)
        assert steps_of(server).keys() == {alive.rid}


def test_a_request_whose_output_does_not_grow_has_no_step() -> None:
    with serving(spec=False, algorithm="autoregressive") as server:
        beam, plain = reqs = requests(9, 9)
        server.prefill(reqs)
        beam.output_ids = type("Kept", (type(beam.output_ids),), {"extend": lambda *_: None})("q", beam.output_ids)
        server.decode(reqs)
        assert steps_of(server).keys() == {plain.rid}
        no_faults(server)


def test_a_retracted_request_goes_on_and_its_output_has_no_hole() -> None:
    with serving() as server:
        (req,) = reqs = requests(12)
        server.prefill(reqs)
        server.decode(reqs)
        req.is_retracted = True
        server.decode(reqs)
        req.is_retracted = False
        server.prefill(reqs)  # over the prompt and the output so far; its token belongs to a step
        while not req.finished():
            server.decode(reqs)
        assert outputs(server) == {req.rid: req.returned}
        assert_sound(server)
        assert len(server.records("request")) == 1


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (Reason("stop"), "stop"),
        (Reason("abort"), "abort"),
        (Reason("abort", 500), "error"),
        (Reason("abort", 400), "abort"),
    ],
)
def test_the_end_says_why(reason: Reason, told: str) -> None:
    with serving() as server:
        (req,) = reqs = requests(30)
        req.update_finish_state = lambda: setattr(req, "finished_reason", reason)  # type: ignore[method-assign]
        server.prefill(reqs)
        (finish,) = server.records("finish")
        assert finish["reason"] == told and finish["emitted"] == 1 and finish["steps"] == 0


def test_a_stop_inside_the_last_block_cuts_what_it_emitted() -> None:
    with serving(right=lambda step: 2) as server:
        (req,) = reqs = requests(30)
        server.prefill(reqs)

        def stop() -> None:
            req.finished_reason, req.finished_len = Reason("stop"), 2

        req.update_finish_state = stop  # type: ignore[method-assign]
        server.decode(reqs)
        (step,) = server.records("step")
        assert len(step["path"]) == 3 and len(step["emitted"]) == 1 and step["flags"]["truncated"] is True
        assert server.records("finish")[0]["emitted"] == 2 and outputs(server) == {req.rid: req.returned}


@pytest.mark.parametrize("accepts_its_own_way", [False, True])
def test_an_algorithm_that_nobody_knows_shows_its_trees(accepts_its_own_way: bool) -> None:
    """An out-of-tree DDTREE, by SGLang's accept function or by its own: then the path is found by its tokens."""
    taps = [module for module in registry.families() if not (accepts_its_own_way and module.NAME == "eagle")]
    with serving(algorithm="DDTREE", taps=taps) as server:
        reqs = requests(16, 7)
        server.run(reqs)
        no_faults(server)
        assert outputs(server) == {req.rid: req.returned for req in reqs}
        assert_sound(server)
        for step in server.records("step"):
            assert step["algorithm"] == "ddtree" and step["tree"]["parents"] == [0, 0, 1] and step["path"]


# -- sampling: emitted = received + dropped, checked by the viewer's books at every record -----------------------------


@pytest.mark.parametrize("every", [2, 3, 7])
def test_every_nth_pass_is_told_and_the_others_are_counted(every: int) -> None:
    with serving(config=Config(sample=Sample(every=every))) as server:
        reqs = requests(20, 20)
        server.prefill(reqs)
        for _ in range(6):
            server.decode(reqs)
        server.core.flush()
        told = server.records("step")
        left = sum(g["count"] for g in server.records("gap"))
        assert len(told) + left == 12 and {g["reason"] for g in server.records("gap")} <= {"rate_limited"}
        assert len(told) == 2 * (6 // every) and all(step["step"] % every == every - 1 for step in told)


def test_only_requests_of_the_prefix_are_told() -> None:
    with serving(config=Config(sample=Sample(rid="r1"))) as server:
        reqs = requests(9, 9, 9)
        server.run(reqs)
        assert steps_of(server).keys() == {"r1"} and {r["rid"] for r in server.records("request")} == {"r1"}
        assert {r["rid"] for r in server.records("finish")} == {"r1"}
        assert outputs(server)["r1"] == reqs[1].returned
        assert sum(g["count"] for g in server.records("gap")) > 0


def test_every_0_records_no_step_and_touches_no_tensor() -> None:
    with serving(config=Config(sample=Sample(every=0))) as server:
        reqs = requests(9)
        server.run(reqs)
        assert server.core.passes == 0 and not server.records("step") and not server.records("request")
        server.core.sampling.set(Sample())
        more = [Req("late", [1, 2])]
        server.run(more)
        assert outputs(server) == {"late": more[0].returned}


def test_a_request_that_ends_while_nothing_is_recorded_still_has_an_end() -> None:
    with serving() as server:
        (req,) = reqs = requests(9)
        server.prefill(reqs)
        server.decode(reqs)
        server.core.sampling.set(Sample(every=0))
        while not req.finished():
            server.decode(reqs)
        assert len(server.records("step")) == 1
        assert [f["emitted"] for f in server.records("finish")] == [len(req.returned)]


def test_a_bound_on_bytes_leaves_steps_out_and_counts_them() -> None:
    with serving(config=Config(sample=Sample(max_bytes_per_s=1500))) as server:
        reqs = requests(200)
        server.prefill(reqs)
        for _ in range(50):
            server.decode(reqs)
            server.pump()
        server.core.flush()
        told, left = len(server.records("step")), sum(g["count"] for g in server.records("gap"))
        assert told + left == 50 and 0 < told < 25


def test_without_a_viewer_nothing_is_captured_but_the_count_goes_on() -> None:
    with serving(watched=False) as server:
        reqs = requests(9)
        server.prefill(reqs)
        captured: list[bool] = []
        original = server.scheduler.verify
        server.scheduler.verify = lambda batch: (captured.append(server.core.capture), original(batch))[1]
        server.pump()
        before = server.emitter.counters.emitted
        server.decode(reqs)
        server.core.flush()
        server.pump()
        assert captured == [False] and server.emitter.counters.emitted == before + 1


# -- ranks -------------------------------------------------------------------------------------------------------------


def test_another_rank_sends_what_was_emitted_and_no_tree() -> None:
    with serving(place=Place(rank=1, tp=1, tp_size=2, lead=False)) as server:
        reqs = requests(9)
        server.run(reqs)
        for step in server.records("step"):
            assert step["rank"] == 1 and "tree" not in step and "target" not in step and step["emitted"]
        assert outputs(server) == {req.rid: req.returned for req in reqs}
        assert_sound(server)


# -- faults ------------------------------------------------------------------------------------------------------------


def breaking(name: str) -> list[Any]:
    """The families, with every hook of one of them raising."""

    def broken(*_: Any) -> None:
        raise RuntimeError("broken on purpose")

    def of(module: Any) -> Any:
        def hooks(core: Any) -> list[list[Hook]]:
            return [[Hook(h.target, h.when, h.needs, broken) for h in group] for group in module.hooks(core)]

        return types.SimpleNamespace(NAME=module.NAME, ALGORITHMS=module.ALGORITHMS, hooks=hooks)

    return [of(module) if name == module.NAME else module for module in registry.families()]


@pytest.mark.parametrize("name", ["requests", "universal", "eagle"])
def test_a_tap_that_raises_is_told_once_and_the_server_answers_as_before(name: str) -> None:
    with serving() as server:
        clean = requests(16, 7)
        server.run(clean)
    with serving(taps=breaking(name)) as server:
        reqs = requests(16, 7)
        server.run(reqs)
        assert [req.returned for req in reqs] == [req.returned for req in clean]
        faults = [f["value"] for f in server.records("fact") if f["name"] == "hook.fault"]
        assert [fault["tap"] for fault in faults] == [name] and "broken on purpose" in faults[0]["error"]
        assert [g["count"] for g in server.records("gap") if g["reason"] == "hook_fault"] == [None]
        if name != "requests":  # the others go on, and the path is found by its tokens
            assert outputs(server) == {req.rid: req.returned for req in reqs}
            assert all(("tree" in step) == (name == "eagle") for step in server.records("step"))
            assert_sound(server)


def test_facts_that_cannot_be_had_do_not_stop_the_steps() -> None:
    def broken(_: Any) -> None:
        raise AttributeError("no such model")

    with serving() as server:
        server.core.on_meet(broken)
        reqs = requests(9)
        server.run(reqs)
        assert outputs(server) == {req.rid: req.returned for req in reqs}
        assert [f["value"]["tap"] for f in server.records("fact") if f["name"] == "hook.fault"] == ["facts"]


# -- host syncs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "read",
    [lambda t: t.item(), lambda t: bool(t), lambda t: t.tolist(), lambda t: t.cpu(), lambda t: (t + 1).sum().item(),
     lambda t: int(t), lambda t: t.to("cpu"), lambda t: t.numpy()],
)  # fmt: skip
def test_the_stand_in_for_a_device_refuses_every_host_sync(read: Any) -> None:
    with pytest.raises(HostSync):
        read(device([1])[0])


@pytest.mark.parametrize("config", [Config(), Config(topk=4)])
@pytest.mark.parametrize("spec", [True, False])
def test_no_hook_makes_the_server_wait(config: Config, spec: bool) -> None:
    """Every tensor of the stand-in refuses host syncs, so one in a hook would have tripped its breaker."""
    with serving(config=config, spec=spec, algorithm="STANDALONE" if spec else "autoregressive") as server:
        reqs = requests(16, 7, 9)
        server.run(reqs)
        no_faults(server)
        assert all("tree" in step for step in server.records("step"))


def test_a_hook_that_syncs_would_be_noticed() -> None:
    """The proof above can fail: a tap that reads one value is caught."""
    reader = types.SimpleNamespace(
        NAME="reader",
        ALGORITHMS=None,
        hooks=lambda core: [
            [Hook("sglang.srt.speculative.eagle_utils.eagle_sample", "after", (), lambda result: result[1].tolist())]
        ],
    )
    with serving(taps=[*registry.families(), reader]) as server:
        server.run(requests(5))
        faults = [f["value"] for f in server.records("fact") if f["name"] == "hook.fault"]
        assert [fault["tap"] for fault in faults] == ["reader"] and "HostSync" in faults[0]["error"]
