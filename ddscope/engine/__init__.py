"""The embedded DDTree engine: a real target and a real drafter, decoded so that every step can be looked at.

Models and algorithms: `pair` (loading), `target`, `drafter`, `generate`. The process around them: `server` and what it
imports.
"""
