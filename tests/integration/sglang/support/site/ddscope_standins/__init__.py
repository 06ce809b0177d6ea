"""TEST SUPPORT: what a real SGLang 0.5.23 lacks on a machine without a GPU. Not part of ddscope.

imports: packages that are imported at the top but not called. attention: tree masks and draft steps under torch_native.
sampling: verification of sampled requests. dflash: the gates that keep DFLASH and DSPARK from starting on a CPU.
algorithm: one that a plug-in brings. remote: what tests ask of a running scheduler. plugin: the entry point that brings
all this into SGLang's processes.
"""
