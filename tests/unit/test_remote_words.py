"""Pure parts of what is known of hosts: ssh's refusals as sentences, the pulse, the ladder's headline, stacks."""

from __future__ import annotations

import pytest

from ddscope.model import Stack, Thread
from ddscope.remote.pulse import Pulse
from ddscope.remote.refusals import sentence
from ddscope.remote.there import discover, ladder, procs
from ddscope.remote.there.http import Answer
from ddscope.session.hosts import HostView, host_view, stack_view
from ddscope.session.views import ProbeRow
from ddscope.tui import laddering

# refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "begins"),
    [
        ("ssh: connect to host 10.0.0.9 port 22: No route to host", "There is no way to h: is the network"),
        ("ssh: connect to host 10.0.0.9 port 2222: Connection timed out", "h does not answer on port 2222"),
        (
            "kex_exchange_identification: Connection closed by remote host",
            "h closed the connection before it was set up",
        ),
        ("Received disconnect: 2: Too many authentication failures", "h gave up after too many keys"),
        ("Bad owner or permissions on /home/x/.ssh/config", "ssh does not accept its configuration: Bad owner"),
        ("something new\nsecond line.", "ssh to h failed: second line."),
        ("", ""),
    ],
)
def test_what_ssh_says_becomes_one_sentence(said: str, begins: str) -> None:
    words = sentence("h", said)
    assert words.startswith(begins) and "\n" not in words


def test_braces_of_foreign_words_are_no_format() -> None:
    assert sentence("h", "Bad configuration option: {port}{0}").endswith("{port}{0}.")


# the pulse ------------------------------------------------------------------------------------------------------


def step(rid: str) -> bytes:
    return b'{"type":"step","src":"engine/0","seq":1,"t":1,"mono":1,"rid":"%s","step":1}\n' % rid.encode()


def test_silence_while_a_request_is_open_is_a_stall_and_after_its_end_is_none() -> None:
    pulse = Pulse()
    assert pulse.verdict(0.0) is None
    pulse.saw(step("a") + step("a"), 1.0)
    verdict = pulse.verdict(5.0)
    assert verdict is not None and verdict.ok
    verdict = pulse.verdict(30.0)
    assert verdict is not None and not verdict.ok and "no step has come for 29 s" in verdict.words
    pulse.saw(b'{"type":"finish","src":"engine/0","seq":2,"t":1,"mono":1,"rid":"a"}\n', 31.0)
    verdict = pulse.verdict(400.0)
    assert verdict is not None and verdict.ok


def test_what_may_have_ended_in_a_hole_is_not_known_to_be_open() -> None:
    pulse = Pulse()
    pulse.saw(step("a"), 0.0)
    gap = b'{"type":"gap","src":"%s","seq":9,"t":1,"mono":1,"of":"%s","count":3,"reason":"disconnected"}\n'
    pulse.saw(gap % (b"journal/x", b"journal/x"), 0.5)
    verdict = pulse.verdict(60.0)
    assert verdict is not None and not verdict.ok
    pulse.saw(gap % (b"engine/0", b"engine/0"), 1.0)
    verdict = pulse.verdict(60.0)
    assert verdict is not None and verdict.ok


def test_a_slow_server_is_given_three_times_its_usual_time() -> None:
    pulse = Pulse()
    for n in range(10):
        pulse.saw(step("a"), 20.0 * n)
    assert (verdict := pulse.verdict(180.0 + 59)) is not None and verdict.ok
    assert (verdict := pulse.verdict(180.0 + 61)) is not None and not verdict.ok


def test_a_decode_line_of_the_journal_alone_is_never_a_stall() -> None:
    pulse = Pulse()
    pulse.saw(b'{"type":"log","src":"j","seq":0,"t":1,"mono":1,"message":"Decode batch, #running-req: 2"}\n', 0.0)
    verdict = pulse.verdict(9999.0)
    assert verdict is not None and verdict.ok, "they may have finished since: only every fortieth step is logged"


# arguments and answers ------------------------------------------------------------------------------------------


def test_arguments_are_read_and_secrets_are_not() -> None:
    argv = ["python", "-m", "sglang.launch_server", "--port=30001", "--api-key", "sk-1", "--enable-x", "--tp", "2"]
    told = procs.arguments([*argv, "--lora-paths", "a=b", "c=d", "--hf-token=hf_2"])
    assert told == {
        "port": "30001", "api-key": "(hidden)", "enable-x": "", "tp": "2", "lora-paths": "a=b c=d",
        "hf-token": "(hidden)",
    }  # fmt: skip
    assert procs.secret(argv, "api-key") == "sk-1"


@pytest.mark.parametrize(
    ("argv", "kind"),
    [
        (["python3", "-m", "sglang.launch_server", "--port", "1"], "sglang"),
        (["/venv/bin/python", "/venv/bin/sglang", "serve", "m"], "sglang"),
        (["/venv/bin/python", "/venv/bin/vllm", "serve", "m"], "vllm"),
        (["python", "-m", "vllm.entrypoints.openai.api_server"], "vllm"),
        (["sglang::scheduler_TP0"], "sglang"),
        (["VLLM::EngineCore"], "vllm"),
        (["bash", "-c", "python -m sglang.launch_server"], ""),
        (["docker", "run", "x", "python3", "-m", "sglang.launch_server"], ""),
        (["ssh", "h", "vllm", "serve"], ""),
        (["python", "train.py", "--like", "sglang"], ""),
        ([], ""),
    ],
)
def test_a_server_is_told_from_what_only_names_one(argv: list[str], kind: str) -> None:
    nobody = 1 << 30  # no such pid: the command line must do
    assert discover.kind_of(procs.Process(nobody, 1, "x", "S", 0, argv)) == kind


