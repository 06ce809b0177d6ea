"""The user's keymap file: which keys do what, laid over the registry of actions.

$XDG_CONFIG_HOME/ddscope/keymap.toml holds one table: [keys] with `action = "key"` or `action = ["key", "key"]`.
"""

from __future__ import annotations

import difflib
import os
import tomllib
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from textual.keys import KEY_NAME_REPLACEMENTS
from textual.keys import Keys as TextualKeys

from ddscope.tui.actions import BY_ID, GLYPHS, REGISTRY, Keys, key_text


class KeymapError(ValueError):
    """The keymap cannot be used; the message is one sentence that says why and where."""


def keymap_path(environ: Mapping[str, str] = os.environ) -> Path:
    """Where the keymap is looked for."""
    base = environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME", "~")) / ".config"
    return Path(base) / "ddscope" / "keymap.toml"


def load_keymap(path: Path | None = None) -> Keys:
    """Read a keymap; a missing file is an empty keymap.

    Raises KeymapError when the file is no TOML, names no action or no key, or gives one key to two actions.
    """
    path = path or keymap_path()
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Keys({})
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise KeymapError(f"Keymap {path} cannot be read: {reason}.") from None
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise KeymapError(f"Keymap {path} is not TOML: {str(error).rstrip('.')}.") from None
    return parse_keymap(document, str(path))


def parse_keymap(document: Mapping[str, Any], name: str = "keymap") -> Keys:
    """Check a parsed keymap and lay it over the registry. Raises KeymapError, as `load_keymap` says."""
    unknown = [key for key in document if key != "keys"]
    if unknown:
        raise KeymapError(f'Keymap {name} has "{unknown[0]}" at its top; only the table [keys] belongs there.')
    table = document.get("keys", {})
    if not isinstance(table, dict):
        raise KeymapError(f"Keymap {name}: keys must be a table of action = key.")
    overrides: dict[str, tuple[str, ...]] = {}
    for action, value in table.items():
        if action not in BY_ID:
            near = difflib.get_close_matches(action, BY_ID, n=1)
            hint = f'; did you mean "{near[0]}"?' if near else ", see the help screen."
            raise KeymapError(f'Keymap {name} names the action "{action}", which does not exist{hint}')
        keys = [value] if isinstance(value, str) else value
        if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
            raise KeymapError(f'Keymap {name}: "{action}" needs a key or a list of keys.')
        overrides[action] = tuple(_key(key, action, name) for key in keys)
    result = Keys(overrides)
    _refuse_clashes(result, name)
    return result


def _key(written: str, action: str, name: str) -> str:
    """Textual's name of a key as a person writes it: "?" or "question_mark", "^p" or "ctrl+p"."""
    *modifiers, key = written.split("+") if len(written) > 1 else [written]
    if len(written) == 2 and written[0] == "^" and written[1].isalpha():
        modifiers, key = ["ctrl"], written[1].lower()
    if len(key) == 1:
        key = _name_of(key)
    known = {str(k.value) for k in TextualKeys} | set(GLYPHS) | {_name_of(chr(code)) for code in range(33, 127)}
    if key not in known or any(m not in ("ctrl", "shift", "alt") for m in modifiers):
        raise KeymapError(f'Keymap {name} gives "{action}" the key "{written}", which no keyboard sends.')
    return "+".join([*modifiers, key])


def _name_of(char: str) -> str:
    """Textual's name of a printable character's key: letters and digits are themselves, "/" is "slash"."""
    if char.isalnum():
        return char
    name = unicodedata.name(char, char).lower().replace("-", "_").replace(" ", "_")
    return KEY_NAME_REPLACEMENTS.get(name, name)


def _refuse_clashes(keys: Keys, name: str) -> None:
    """A key the user gave twice is an error; a default key that the user gave elsewhere just moves."""
    holder: dict[tuple[str, str], str] = {}
    for action, given in keys.overrides.items():
        for key in given:
            scope = BY_ID[action].scope
            if (scope, key) in holder:
                raise KeymapError(
                    f'Keymap {name} gives the key "{key_text(key)}" to both "{holder[scope, key]}" and "{action}".'
                )
            holder[scope, key] = action


def settle(keys: Keys) -> Keys:
    """Take keys that the user gave to one action away from all defaults, so that a key does one thing."""
    taken = {(BY_ID[action].scope, key) for action, given in keys.overrides.items() for key in given}
    settled = dict(keys.overrides)
    for action in REGISTRY:
        if action.id not in keys.overrides:
            left = tuple(key for key in action.keys if (action.scope, key) not in taken)
            if left != action.keys:
                settled[action.id] = left
    return Keys(settled)
