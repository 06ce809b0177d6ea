"""Decoding R requests at once, wholly on one device: static buffers, and on CUDA one graph a step.

`ddscope.engine.generate` decodes one request and lets its caller stop between verify and commit; this package does not
stop. Both use the same weights and write the same texts.
"""
