"""TEST SUPPORT: SGLang's plugin entry point. Installs the stand-ins in the processes that need them."""

import sys


def register():
    """In the launcher and the scheduler; the detokenizer needs nothing."""
    managers = sys.modules.get("sglang.srt.managers.scheduler")
    if managers is None:
        return
    from ddscope_standins import algorithm, attention, dflash, remote, sampling

    attention.install()
    algorithm.install()
    sampling.install()
    dflash.install_arguments()
    dflash.install_worker()
    managers.Scheduler.ddscope_test = remote.ddscope_test
