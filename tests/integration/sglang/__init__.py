"""Tests of the hooks inside a real SGLang on the CPU. `make setup-sglang` makes its environment."""
