"""A vLLM server's log: its lines are read as SGLang's are, and the same rules speak of it."""

from __future__ import annotations

import pytest

from ddscope.diagnose.log_events import Death, Decode, Event, Http, Phase, Ready, Version
from ddscope.diagnose.vllm_log import parse
from tests.serverlogs import ServerLog

API = "(APIServer pid=347228) INFO 08-04 20:51:08 "
CORE = "(EngineCore_DP0 pid=348187) INFO 08-04 20:51:08 "
ARGS = (
    API
    + "[api_utils.py:273] non-default args: {'model_tag': '/m/DeepSeek-V4', 'host': '127.0.0.1', 'served_model_name': "
    "['a', 'b'], 'speculative_config': {'method': 'dspark', 'num_speculative_tokens': 7}}"
)
READY = API + "[api_server.py:1945] Starting vLLM API server 0 on http://0.0.0.0:8080"


def load(generated: float, running: int = 1, waiting: int = 0, prompt: float = 0.0) -> str:
    return (
        f"{API}[loggers.py:310] Engine 000: Avg prompt throughput: {prompt:.1f} tokens/s, Avg generation throughput: "
        f"{generated:.1f} tokens/s, Running: {running} reqs, Waiting: {waiting} reqs, GPU KV cache usage: 0.0%, "
        "Prefix cache hit rate: 0.0%"
    )


def accepted(length: float, rate: float) -> str:
    return (
        f"{API}[metrics.py:120] SpecDecoding metrics: Mean acceptance length: {length:.2f}, Accepted throughput: 0.12 "
        "tokens/s, Drafted throughput: 0.34 tokens/s, Accepted: 92 tokens, Drafted: 259 tokens, "
        f"Per-position acceptance rate: 0.757, 0.622, Avg Draft acceptance rate: {rate:.1f}%"
    )


@pytest.mark.parametrize(
    ("line", "event"),
    [
        (load(13.0, prompt=93.9, running=2, waiting=3), Decode(running=2, queue=3, throughput=13.0)),
        (load(0.0, prompt=93.9), Decode(running=1, queue=0, throughput=0.0)),
        (load(0.0, running=1, waiting=3), None),  # no token: no sign of work
        (accepted(3.49, 35.5), Decode(accept_len=3.49, accept_rate=0.355)),
        (READY, Ready()),
        ("INFO 03-27 23:19:15 api_server.py:958] Starting vLLM API server on http://0.0.0.0:8000", Ready()),
        (API + "[api_server.py:1839] vLLM API server version 0.11.0", Version("0.11.0")),
        (
            "[vllm-rbln] INFO 2026-10-07 21:56:32,186 [api_server.py:1351] vLLM API server version 0.13.0",
            Version("0.13.0"),
        ),
        (
            '(APIServer pid=347228) INFO:     127.0.0.1:56326 - "POST /v1/chat/completions HTTP/1.1" 200 OK',
            Http("POST", "/v1/chat/completions", 200),
        ),
        (
            CORE + "[gpu_model_runner.py:2602] Starting to load model /m/DeepSeek-V4...",
            Phase("loading weights", "begin"),
        ),
        (CORE + "[default_loader.py:267] Loading weights took 74.58 seconds", Phase("loading weights", "end")),
        (
            "(EngineCore_DP0 pid=1639) Loading safetensors checkpoint shards:  40% Completed | 4/10 [00:30<00:44]",
            Phase("loading weights", "progress", "4/10"),
        ),
        (
            "(EngineCore_DP0 pid=9) Capturing CUDA graphs (decode, FULL):  86%|██████ | 30/35 [00:01<00:00, 26.17it/s]",
            Phase("capturing graphs", "progress", "30/35"),
        ),
        (CORE + "[monitor.py:34] torch.compile takes 9.27 s in total", Phase("compiling kernels", "end")),
        ("ERROR 07-15 08:54:44 [core.py:586] EngineCore failed to start.", Death("exception", "EngineCore")),
    ],
)
def test_lines_say_what_they_say(line: str, event: Event | None) -> None:
    told = parse(line)
    assert told is not None and told.event == event


def test_arguments_are_read_with_their_nested_values() -> None:
    told = parse(ARGS)
    assert told is not None
    assert told.event.values["speculative_config"] == "{'method': 'dspark', 'num_speculative_tokens': 7}"  # type: ignore[union-attr]
    assert told.event.values["host"] == "127.0.0.1"  # type: ignore[union-attr]


