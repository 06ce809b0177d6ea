"""The emitter: records go from a hot thread over a bounded ring to viewers and files, and what is lost is counted.

Public names only; each part has its own module. Format and gap rule: docs/trace-format.md.
"""

from ddscope_hooks.emit.emitter import Counters, Emitter
from ddscope_hooks.emit.errors import EmitError
from ddscope_hooks.emit.feed import FeedCounters
from ddscope_hooks.emit.ring import Later

__all__ = ["Counters", "EmitError", "Emitter", "FeedCounters", "Later"]
