"""One file per API, named like it: `create_topics.py` serves CreateTopics.

A file says at its top which versions it serves and how it behaves, and has one function:

    def handle(broker: Needs, call: Call, request: m.XRequest) -> m.XResponse | None

`Needs` names the parts of the broker that the handler may touch (`parts.py` of each room), or is one of them.
It returns the response, or None after seeing to it that `call.respond` is called later. It may also be `async`, or
return a coroutine: then no later request of its connection overtakes it. What walks through something long is a
generator: it yields about once a millisecond, so that others have their turn, and returns the response.

Produce and Fetch have `handle_frame(broker, call, frame, position)` instead and read the bytes themselves; Fetch has
`handle_controller_frame` for controllers' listeners. What is not here is not in ApiVersions.
"""
