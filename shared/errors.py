"""Errors that say what the caller should do. Each carries one clear sentence."""


class MeiriError(Exception):
    """Base of every error a caller is meant to read; `str(error)` is one sentence that says what to do."""


class Transient(MeiriError):
    """The same call may succeed later: retry with back-off. Never a reason to dead-letter an event."""


class Permanent(MeiriError):
    """The same call will fail again: refuse or dead-letter. `reason` is a stable snake_case code."""

    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


class Unusable(MeiriError):
    """The process cannot start or go on as configured: print the sentence, exit with status 2."""
