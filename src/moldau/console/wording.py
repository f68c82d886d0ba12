"""Things and how many of them, in words: `1 partition`, `2 partitions`."""


def noun(count: float, one: str) -> str:
    """The word for so many: `one` is it in the singular."""
    if count == 1:
        return one
    return f"{one[:-1]}ies" if one.endswith("y") else f"{one}s"


def counted(count: float, one: str) -> str:
    return f"{count:,.0f} {noun(count, one)}"
