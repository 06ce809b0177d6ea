"""An emitter whose work is done in another process, so that a busy server pays for no encoding, files or sockets.

Interface as of `ddscope_hooks.emit.Emitter`: see `sender`. The other process: `receiver`. What goes between: `frames`.
"""

from ddscope_hooks.emit import Emitter
from ddscope_hooks.relay.sender import RelayEmitter

AnyEmitter = Emitter | RelayEmitter

__all__ = ["AnyEmitter", "RelayEmitter"]
