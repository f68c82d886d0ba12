"""An idle query asks for news 60 times a second; a source where that costs somebody something is asked less often.

Invariant: the pause comes before the question, so the answer is never old: `processAllAvailable` ends with it.
"""

import math
import time

_SECONDS = 0.2


class IdlePause:
    """Between two questions of which the first brought nothing new."""

    def __init__(self) -> None:
        self._idle_at = -math.inf

    def before_asking(self) -> None:
        rest_s = self._idle_at + _SECONDS - time.monotonic()
        if rest_s > 0:
            time.sleep(rest_s)  # Spark asks again at once, and takes any answer for a new one

    def nothing_new(self) -> None:
        self._idle_at = time.monotonic()
