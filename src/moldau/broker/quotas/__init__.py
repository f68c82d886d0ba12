"""How much clients may use, and what happens to those who use more.

`rates.py` measures (Kafka's Rate and TokenBucket); `limits.py` finds the limit of a client among those of users, client
ids and defaults; `clients.py` puts both together for produced and fetched bytes, request time and controller mutations.
Whoever is over its limit is answered at once, told for how long it should be silent (`throttle_time_ms`), and not read
from for as long. Time is always passed in. Limits on connections are `moldau.net`'s; `addresses.py` gives it those of
single addresses. Replication has throttles of its own (`moldau/replication/throttle.py`).
"""
