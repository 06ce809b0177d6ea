"""The one error the emitter raises, and only while it is being set up; `emit` itself never raises."""


class EmitError(ValueError):
    """The emitter cannot listen or start. The message is one sentence a person can act on."""
