"""XXH3-64 with seed 0, as a signed number: the hash Kafka keeps in ConsumerGroupMetadata records.

Equal hashes let a group that moves between Apache Kafka and Moldau keep its assignment instead of rebalancing. Topics
are hashed when they change, not per request, so plain Python is quick enough. Follows the public XXH3 specification.
"""

from __future__ import annotations

from struct import unpack_from

_M64 = (1 << 64) - 1
_PRIME32_1, _PRIME32_2, _PRIME32_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
_PRIME64_1, _PRIME64_2, _PRIME64_3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_PRIME64_4, _PRIME64_5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
_MX1, _MX2 = 0x165667919E3779F9, 0x9FB21C651E98DF25

_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
_STRIPES_PER_BLOCK = (len(_SECRET) - 64) // 8


def xxh3_64(data: bytes) -> int:
    length = len(data)
    if length <= 16:
        value = _hash_up_to_16(data, length)
    elif length <= 240:
        value = _hash_up_to_240(data, length)
    else:
        value = _hash_long(data, length)
    return value - (1 << 64) if value >> 63 else value


def _u32(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")


def _u64(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little")


def _fold(left: int, right: int) -> int:
    product = left * right
    return (product & _M64) ^ (product >> 64)


def _avalanche(value: int) -> int:
    value ^= value >> 37
    value = value * _MX1 & _M64
    return value ^ value >> 32


def _xxh64_avalanche(value: int) -> int:
    value ^= value >> 33
    value = value * _PRIME64_2 & _M64
    value ^= value >> 29
    value = value * _PRIME64_3 & _M64
    return value ^ value >> 32


def _hash_up_to_16(data: bytes, length: int) -> int:
    if length > 8:
        flip_low = _u64(_SECRET, 24) ^ _u64(_SECRET, 32)
        flip_high = _u64(_SECRET, 40) ^ _u64(_SECRET, 48)
        low = _u64(data, 0) ^ flip_low
        high = _u64(data, length - 8) ^ flip_high
        swapped = int.from_bytes(low.to_bytes(8, "little"), "big")
        return _avalanche((length + swapped + high + _fold(low, high)) & _M64)
    if length >= 4:
        keyed = (_u32(data, length - 4) + (_u32(data, 0) << 32)) ^ _u64(_SECRET, 8) ^ _u64(_SECRET, 16)
        mixed = keyed ^ _rotate(keyed, 49) ^ _rotate(keyed, 24)
        mixed = mixed * _MX2 & _M64
        mixed ^= (mixed >> 35) + length
        mixed = mixed * _MX2 & _M64
        return mixed ^ mixed >> 28
    if length:
        combined = data[0] << 16 | data[length >> 1] << 24 | data[length - 1] | length << 8
        return _xxh64_avalanche(combined ^ _u32(_SECRET, 0) ^ _u32(_SECRET, 4))
    return _xxh64_avalanche(_u64(_SECRET, 56) ^ _u64(_SECRET, 64))


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> 64 - bits) & _M64


def _mix16(data: bytes, at: int, secret_at: int) -> int:
    return _fold(_u64(data, at) ^ _u64(_SECRET, secret_at), _u64(data, at + 8) ^ _u64(_SECRET, secret_at + 8))


def _hash_up_to_240(data: bytes, length: int) -> int:
    total = length * _PRIME64_1
    if length <= 128:
        for index in range((length - 1) // 32 + 1):
            total += _mix16(data, 16 * index, 32 * index)
            total += _mix16(data, length - 16 * (index + 1), 32 * index + 16)
        return _avalanche(total & _M64)
    for index in range(8):
        total += _mix16(data, 16 * index, 16 * index)
    total = _avalanche(total & _M64)
    for index in range(8, length // 16):
        total += _mix16(data, 16 * index, 16 * (index - 8) + 3)
    total += _mix16(data, length - 16, 136 - 17)
    return _avalanche(total & _M64)


def _hash_long(data: bytes, length: int) -> int:
    lanes = [
        _PRIME32_3,
        _PRIME64_1,
        _PRIME64_2,
        _PRIME64_3,
        _PRIME64_4,
        _PRIME32_2,
        _PRIME64_5,
        _PRIME32_1,
    ]
    stripes = (length - 1) // 64
    for stripe in range(stripes):
        in_block = stripe % _STRIPES_PER_BLOCK
        _accumulate(lanes, data, 64 * stripe, 8 * in_block)
        if in_block == _STRIPES_PER_BLOCK - 1:
            keys = unpack_from("<8Q", _SECRET, len(_SECRET) - 64)
            for lane in range(8):
                value = lanes[lane]
                lanes[lane] = (value ^ value >> 47 ^ keys[lane]) * _PRIME32_1 & _M64
    _accumulate(lanes, data, length - 64, len(_SECRET) - 64 - 7)
    keys = unpack_from("<8Q", _SECRET, 11)
    total = length * _PRIME64_1
    for lane in range(0, 8, 2):
        total += _fold(lanes[lane] ^ keys[lane], lanes[lane + 1] ^ keys[lane + 1])
    return _avalanche(total & _M64)


def _accumulate(lanes: list[int], data: bytes, at: int, secret_at: int) -> None:
    values = unpack_from("<8Q", data, at)
    keys = unpack_from("<8Q", _SECRET, secret_at)
    for lane in range(8):
        keyed = values[lane] ^ keys[lane]
        lanes[lane ^ 1] = (lanes[lane ^ 1] + values[lane]) & _M64
        lanes[lane] = (lanes[lane] + (keyed & 0xFFFFFFFF) * (keyed >> 32)) & _M64