def test_the_process_and_its_ranks_stand_in_front() -> None:
    told = parse("(Worker_TP2 pid=42) INFO 06-14 04:57:27 [gpu_worker.py:480] Available KV cache memory: 4.43 GiB")
    assert told is not None and told.prefix is not None
    assert (told.prefix.pid, told.prefix.ranks, told.prefix.stamp) == (42, {"TP": 2}, "06-14 04:57:27")
    assert told.text == "Available KV cache memory: 4.43 GiB"
    old = parse("(VllmWorker rank=7 pid=37352) ERROR 08-21 08:26:21 [multiproc_executor.py:546]     self._dummy_run(n)")
    assert old is not None and old.prefix is not None and old.prefix.ranks == {"TP": 7}
    assert old.text == "    self._dummy_run(n)"


@pytest.mark.parametrize(
    "line",
    [
        "",
        "[2026-09-21 14:10:36] Decode batch, #running-req: 1",
        "INFO: hello",
        "(2, 3)",
        "(a pid=x) INFO",
        "Don't",
        "\0",
    ],
)
def test_other_lines_are_left_to_others(line: str) -> None:
    assert parse(line) is None


def server(src: str = "journal/vllm.service") -> ServerLog:
    log = ServerLog(src=src)
    log.raw(ARGS, after=1).raw(CORE + "[gpu_model_runner.py:2602] Starting to load model /m/DeepSeek-V4...", after=2)
    log.raw(CORE + "[default_loader.py:267] Loading weights took 74.58 seconds", after=75)
    return log


def serving(length: float, rate: float, reports: int = 8) -> ServerLog:
    log = server().raw(READY, after=30)
    for _ in range(reports):
        log.raw(load(13.0), after=10).raw(accepted(length, rate))
    return log


def test_a_sound_server_gives_no_finding() -> None:
    log = serving(3.49, 35.5)
    for rung in ("process", "port", "health", "generate"):
        log.probe(rung, True)
    assert log.findings() == []


def test_acceptance_of_nothing_from_the_first_report_on() -> None:
    finding = serving(1.02, 0.3).of("accept.low_from_start")
    assert finding.kind == "log" and finding.severity == "high"


def test_reports_of_a_few_drafts_say_nothing_of_acceptance() -> None:
    log = server().raw(READY, after=30)
    for _ in range(8):
        log.raw(load(0.3), after=10).raw(accepted(1.0, 0.0).replace("Drafted: 259 tokens", "Drafted: 9 tokens"))
    assert log.findings() == []


def test_loading_is_a_phase_of_the_start() -> None:
    log = server("log/vllm.log")
    assert log.ids(info=False) == []
    log.raw(CORE + "[backends.py:559] Dynamo bytecode transform time: 4.11 s", after=5).wait(45)
    finding = log.of("startup.phase")
    assert "compiling kernels" in finding.title and finding.severity == "info"
    log.raw(READY, after=1)
    assert log.findings() == []


def test_alive_and_not_serving_says_how_old_the_last_work_is() -> None:
    log = serving(3.49, 35.5)
    for _ in range(6):
        log.raw(load(0.0, running=1), after=10)  # it counts a request that runs, and no token
    for rung in ("process", "port", "health"):
        log.probe(rung, True)
    log.probe("generate", False, "no answer for 20 s", after=0.1)
    finding = log.of("serve.alive_not_serving")
    assert finding.severity == "critical"
    assert "60 s old; usually one comes every 10 s" in finding.detail


def test_an_engine_core_that_does_not_start_is_named_with_its_reason() -> None:
    log = server()
    error = "(EngineCore_DP0 pid=348187) ERROR 08-04 20:52:30 [core.py:1108] "
    log.raw(
        error + "EngineCore failed to start.",
        error + "Traceback (most recent call last):",
        error + '  File "/venv/lib/python3.12/site-packages/vllm/v1/engine/core.py", line 1082, in run_engine_core',
        error + "    engine_core = EngineCoreProc(*args, engine_index=dp_rank, **kwargs)",
        error + "ValueError: Free memory on device cuda:0 (52.81/95.01 GiB) on startup is less than desired GPU memory",
    )
    finding = log.of("serve.down")
    assert finding.kind == "crashed"
    assert "died before it was ready: ValueError: Free memory on device cuda:0" in finding.title


def test_processes_of_one_log_without_pids_keep_their_tracebacks_apart() -> None:
    """`docker logs` tells no pid; vLLM's prefix does."""
    log = ServerLog(pid=None, src="log/docker").raw(ARGS)
    one, two = (f"(Worker_TP{n} pid={40 + n}) ERROR 08-04 20:52:30 [multiproc_executor.py:546] " for n in range(2))
    log.raw(
        one + "Traceback (most recent call last):",
        two + "Traceback (most recent call last):",
        one + '  File "a.py", line 1, in a',
        two + "RuntimeError: of the second",
        one + "RuntimeError: of the first",
        "ERROR 08-04 20:52:31 [core.py:586] EngineCore failed to start.",
    )
    assert "of the first" in log.of("serve.down").title
