"""One real SGLang in its own process, inside .venv-sglang: `runner.py engine|http JSON-ARGUMENTS`.

engine: JSON lines on stdin, one answer a line on stdout (prompts → output ids, text, meta_info). http: SGLang's own
server. Only the standard library at the top, since every process of SGLang imports this file again.
Ends with its stdin, which closes when the test's process ends in whatever way. What SGLang prints goes to stderr.
"""

import json
import os
import signal
import sys
import tempfile
import threading

BASE = {
    "device": "cpu",
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "grammar_backend": "none",
    "disable_cuda_graph": True,
    "disable_radix_cache": True,
    "disable_overlap_schedule": True,
    "mem_fraction_static": 0.5,
    "max_total_tokens": 4096,
    "max_running_requests": 4,
    "skip_server_warmup": True,
    "decode_log_interval": 4,
    "log_level": "info",
}
"""What a text-only server on a CPU needs; CPU speculation forces the overlap off anyway."""


def main():
    kind, arguments = sys.argv[1], BASE | json.loads(sys.argv[2])
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    if kind == "http":
        threading.Thread(target=_end_with_stdin, daemon=True).start()
        _serve_http(arguments)
        return
    from sglang.srt.entrypoints.engine import Engine

    engine = Engine(**arguments)
    print(json.dumps({"ready": True}), file=answers)
    for line in sys.stdin:
        print(json.dumps(_answer(engine, json.loads(line))), file=answers)
    engine.shutdown()


def _answer(engine, asked):
    try:
        if asked["do"] == "generate":
            outputs = engine.generate(input_ids=asked["prompts"], sampling_params=asked["sampling"], rid=asked["rids"])
            return {"ok": True, "value": outputs}
        if asked["do"] == "scheduler":
            with tempfile.NamedTemporaryFile("r") as answer:
                engine.collective_rpc(
                    "ddscope_test", action=asked["action"], path=answer.name, argument=asked["argument"]
                )
                return {"ok": True, "value": json.loads(answer.read() or "null")}
        return {"ok": True, "value": engine.get_server_info()["internal_states"]}
    except Exception as error:
        return {"ok": False, "error": f"{type(error).__name__}: {error}"}


def _serve_http(arguments):
    from sglang.srt.plugins import load_plugins

    load_plugins()
    from sglang.launch_server import run_server
    from sglang.srt.server_args import ServerArgs

    run_server(ServerArgs(**arguments))


def _end_with_stdin():
    sys.stdin.buffer.read()
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
