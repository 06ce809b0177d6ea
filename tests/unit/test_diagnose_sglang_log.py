"""Lines of SGLang taken apart: prefixes with rank tags in any order, batches, formulas, phases, deaths."""

from __future__ import annotations

import pytest

from ddscope.diagnose import accept_rate
from ddscope.diagnose.sglang_log import (
    Death,
    Decode,
    Http,
    Phase,
    Prefill,
    Prefix,
    Ready,
    ServerArgs,
    Version,
    Watchdog,
    parse,
)

LOADING = "loading weights"
AT = "[2026-09-21 14:10:36]"


@pytest.mark.parametrize(
    ("tags", "ranks"),
    [
        ("", {}),
        (" TP0", {"TP": 0}),
        (" DP1 PP0 ATTN_CP2 MOE_DP3 TP4 EP5", {"DP": 1, "PP": 0, "ATTN_CP": 2, "MOE_DP": 3, "TP": 4, "EP": 5}),
        (" TP4 DP1", {"TP": 4, "DP": 1}),
        (" TP1 what NEW12", {"TP": 1, "NEW": 12}),
    ],
)
def test_rank_tags_are_read_in_any_order(tags: str, ranks: dict[str, int]) -> None:
    line = parse(f"[2026-09-21 14:10:36{tags}] {'x' * 5}")
    assert line.prefix == Prefix("2026-09-21 14:10:36", ranks) and line.text == "xxxxx"


@pytest.mark.parametrize("stamp", ["2026-09-21 14:10:36.123", "2026-09-21 14:10:36,123"])
def test_milliseconds_belong_to_the_time(stamp: str) -> None:
    prefix = parse(f"[{stamp} TP0] x").prefix
    assert prefix is not None and prefix.stamp == stamp


@pytest.mark.parametrize(
    "text", ["[start of libtorchcodec loading traceback]", "[2026-09-21] x", "[] x", "[", "[a b c", "no"]
)
def test_a_bracket_without_a_time_is_no_prefix(text: str) -> None:
    assert parse(text).prefix is None and parse(text).text == text


def test_a_decode_line_with_everything_on_it() -> None:
    event = parse(
        f"{AT} Decode batch [1234], #running-req: 2, #full token: 68, full token usage: 0.02, #swa token: 12, "
        "mamba num: 3, accept len: 2.50, accept rate: 0.30, cap len: 4.20, block accept len: 1.10, "
        "pre-allocated usage: 0.10, "
        "#retracted-req: 1, npu graph: False, gen throughput (token/s): 45.01, #queue-req: 7, est. BW (GB/s): 1.5"
    ).event
    assert isinstance(event, Decode)
    assert (event.running, event.tokens, event.queue, event.iteration) == (2, 68, 7, 1234)
    assert (event.accept_len, event.accept_rate, event.cap_len, event.block_accept_len) == (2.5, 0.3, 4.2, 1.1)
    assert (event.graph, event.throughput) == (False, 45.01)
    assert event.fields["mamba num"] == 3 and event.fields["#swa token"] == 12


def test_plain_decoding_has_no_accept_length() -> None:
    event = parse(f"{AT} Decode batch, #running-req: 1, #token: 68, token usage: 0.02, cuda graph: True").event
    assert isinstance(event, Decode) and event.accept_len is None and event.tokens == 68 and event.graph is True


def test_a_prefill_line() -> None:
    event = parse(
        f"{AT} Prefill batch [9], #new-seq: 1, #new-token: 11, #cached-token: 5, token usage: 0.00, #running-req: 0, "
        "#queue-req: 2, #pending-token: 0, cpu graph: False, input throughput (token/s): 96.71"
    ).event
    assert isinstance(event, Prefill)
    assert (event.new_seqs, event.new_tokens, event.cached_tokens, event.running, event.queue) == (1, 11, 5, 0, 2)
    assert event.iteration == 9 and event.fields["input throughput (token/s)"] == 96.71


@pytest.mark.parametrize("value", ["nan", "inf", "-3", "1_0", "9" * 400, "", "٣x", "1.2.3", "True", "0x10"])
def test_a_number_that_is_none_is_left_out(value: str) -> None:
    event = parse(f"Decode batch, #running-req: {value}, #token: 68").event
    assert isinstance(event, Decode) and event.running is None and event.tokens == 68


