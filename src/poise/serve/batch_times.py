"""How long a batch will take, from the last ones: a line in its cost, for small batches take more time per image."""

from __future__ import annotations

_MEMORY = 0.8  # weight of a batch after each later one: the time of a batch changes with labels and with other programs


class BatchTimes:
    """A weighted least-squares line through the costs and seconds of batches, and through (0, 0).

    The point (0, 0) has the weight of one batch that is never forgotten. With batches of one size the line is therefore
    proportional to the cost, which is too much for larger batches rather than too little.

    Example:
        >>> times = BatchTimes()
        >>> times.add(cost=4, seconds=2.0)
        >>> times.of(8)
        4.0
    """

    def __init__(self) -> None:
        self._weight, self._cost, self._seconds, self._squares, self._products = 1.0, 0.0, 0.0, 0.0, 0.0

    def add(self, cost: float, seconds: float) -> None:
        """Take the time of a batch into account."""
        self._weight = 1 + _MEMORY * (self._weight - 1) + 1
        self._cost = _MEMORY * self._cost + cost
        self._seconds = _MEMORY * self._seconds + seconds
        self._squares = _MEMORY * self._squares + cost * cost
        self._products = _MEMORY * self._products + cost * seconds

    def of(self, cost: float) -> float:
        """Return the seconds that a batch of this cost will take; 0 before the first batch."""
        spread = self._squares - self._cost**2 / self._weight  # above 0 after the first batch, because of (0, 0)
        if not spread > 0 or not cost:
            return 0.0
        slope = max(0.0, (self._products - self._cost * self._seconds / self._weight) / spread)
        return max(0.0, self._seconds / self._weight + slope * (cost - self._cost / self._weight))
