"""What the hooks cost a real SGLang engine on a GPU, with CUDA graphs and overlap scheduling on: one table.

One engine an algorithm, never two compared: while it generates, four states alternate every few passes, in random
order there and back. "none" has SGLang's own functions where the taps were; "off" has the taps with `sampling every=0`;
"on" is with nobody listening; "viewer" records and a second process writes the trace. Ratios are to "none" of the same
round. What a viewer wrote of other requests is compared with what the engine returned, token for token. Needs a CUDA
machine with SGLang and ddscope (`pip install --no-deps ddscope`, msgspec). Run: python benchmarks/sglang_overhead.py
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import fcntl
import importlib.metadata
import itertools
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sglang_probe as probe
from sglang_probe import STATES, Shared
from sglang_tables import cell, kind_of, ratio, read_profile, tables
from sglang_viewer import Switch, Viewer, wait_for

import ddscope

SHIPPED = Path(ddscope.__file__).parent / "engine/data/smollm2-dflash"
HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"
MIN_ROUNDS = 20


def speculation(algorithm: str, target: str, drafter: str) -> dict[str, Any]:
    """SGLang's arguments of an algorithm. The tree is drafted by the target itself: all depths get accepted."""
    settings: dict[str, dict[str, Any]] = {
        "STANDALONE": {
            "speculative_draft_model_path": target,
            "speculative_num_steps": 3,
            "speculative_eagle_topk": 2,
            "speculative_num_draft_tokens": 6,
        },
        "NGRAM": {"speculative_num_draft_tokens": 8},
        "DFLASH": {"speculative_draft_model_path": drafter},
    }
    return {"speculative_algorithm": algorithm, **settings[algorithm]}


