"""TEST SUPPORT: what tests ask of a running scheduler: its method `ddscope_test`, through SGLang's `collective_rpc`.

The call returns nothing, so the first rank's answer goes to a file as JSON. Arguments are plain strings.
"""

import gc
import json
import sys
from pathlib import Path

import torch
from sglang.srt.runtime_context import get_parallel


def ddscope_test(self, action="", path="", argument=""):
    """action: a name in _ACTIONS; path: where its answer goes; argument: its own. Every rank is called."""
    answer = _ACTIONS[action](self, argument)
    if path and get_parallel().tp_rank == 0:
        Path(path).write_text(json.dumps(answer))


def _modules(scheduler, argument):
    """Names of all imported modules of this process."""
    return sorted(sys.modules)


def _hooks(scheduler, argument):
    """Targets that any plugin has hooked, and the plugins' names."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    return {
        target: sorted({source.plugin_name if source else "" for _, _, source in hooks})
        for target, hooks in HookRegistry._hooks.items()
        if hooks
    }


def _final_norm(scheduler):
    return scheduler.tp_worker.model_runner.model.model.norm.weight


def _break_norm(scheduler, argument):
    """One NaN in the target's final norm."""
    with torch.no_grad():
        weight = _final_norm(scheduler)
        scheduler.ddscope_test_norm = weight.clone()
        weight[3] = float("nan")


def _mend_norm(scheduler, argument):
    with torch.no_grad():
        _final_norm(scheduler).copy_(scheduler.ddscope_test_norm)


def _break_hooks(scheduler, argument):
    """From now on, whatever a hook wants to keep of a forward pass raises."""

    def put(*args, **kwargs):
        raise RuntimeError("broken by a test")

    cores = [
        thing
        for thing in gc.get_objects()
        if type(thing).__module__ == "ddscope_hooks.taps.core" and type(thing).__name__ == "Core"
    ]
    for core in cores:
        core.put = put
    return len(cores)


def _part(scheduler, argument):
    """What only the second rank does, once, in the n-th verify from now: "ids n" or "counts n".

    ids: its bonus of the first request is another token. counts: it accepts one draft less than the other rank.
    """
    kind, count = argument.split()
    if get_parallel().tp_rank != 1:
        return
    verify, left = sys.modules["sglang.srt.speculative.eagle_utils"].eagle_sample, [int(count)]

    def parted(*args, **kwargs):
        predict, lengths, index = verify(*args, **kwargs)
        if left[0] == 0:
            last = index[0, int(lengths[0]) - 1]
            if kind == "ids":
                predict[last] = (predict[last] + 1) % 100
            else:
                lengths[0] -= 1
        left[0] -= 1
        return predict, lengths, index

    for module in list(sys.modules.values()):
        if vars(module).get("eagle_sample") is verify:
            module.eagle_sample = parted


def _cap(scheduler, argument):
    """DSPARK with a ragged verify: only this share of the drafts is verified from now on."""
    scheduler.model_worker.set_dspark_forced_budget_frac(float(argument))


_ACTIONS = {
    "modules": _modules,
    "hooks": _hooks,
    "break_norm": _break_norm,
    "mend_norm": _mend_norm,
    "break_hooks": _break_hooks,
    "part": _part,
    "cap": _cap,
}
