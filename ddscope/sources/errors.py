"""The error of this package."""


class SourceError(ValueError):
    """A source cannot do what was asked. The message is one sentence a person can act on."""
