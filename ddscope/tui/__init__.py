"""The workbench on the screen: panes draw values of `ddscope.session`, and one time cursor moves them all.

Textual is imported when `run` is called, so that commands without a screen do not pay for it.
"""
