"""The console: a cluster in the browser, Moldau or Apache Kafka. `docs/console.md` is for its users.

Rooms: `gate` (who may do what), `cluster` (what is known of the cluster, kept by a thread in the background),
`messages` (reading, decoding, filtering, masking records), `screens` (one file per screen), templates and static files.

Invariants
- Every route is in `routes.py`, says which role it takes, and passes `guard.py`; nothing else answers requests.
- Lists are rendered from the last snapshot: no page waits for the cluster. What must be asked is asked off the loop,
  with a limit on time and on how many ask at once, and fills its place in the page when it comes.
- What came out of a topic is hostile: it is masked, cut, escaped, and never becomes markup, script or a request.
"""