class Bench:
    """One engine and everything around it."""

    def __init__(self, args: argparse.Namespace, algorithm: str, folder: Path) -> None:
        self.args, self.algorithm, self.folder = args, algorithm, folder
        self.prompts = [json.loads(line)["prompt_ids"] for line in Path(args.prompts).read_text().splitlines()]
        os.environ[probe.SHARED] = str(folder / "shared")
        os.environ.update(DDSCOPE=f"unix:{folder}/engine.sock", DDSCOPE_CONTROL="1", DDSCOPE_SAMPLE="every=1")
        self.shared = Shared(os.environ[probe.SHARED], create=True)
        if args.pin:
            os.environ[probe.CORE] = str(keep_a_core_free())
        self.random = random.Random(0)
        self.traces = 0
        self.exact: Counter[str] = Counter()
        self.wrong: list[dict[str, Any]] = []
        from sglang.srt.entrypoints.engine import Engine

        class Stamped(Engine):  # type: ignore[misc]
            run_scheduler_process_func = staticmethod(probe.run_scheduler_process)

        given = {
            "model_path": args.target, "dtype": "bfloat16", "context_length": 2048, "max_running_requests": 16,
            "max_total_tokens": 65536, "mem_fraction_static": 0.3, "disable_radix_cache": True, "random_seed": 1,
            "log_level": "warning", "sleep_on_idle": args.together,
        }  # fmt: skip
        start = time.monotonic()
        self.engine = Stamped(**given | speculation(algorithm, args.target, args.drafter) | args.engine_args)
        self.started_s = time.monotonic() - start
        socket = wait_for(lambda: next(folder.glob("*.sock"), None), "the hooks' socket: are they installed?")
        self.switch, self.viewer = Switch(socket), Viewer(socket)

    def generate(self, batch: int, tokens: int, temperature: float = 0.0) -> list[dict[str, Any]]:
        """Answers to `batch` prompts; the same prompts until `turn`."""
        chosen = [self.prompts[(self.turned + i) % len(self.prompts)] for i in range(batch)]
        sampling = {"temperature": temperature, "max_new_tokens": tokens, "ignore_eos": True}
        answers = self.engine.generate(input_ids=chosen, sampling_params=sampling)
        return answers if isinstance(answers, list) else [answers]

    turned = 0

    def enter(self, state: str) -> None:
        """Bring the engine into a state: nothing is recorded while functions are exchanged."""
        self.switch.every(0)
        bare = int(state == "none")
        if self.shared.at[probe.BARE_IS] != bare:
            self._set(probe.BARE, probe.BARE_IS, bare)
        if state in ("on", "viewer"):
            self.switch.every(1)
        if state == "viewer":
            self.traces += 1
            self.viewer.ask("attach", self._trace())
        self.generate(1, 8)

    def leave(self, state: str, answers: list[dict[str, Any]]) -> None:
        """End a state; of the viewer's, compare what it wrote with what was returned."""
        if state != "viewer":
            return
        self.viewer.ask("wait", len(answers) + 1)
        self.viewer.ask("detach")
        self._compare(answers)

    def _set(self, wanted: int, in_force: int, value: int) -> None:
        self.shared.at[wanted] = value
        self.generate(1, 4)  # the scheduler looks once a batch
        wait_for(lambda: self.shared.at[in_force] == value, "the scheduler's answer")

    def _trace(self) -> Path:
        return Path(self.args.traces or self.folder) / f"{self.algorithm}-{self.traces}.jsonl"

    def _compare(self, answers: list[dict[str, Any]]) -> None:
        told: dict[str, list[int]] = {}
        steps: Counter[str] = Counter()
        seen = self.exact
        for line in self._trace().read_bytes().splitlines():
            record: Any = json.loads(line)
            if record["type"] == "step":
                rid = record["rid"]
                told.setdefault(rid, [record["root"]] if "root" in record else []).extend(record.get("emitted", ()))
                steps[rid] += 1
                flags = record.get("flags", {})
                seen.update(["steps", *(name for name in ("graph", "overlap") if flags.get(name))])
                seen["trees"] += bool(record.get("tree", {}).get("tokens"))
            elif record["type"] == "gap" and record["reason"] != "joined_late":
                seen["gaps"] += 1
        for answer in answers:
            meta, given = answer["meta_info"], list(answer["output_ids"])
            rid = meta["id"]
            seen["requests"] += 1
            seen["exact"] += told.get(rid) == given
            seen["verified"] += steps[rid] == meta.get("spec_verify_ct", steps[rid])
            if told.get(rid) != given and len(self.wrong) < 20:
                self.wrong.append({"told": told.get(rid), "given": given, "steps": steps[rid], "meta": meta})
        if not self.args.traces:
            self._trace().unlink()

    def measure(self, batch: int) -> dict[str, Any]:
        """Rounds of all states until the standard errors are small enough or the time is over.

        They alternate while one generation runs. The text is the same in all of them, so the tokens a
        second are as the steps a second.
        """
        rounds: list[dict[str, list[float]]] = []
        tokens = steps = 0
        until = time.monotonic() + self.args.seconds
        self.enter("viewer")
        while True:
            first = self.shared.at[probe.COUNT]
            self._set(probe.PASSES, probe.PASSES_IS, self.args.passes)
            answers = self.generate(batch, self.args.tokens)
            self._set(probe.PASSES, probe.PASSES_IS, 0)
            tokens += sum(answer["meta_info"]["completion_tokens"] for answer in answers)
            steps += sum(answer["meta_info"]["spec_verify_ct"] for answer in answers)
            rounds += self.shared.rounds(first, batch, self.args.passes)
            self.turned += batch
            means = {state: [statistics.fmean(each[state]) for each in rounds] for state in STATES}
            errors = [ratio(means["none"], means[s])[1] for s in STATES[1:]] if len(rounds) > 1 else [1.0]
            enough = len(rounds) >= MIN_ROUNDS and max(errors) <= self.args.error / 100
            if enough or time.monotonic() > until:
                break
        self.viewer.ask("detach")
        self._trace().unlink()
        if len(rounds) < 2:
            raise TimeoutError(f"No 2 rounds of all states within {self.args.seconds} s; see --passes and --tokens.")
        speeds = {state: [batch * tokens / steps * 1000 / mean for mean in means[state]] for state in STATES}
        told = ", ".join(f"{state} {cell(ratio(speeds[state], speeds['none']))}" for state in STATES)
        self._say(f"batch {batch}, {len(rounds)} rounds: {told}")
        return {"batch": batch, "tokens_s": speeds, "steps_ms": {s: [each[s] for each in rounds] for s in STATES}}

    def count(self, state: str) -> dict[str, float]:
        """A step's host synchronisations and CUDA calls in a state: by torch's debug mode, then by its profiler."""
        self.enter(state)
        self._set(probe.SYNCS, probe.SYNCS_IS, 1)
        before = list(self.shared.at[: probe.HEAD])
        answers = self.generate(1, 64)
        after = list(self.shared.at[: probe.HEAD])
        self._set(probe.SYNCS, probe.SYNCS_IS, 0)
        batches = after[probe.COUNT] - before[probe.COUNT]
        result = {
            "debug mode": (after[probe.ALL_SYNCS] - before[probe.ALL_SYNCS]) / batches,
            "of these in taps": float(after[probe.TAP_SYNCS] - before[probe.TAP_SYNCS]),
        }
        if not self.args.no_profile:
            result |= self._profile(state)
        self.leave(state, answers)
        return result

    def _profile(self, state: str) -> dict[str, float]:
        folder = self.folder / f"profile-{state}"
        folder.mkdir()
        options = {"activities": ["CPU", "GPU"], "with_stack": False, "record_shapes": False}
        self.engine.start_profile(output_dir=str(folder), **options)
        first = self.shared.at[probe.COUNT]
        self.generate(1, 64)
        batches = self.shared.at[probe.COUNT] - first
        self.engine.stop_profile()
        calls: Counter[str] = Counter()
        for event in wait_for(lambda: list(read_profile(folder)), "the profile", 60.0):
            if event.get("cat") in ("cuda_runtime", "cuda_driver"):
                calls[kind_of(event["name"])] += 1
        return {kind: count / batches for kind, count in sorted(calls.items()) if kind}

    def run(self) -> dict[str, Any]:
        """Everything of this algorithm."""
        for batch, temperature in itertools.product((1, 8, 16), (0.0, 0.8)):
            self.enter("viewer")
            self.leave("viewer", self.generate(batch, 128, temperature))
            self.turned += batch
        self._say(f"up after {self.started_s:.0f} s, {dict(self.exact)}")
        with self._turn():
            self._say("its turn")
            cells = [self.measure(batch) for batch in self.args.batch]
            counts = {state: self.count(state) for state in STATES}
            self._say("counted")
        return {
            "algorithm": self.algorithm, "cells": cells, "counts": counts, "exact": self.exact, "wrong": self.wrong,
            "facts": self.switch.facts, "targets": self.shared.at[probe.TARGETS], "started_s": self.started_s,
        }  # fmt: skip

    def _say(self, text: str) -> None:
        print(f"{time.strftime('%X')} {self.algorithm}: {text}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """End the viewer's process and the engine's."""
        self.viewer.close()
        self.engine.shutdown()

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Only one engine is timed at a time."""
        with Path(self.args.lock).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def keep_a_core_free() -> int:
    """Keep this process, and so all that it starts, off the last core and its sibling; returns that core."""
    allowed = os.sched_getaffinity(0)
    core = max(allowed)
    siblings, taken = "", {core}
    with contextlib.suppress(OSError):
        siblings = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list").read_text().strip()
    for part in filter(None, siblings.split(",")):
        first, _, last = part.partition("-")
        taken |= set(range(int(first), int(last or first) + 1))
    os.sched_setaffinity(0, allowed - taken)
    return core


def environment(args: argparse.Namespace) -> list[str]:
    """What the numbers hold for."""

    def version(name: str) -> str:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return f"{name} {importlib.metadata.version(name)}"
        return f"{name} ?"

    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    gpu = "no nvidia-smi"
    with contextlib.suppress(OSError):
        gpu = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    return [
        f"{datetime.date.today()}, {gpu}, {os.cpu_count()} CPUs, Python {platform.python_version()}, "
        + ", ".join(version(name) for name in ("sglang", "torch", "triton", "ddscope")),
        f"target {args.target}, {args.tokens} tokens a request, greedy; engine: {json.dumps(args.engine_args)}",
    ]


def child(algorithm: str, folder: Path) -> subprocess.Popen[bytes]:
    """The same command for one algorithm, in a process of its own: an engine that dies takes nothing with it."""
    command = [sys.executable, __file__, *sys.argv[1:], "--one", algorithm, "--lock", str(folder / "turn")]
    return subprocess.Popen([*command, "--results", str(folder)])


def one(args: argparse.Namespace) -> None:
    """The work of such a process."""
    with tempfile.TemporaryDirectory(prefix="ddscope-") as folder:
        bench = Bench(args, args.one, Path(folder))
        try:
            Path(args.results, f"{args.one}.json").write_text(json.dumps(bench.run()))
        finally:
            bench.close()


def main() -> None:
    """Print the environment and the tables."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--algorithms", nargs="+", default=["STANDALONE", "NGRAM", "DFLASH"], metavar="NAME")
    options.add_argument("--target", default=HUB, help="folder or hub name")
    options.add_argument("--drafter", default=str(SHIPPED), help="folder of a DFLASH drafter of the target")
    options.add_argument("--prompts", default=str(SHIPPED / "heldout-prompts.jsonl"), help="lines with `prompt_ids`")
    options.add_argument("--batch", type=int, nargs="+", default=[1, 16], metavar="N")
    options.add_argument("--tokens", type=int, default=1500, help="a request, while states alternate")
    options.add_argument("--passes", type=int, default=12, help="decode batches that a state lasts")
    options.add_argument("--error", type=float, default=0.8, help="standard error to stop at, in percent")
    options.add_argument("--seconds", type=float, default=120.0, help="for one batch size of one algorithm, at most")
    options.add_argument("--engine-args", type=json.loads, default={}, metavar="JSON", help="more for the engine")
    options.add_argument("--together", action="store_true", help="start all engines at once, measure them in turn")
    options.add_argument("--pin", action="store_true", help="give the scheduler's thread a core of its own")
    options.add_argument("--no-profile", action="store_true", help="count synchronisations without the profiler")
    options.add_argument("--traces", default="", metavar="FOLDER", help="keep the viewer's traces there")
    options.add_argument("--results", default="", metavar="FOLDER", help="keep all numbers there")
    for hidden in ("--one", "--lock"):
        options.add_argument(hidden, default="", help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.traces:
        Path(args.traces).mkdir(parents=True, exist_ok=True)
    if args.one:
        one(args)
    else:
        measure_all(args)


def measure_all(args: argparse.Namespace) -> None:
    """One child an algorithm, after another or together; then everything that came back."""
    results = []
    with tempfile.TemporaryDirectory(prefix="ddscope-") as temporary:
        folder = Path(args.results or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        running = []
        for algorithm in args.algorithms:
            folder.joinpath(f"{algorithm}.json").unlink(missing_ok=True)
            running.append(child(algorithm, folder))
            if not args.together:
                running[-1].wait()
        for algorithm, process in zip(args.algorithms, running, strict=True):
            process.wait()
            found = folder / f"{algorithm}.json"
            if found.is_file():
                results.append(json.loads(found.read_text()))
            else:
                print(f"{algorithm}: no result, exit status {process.returncode}", file=sys.stderr)
    print("\n".join([*environment(args), "", tables(results, STATES)]), flush=True)
    for result in results:
        for wrong in result["wrong"][:2]:
            print(f"{result['algorithm']} not exact: {json.dumps(wrong)[:2000]}", file=sys.stderr)
    sys.exit(len(results) < len(args.algorithms) or any(result["wrong"] for result in results))


if __name__ == "__main__":
    main()
