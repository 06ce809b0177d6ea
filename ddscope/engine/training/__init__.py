"""Making a DFlash drafter for a target: data that the target writes itself, training, free-running evaluation.

`python -m ddscope.engine.training {data,train,evaluate}`; what to do with it: docs/training.md.
"""
