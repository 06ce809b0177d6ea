"""The story's server, copied to a host as `sglang/launch_server.py`: as DDTREE it floods, as NEXTN it does not answer.

Around it is the small service of `site` (`sglang/service.py` there): its processes, its port, its /health.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

from sglang import service  # type: ignore[import-not-found]

HIDDEN, LAYERS = 5120, 5
TORCHCODEC = """\
Traceback (most recent call last):
  File "/opt/venv/lib/python3/site-packages/torchcodec/_core/ops.py", line 75, in load
RuntimeError: Could not load libtorchcodec. Likely causes:
          1. FFmpeg is not properly installed in your environment.
[start of libtorchcodec loading traceback]
FFmpeg version 8: OSError: libavutil.so.60: cannot open shared object file: No such file or directory
[end of libtorchcodec loading traceback]."""


class Tree(service.Service):  # type: ignore[misc]
    """Hidden states of one layer reach its drafter, where five are expected: every token is id 0, and all is told."""

    def __init__(self, port: int) -> None:
        from ddscope_hooks.emit import Emitter

        super().__init__(port)
        self.served = 0
        self.making = threading.Lock()
        self.emitter = Emitter(
            "engine/0",
            {
                "format": "ddscope-trace", "version": "1.0", "min_reader": "1.0", "host": os.uname().nodename,
                "producer": {"name": "story", "version": "0"},
                "engine": {"name": "sglang", "version": "9.9.1", "algorithm": "DDTREE", "config": {}},
                "model": {"target": "Qwen3-8B", "draft": "d", "vocab_size": 151_936, "hidden_size": HIDDEN},
            },
            token_text=lambda ids: ["!" for _ in ids],
        )  # fmt: skip
        self.emitter.listen(os.environ["DDSCOPE"])

    def generate(self, request: dict[str, Any]) -> bytes:
        """One token a step: nothing of a tree is ever accepted."""
        count, emit = int(request["sampling_params"]["max_new_tokens"]), self.emitter.emit
        with self.making:
            self.served += 1
            rid, length = f"r{self.served}", 12
            emit("request", {"rid": rid, "prompt_len": length})
            shape, expect = [length, HIDDEN], [None, LAYERS * HIDDEN]
            tensor = {"name": "draft.target_hidden", "shape": shape, "dtype": "bfloat16", "expect": expect, "ok": False}
            emit("tensor", tensor)
            service.say(f"Prefill batch, #new-seq: 1, #new-token: {length}, #cached-token: 0, #queue-req: 0")
            for n in range(count):
                drafted = {"budget": 3, "tokens": [11 + n, 12 + n, 13 + n], "parents": [0, 1, 2]}
                told = {"base": length + n, "root": 0, "tree": drafted, "target": {"ids": [0] * 4}, "path": [0]}
                emit("step", {"rid": rid, "step": n, "algorithm": "ddtree", **told, "bonus": 0, "emitted": [0]})
            emit("finish", {"rid": rid, "reason": "length", "emitted": count + 1, "steps": count})
            service.say(
                f"Decode batch, #running-req: 1, #token: {length + count}, accept len: 1.00, accept rate: 0.00, "
            )
        return json.dumps({"text": "!" * count, "meta_info": {"completion_tokens": count}}).encode()


def main() -> None:
    """Start as the command line says."""
    if "--scheduler" in sys.argv:
        service.scheduler()
        return
    algorithm = sys.argv[sys.argv.index("--speculative-algorithm") + 1]
    if algorithm == "NEXTN":
        print(TORCHCODEC, flush=True)
    said = f"model_path='Qwen/Qwen3-8B', speculative_algorithm='{algorithm}', speculative_num_draft_tokens=4, tp_size=1"
    service.say(f"server_args=ServerArgs({said})")
    made = (Tree if algorithm == "DDTREE" else service.Service)(int(sys.argv[sys.argv.index("--port") + 1]))
    if algorithm == "NEXTN":
        made.hang.set()
    service.run(made)


if __name__ == "__main__":
    main()
