"""The hash by which Java's producer finds the partition of a key."""


def murmur2(data: bytes) -> int:
    """The 32-bit hash Kafka's Java client uses for keys, as an unsigned number."""
    mask, multiplier = 0xFFFFFFFF, 0x5BD1E995
    length = len(data)
    result = (0x9747B28C ^ length) & mask
    whole = length & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * multiplier & mask
        word = (word ^ word >> 24) * multiplier & mask
        result = (result * multiplier & mask) ^ word
    if tail := data[whole:]:
        result = (result ^ int.from_bytes(tail, "little")) * multiplier & mask
    result = (result ^ result >> 13) * multiplier & mask
    return result ^ result >> 15
