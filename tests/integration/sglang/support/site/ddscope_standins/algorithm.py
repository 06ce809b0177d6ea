"""TEST SUPPORT: an algorithm that a plug-in brings, as a fork's DDTREE would be. No tap of ddscope knows its name.

It drafts and verifies as NGRAM does and answers SGLang's questions as NGRAM would, so only the name is new. SGLang's
base class for such algorithms lacks some of the questions that its scheduler asks.
"""

import types

from sglang.srt.arg_groups import speculative_hook
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.speculative.spec_registry import CustomSpecAlgo

NAME = "TREE_OF_A_PLUGIN"


def _asks_ngram(name):
    def answer(self, *args, **kwargs):
        return getattr(SpeculativeAlgorithm.NGRAM, name)(*args, **kwargs)

    return answer


def install():
    """Register it, once a process."""
    questions = [
        name
        for name, value in vars(SpeculativeAlgorithm).items()
        if isinstance(value, types.FunctionType)
        and not name.startswith("_")
        and (name.startswith(("is_", "supports_", "has_")) or not hasattr(CustomSpecAlgo, name))
    ]
    members = {name: _asks_ngram(name) for name in questions}
    members["handle_server_args"] = lambda self, server_args: speculative_hook._handle_ngram(server_args)
    algorithm = type("TreeOfAPlugin", (CustomSpecAlgo,), members)

    @SpeculativeAlgorithm.register(NAME, supports_overlap=True, spec_class=algorithm)
    def factory(server_args):
        from sglang.srt.speculative.ngram_worker import NGRAMWorker

        return NGRAMWorker
