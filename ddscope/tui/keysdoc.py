"""docs/keys.md, written from the registry of actions: `python -m ddscope.tui.keysdoc > docs/keys.md`."""

from __future__ import annotations

from ddscope.tui.actions import DEFAULT_KEYS, GROUPS, REGISTRY, Need

HEAD = """# Keys

Every action of the workbench, its keys, and its name in a keymap file. `?` shows the same list on the screen, `^p`
runs any action by its title, and the mouse works everywhere. Made from `ddscope/tui/actions.py` by
`python -m ddscope.tui.keysdoc`; a test says when it is out of date.
"""

TAIL = """
## Your own keys

`$XDG_CONFIG_HOME/ddscope/keymap.toml` (`~/.config/ddscope/keymap.toml`) gives actions other keys. A key that is given
away leaves its old action; a key given twice, an unknown action and an unknown key are said in one sentence, and the
usual keys are kept.

```toml
[keys]
go_live = ["end", "G"]
engine_pause = "^e"
show_stacks = []
```
"""


def keys_page() -> str:
    """The page as text."""
    parts = [HEAD]
    for group in GROUPS:
        parts.append(f"\n## {group}\n\n| keys | what it does | action |\n|---|---|---|\n")
        for action in REGISTRY:
            if action.group == group:
                needs = "" if action.needs in (Need.NOTHING, Need.FILE) else f" (with {action.needs.value})"
                keys = " ".join(f"`{key}`" for key in DEFAULT_KEYS.text(action).split(" "))
                parts.append(f"| {keys} | {action.title}{needs} | `{action.id}` |\n")
    return "".join([*parts, TAIL])


if __name__ == "__main__":
    print(keys_page(), end="")
