"""What a command raises when it cannot be done: the message is one sentence for the user."""


class CommandError(Exception):
    """One sentence: what happened, to what, and what to do."""
