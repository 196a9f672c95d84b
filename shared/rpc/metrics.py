"""Counts of calls by how they ended. A successful call leaves a number here and no log line."""

from collections import Counter


class Metrics:
    """Counts since the last `take`.

    Outcomes: "ok", "shed", "cancelled", "failed", "unavailable", "deadline_exceeded", "aborted" (by the handler
    itself), and for a refused call the reason code of its error.
    """

    def __init__(self) -> None:
        self.in_flight = 0
        self._ended: Counter[tuple[str, str]] = Counter()

    def ended(self, method: str, outcome: str) -> None:
        self._ended[method, outcome] += 1

    def count(self, outcome: str) -> int:
        return sum(n for (_, found), n in self._ended.items() if found == outcome)

    def take(self) -> dict[str, dict[str, int]]:
        """Give method → outcome → calls, and start again from zero."""
        taken: dict[str, dict[str, int]] = {}
        for (method, outcome), calls in sorted(self._ended.items()):
            taken.setdefault(method, {})[outcome] = calls
        self._ended.clear()
        return taken