@pytest.mark.parametrize(
    ("answer", "ok", "words"),
    [
        (Answer(200, b'{"text":" 4","meta_info":{"completion_tokens":4}}', "", 12.0), True, "4 tokens in 12 ms: ' 4'"),
        (Answer(200, b'{"choices":[{"text":"x"}],"usage":{"completion_tokens":1}}', "", 5.0), True, "1 token in 5 ms"),
        (Answer(200, b'{"text":"","meta_info":{"completion_tokens":0}}', "", 5.0), False, "without a token"),
        (Answer(200, b"<html>", "", 5.0), False, "no answer: <html>"),
        (Answer(500, b'{"error":{"message":"out of\\nmemory"}}', "", 5.0), False, "answered 500: out of memory"),
        (Answer(None, b"", "no answer in 5 s", 5.0), False, "no answer in 5 s"),
    ],
)
def test_an_answer_to_the_probe_is_judged_in_the_servers_own_words(answer: Answer, ok: bool, words: str) -> None:
    good, said = ladder.generated(answer)
    assert good is ok and words in said


# views ----------------------------------------------------------------------------------------------------------


def rung(name: str, ok: bool, detail: str = "seen", src: str = "probe/a") -> ProbeRow:
    return ProbeRow(name, ok, None, detail, 1, 1, src)


def view(*rows: ProbeRow, offset: int | None = None, name: str = "a") -> HostView:
    facts = {"host.server": {"host": name, "unit": "s.service", "kind": "sglang", "packages": {"sglang": "0.5.23"}}}
    return host_view(f"probe/{name}", rows, facts | {"host.clock": {"offset_us": offset, "rtt_us": 10}})


def test_the_lowest_rung_that_fails_is_the_headline() -> None:
    made = view(
        rung("generate", False, "no answer"), rung("unit", True), rung("health", False, "503"), rung("x", False)
    )
    assert [row.rung for row in made.rungs] == ["unit", "health", "generate", "x"]
    assert laddering.headline([made]) == "health: 503"
    assert laddering.headline([view(rung("unit", True)), made]) == "a health: 503"
    assert laddering.sentence([made]).startswith("On a, the server does not say that it is healthy: 503")
    assert laddering.headline([view(rung("unit", True))]) == laddering.sentence([]) == ""
    assert laddering.source_words([made], ["a", "b"]) == "a · s.service · sglang 0.5.23 + b"


@pytest.mark.parametrize(
    ("offset", "words"),
    [(None, ""), (400_000, ""), (-90_000_000, "its clock is 90.0 s behind"), (700_000, "its clock is 0.7 s ahead")],
)
def test_a_clock_that_is_off_is_said(offset: int | None, words: str) -> None:
    assert laddering.clocks([view(offset=offset)]) == words


@pytest.mark.parametrize(
    "facts", [{"host.server": 3, "host.clock": []}, {"host.server": {"packages": 1, "kind": []}}, {}]
)
def test_facts_of_another_type_count_as_not_said(facts: dict[str, object]) -> None:
    made = host_view("probe/a", [], facts)
    assert (made.name, made.offset_us, made.algorithm) == ("a", None, "") and isinstance(made.words, str)


def stack(*threads: Thread, t: int = 1) -> Stack:
    return Stack(src="stack", seq=0, t=t, mono=t, pid=7, process="sglang::scheduler_TP0", threads=list(threads))


def test_threads_that_wait_for_nothing_in_particular_are_idle_and_the_telling_frame_is_the_servers() -> None:
    py, lib = "/usr/lib/python3.11/threading.py", "/venv/lib/python3.11/site-packages/sglang/srt/managers/scheduler.py"
    nccl = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
    main = Thread(
        id=1, name="MainThread", active=False,
        frames=[f"all_reduce ({nccl}:9)", f"Scheduler.run_batch ({lib}:2)", f"event_loop ({lib}:1)"],
    )  # fmt: skip
    idle = Thread(id=2, name="watchdog", active=False, frames=[f"Event.wait ({py}:1)", f"watch ({lib}:3)"])
    busy = Thread(id=3, name="copy", gil=True, active=True, frames=[f"copy ({lib}:4)"])
    bare = Thread(id=4, frames=[])
    made = stack_view(5, stack(idle, main, bare, busy), stack(main, t=0))
    assert [(row.name, row.idle, row.still) for row in made.threads] == [
        ("copy", False, False), ("MainThread", False, True), ("watchdog", True, False), ("thread 4", True, False),
    ]  # fmt: skip
    assert made.threads[1].at == f"Scheduler.run_batch ({lib}:2)"
    assert stack_view(5, stack(main), None).threads[0].still is None
