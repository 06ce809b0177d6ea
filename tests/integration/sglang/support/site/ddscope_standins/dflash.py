"""TEST SUPPORT: DFLASH on a CPU. SGLang starts it on cuda, npu and xpu only; nothing in its code needs one of these.

A platform that says yes where it is asked, torch_native as a drafter's back end, torch in place of a Triton kernel.
"""

import torch
from sglang.srt.arg_groups import choices, speculative_hook


class _Willing:
    """The real platform, but an out-of-tree one that supports DFLASH with torch_native."""

    def __init__(self, real):
        self._real = real

    def __getattr__(self, name):
        return getattr(self._real, name)

    def is_out_of_tree(self):
        return True

    def supports_speculative_algorithm(self, algorithm):
        return True

    def supports_speculative_draft_attention_backend(self, algorithm, backend):
        return backend == "torch_native"

    def get_default_speculative_draft_attention_backend(self, *args, **kwargs):
        return "torch_native"


def install_arguments():
    """What the arguments' check needs, in the process that starts the server."""
    choices.add_draft_attention_backend_choices(["torch_native"])
    handle, real = speculative_hook._handle_dflash, speculative_hook.current_platform

    def handle_dflash(server_args):
        speculative_hook.current_platform = _Willing(real)
        try:
            return handle(server_args)
        finally:
            speculative_hook.current_platform = real

    speculative_hook._handle_dflash = handle_dflash
    _let_dspark_start()


class _Elsewhere:
    """Settings as on a device where DSPARK starts."""

    device = "xpu"

    def __init__(self, real):
        self._real = real

    def __getattr__(self, name):
        return getattr(self._real, name)


def _let_dspark_start():
    handle, view = speculative_hook._handle_dspark, speculative_hook.resolving_view

    def handle_dspark(server_args):
        speculative_hook.resolving_view = lambda args: _Elsewhere(view(args))
        try:
            return handle(server_args)
        finally:
            speculative_hook.resolving_view = view

    speculative_hook._handle_dspark = handle_dspark


def install_worker():
    """What the scheduler needs: no streams, and the plain path for norms and rotation of q and k."""
    torch.Tensor.record_stream = lambda self, stream: None
    from sglang.srt.models import dflash as models

    for name, attention in vars(models).items():
        if name.endswith("Attention") and isinstance(attention, type) and attention.__module__ == models.__name__:
            _without_table(attention)


def _without_table(attention):
    make = attention.__init__

    def init(self, *args, **kwargs):
        make(self, *args, **kwargs)
        self.use_table_qk_norm_rope = False

    attention.__init__ = init
