"""TEST SUPPORT for real SGLang engines on a machine without a GPU. Nothing here is shipped.

models: tiny models and the real pair. server: a handle on a server process. runner: that process, in .venv-sglang.
site: what goes on its PYTHONPATH, stand-ins for what SGLang lacks on a CPU. reading: records as the tests want them.
"""
