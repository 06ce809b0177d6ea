"""When the screen itself fails: one sentence for the person, the traceback in a file, the recording untouched."""

from __future__ import annotations

import traceback
from pathlib import Path

from ddscope.session.spool import sessions_folder
from ddscope.tui.foreign import cut, safe

NAME = "screen-failure.txt"


def keep_failure(error: BaseException, recording: Path, folder: Path | None = None) -> str:
    """Write the traceback and say where it is. Says so too when it cannot be written; never raises."""
    folder = sessions_folder().parent if folder is None else folder
    said = f"The screen of ddscope failed ({type(error).__name__}: {cut(safe(str(error)), 80)})."
    kept = f"The recording is kept in {recording}."
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / NAME
        path.write_text("".join(traceback.format_exception(error)), encoding="utf-8", errors="backslashreplace")
    except OSError as problem:
        return f"{said} {kept} What happened could not be written to {folder / NAME}: {problem.strerror}."
    return f"{said} {kept} What happened is in {path}."
