"""Live sources of records: an engine's socket, a log file, a journal. Each hands batches of whole lines to its sink.

A source writes nothing itself and knows no store and no screen.
"""

from ddscope.sources.engine_socket import SocketCounters, SocketSource
from ddscope.sources.errors import SourceError
from ddscope.sources.finding import NotThereError, await_servers
from ddscope.sources.journal import JournalSource
from ddscope.sources.log_file import LogFileSource
from ddscope.sources.servers import Servers

__all__ = [
    "JournalSource",
    "LogFileSource",
    "NotThereError",
    "Servers",
    "SocketCounters",
    "SocketSource",
    "SourceError",
    "await_servers",
]
