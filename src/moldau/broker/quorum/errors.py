"""Why this node takes no part in the quorum, or no longer does."""


class QuorumStopped(Exception):
    """This node no longer takes part."""


class LostHistory(Exception):
    """This voter has nothing on its disk, and the quorum has a history. The message says what to do."""
