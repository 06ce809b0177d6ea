"""The embedded DDTree engine: a real target and a real drafter, decoded so that every step can be looked at.

Models and algorithms: `pair` (loading), `target`, `drafter`, `generate`. The process around them: `server` and what it
imports.
"""

import os

# OpenMP reads this when torch is loaded. Threads that spin while they wait for work take cores from those who have it:
# beside other busy processes on two cores, plain decoding ran at 0.7 tokens/s spinning and at 6.4 waiting.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
