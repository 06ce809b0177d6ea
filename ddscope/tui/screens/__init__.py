"""Screens: the workbench, where panes meet, and the dialogs over it."""