def test_arguments_are_cut_at_commas_of_their_own_level() -> None:
    event = parse(
        f"{AT} server_args=ServerArgs(model_path='/a, b', speculative_algorithm='EAGLE', cuda_graph_bs=[1, 2, 4], "
        "extra={'a': (1, 2)}, quoted=\"it's)\", speculative_draft_model_path=None) and more, x=1"
    ).event
    assert isinstance(event, ServerArgs)
    assert event.values == {
        "model_path": "/a, b",
        "speculative_algorithm": "EAGLE",
        "cuda_graph_bs": "[1, 2, 4]",
        "extra": "{'a': (1, 2)}",
        "quoted": "it's)",
        "speculative_draft_model_path": "None",
    }


def test_arguments_may_be_a_dictionary() -> None:
    event = parse(f"{AT} server_args={{'model_path': '/m?a=b', 'speculative_algorithm': None, 'x': {{'y': 1}}}}").event
    assert isinstance(event, ServerArgs)
    assert event.values == {"model_path": "/m?a=b", "speculative_algorithm": "None", "x": "{'y': 1}"}


@pytest.mark.parametrize(
    ("text", "event"),
    [
        ("The server is fired up and ready to roll!", Ready()),
        ('INFO:     127.0.0.1:51000 - "POST /v1/completions HTTP/1.1" 200 OK', Http("POST", "/v1/completions", 200)),
        ('INFO:     [::1]:9 - "GET /health HTTP/1.1" 503 Service Unavailable', Http("GET", "/health", 503)),
        ("Scheduler hit an exception: Traceback (most recent call last):", Death("exception", "Scheduler")),
        ("Received sigquit from a child process. It usually means the child failed.", Death("sigquit")),
        ("SIGQUIT received. signum=3, frame=None. It usually means one child failed.", Death("sigquit", code=3)),
        (
            "Subprocess scheduler_0 (pid=77) crashed with exit code -15. Triggering SIGQUIT for cleanup...",
            Death("subprocess", "scheduler_0", 77, -15),
        ),
        (
            "Scheduler watchdog timeout (self.watchdog_timeout=300.0, self.soft=False)",
            Watchdog("Scheduler", 300.0, False),
        ),
        ("Detokenizer watchdog timeout", Watchdog("Detokenizer", None, None)),
        ("sglang version 0.5.9", Version("0.5.9")),
        ("Load weight begin. avail mem=138.10 GB", Phase(LOADING, "begin")),
        ("Load weight end. type=Qwen3", Phase(LOADING, "end")),
        ("Capture cuda graph begin. This can take up to several minutes.", Phase("capturing graphs", "begin")),
        ("Capture draft extend CUDA graph end. Time elapsed: 1 s", Phase("capturing graphs", "end")),
        ("Loading safetensors checkpoint shards:  40% Completed | 2/5 [00:01", Phase(LOADING, "progress", "2/5")),
        ("Loading safetensors checkpoint shards: 100% Completed | 5/5 [00:01", Phase(LOADING, "end", "5/5")),
        ("Multi-thread loading shards: 0% Completed | 0/1 [00:00]Multi-", Phase(LOADING, "progress", "0/1")),
        ("Capturing batches (bs=8):  10%|█         | 1/10 [00:01", Phase("capturing graphs", "progress", "1/10")),
        ("Entering DeepGEMM JIT Pre-Compile session. It may take a long time", Phase("compiling kernels", "begin")),
        ("DeepGEMM warmup:  12%", Phase("compiling kernels", "progress", "12%")),
        ("a: 1%\rLoading pt checkpoint shards:  50% Completed | 1/2", Phase(LOADING, "progress", "1/2")),
        ("nothing of interest", None),
        ("we watched a 404 page", None),
    ],
)  # fmt: skip
def test_what_a_line_says(text: str, event: object) -> None:
    assert parse(f"{AT} {text}").event == event
    assert parse(text).event == event


def test_both_formulas_of_the_accept_rate() -> None:
    assert accept_rate.before(2.8, 4) == pytest.approx(0.7)
    assert accept_rate.now(2.8, 4) == pytest.approx(0.6)
    assert accept_rate.formula(2.80, 0.70, 4) == "before"
    assert accept_rate.formula(2.80, 0.60, 4) == "now"
    assert accept_rate.formula(2.80, 0.65, 4) == ""
    assert accept_rate.formula(4.0, 1.0, 4) == ""  # both
    assert accept_rate.formula(2.0, 1.0, 1) == ""


@pytest.mark.parametrize("draft_tokens", [2, 4, 8, 16, 64])
def test_a_formula_survives_rounding_to_two_digits(draft_tokens: int) -> None:
    for step in range(1, 40):
        length = 1 + step / 40 * (draft_tokens - 1)
        for name, formula in (("before", accept_rate.before), ("now", accept_rate.now)):
            found = accept_rate.formula(round(length, 2), round(formula(length, draft_tokens), 2), draft_tokens)
            assert found in (name, ""), (length, name, found)
