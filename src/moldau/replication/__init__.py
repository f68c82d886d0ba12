"""Replication of partitions, as Kafka has it: a leader that counts, and followers that fetch.

Everything here is pure. The broker brings the time, the offsets of the log and the words of the cluster's image; what
comes back are numbers and decisions, which the broker carries out.

- `leader`: remote log end offsets, the in-sync replicas and changes to them, the high watermark, the low watermark.
- `follower`: what a follower does with the answer to a fetch, and where it truncates its log.
- `session`: a follower's side of incremental fetch sessions.
- `watch`: what changed for a follower since its last fetch, so that partitions at rest cost nothing.
- `selection`: which replica a consumer is sent to.
- `throttle`: bandwidth for replicas that are being moved.
"""
