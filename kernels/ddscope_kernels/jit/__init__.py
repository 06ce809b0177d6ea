"""The Triton kernels and what launches them; reached through `ddscope_kernels.batched`, which checks the arguments.

Importing a module of this package imports triton.
"""
