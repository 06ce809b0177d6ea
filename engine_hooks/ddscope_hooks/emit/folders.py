"""The folder of a socket or a file: made for its user alone when it is missing, left as it is when it is there."""

from __future__ import annotations

import os

from ddscope_hooks.emit.errors import EmitError


def private_folder(folder: str) -> None:
    """Make `folder` with mode 0700, whatever the umask. Raises EmitError when it is missing and cannot be made."""
    if os.path.isdir(folder):
        return
    try:
        os.makedirs(folder, mode=0o700)
        os.chmod(folder, 0o700)
    except (FileExistsError, NotADirectoryError):
        raise EmitError(f"Cannot make the folder {folder}: a file is in the way.") from None
    except OSError as error:
        raise EmitError(f"Cannot make the folder {folder}: {error.strerror or error}.") from None
