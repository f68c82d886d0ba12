"""Which partition of `__consumer_offsets` a group belongs to: Java's hash of the group id, as every client and broker
computes it.
"""

_INT32 = 1 << 32


def java_string_hash(text: str) -> int:
    """Java's String.hashCode: over UTF-16 code units, in 32-bit arithmetic, signed."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) % _INT32
    return value - _INT32 if value >> 31 else value


def partition_for_group(group_id: str, partition_count: int) -> int:
    # Kafka's abs: the most negative number, whose absolute value does not fit, becomes 0.
    value = java_string_hash(group_id)
    return (0 if value == -(1 << 31) else abs(value)) % partition_count
