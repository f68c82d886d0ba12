"""Broker settings of sockets, listeners and connections.

The format is told in `definition.py`.
"""

NETWORK = """
advertised.listeners list null unique+ high static
    Addresses clients are told to use, `NAME://host:port`; `listeners` when unset.
connection.failed.authentication.delay.ms int 100 [0,...] low static
    Pause before a connection that failed to authenticate is closed.
connections.max.idle.ms long 600000 - medium static
    Close connections that were idle for this long; negative keeps them.
connections.max.reauth.ms long 0 - medium static
    Time after which a SASL session must authenticate again; 0 means never.
controller.socket.timeout.ms int 30000 - medium static ignored
    How long to wait for the controller on one connection.
inter.broker.listener.name string null - medium static
    Listener brokers use among themselves; by default the one named as `security.inter.broker.protocol`.
listener.security.protocol.map string SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT - \
low broker
    Security protocol of each listener name, `NAME:PROTOCOL`.
listeners list PLAINTEXT://:9092 unique+ high broker
    Addresses to listen on, `NAME://host:port`. An empty host means all interfaces, port 0 any free port.
max.connection.creation.rate int 2147483647 [0,...] medium cluster
    New connections accepted per second.
max.connections int 2147483647 [0,...] medium cluster
    Connections accepted at the same time.
max.connections.per.ip int 2147483647 [0,...] medium cluster
    Connections accepted from one address; 0 needs `max.connections.per.ip.overrides`.
max.connections.per.ip.overrides string "" - medium cluster
    Exceptions to the limit, `host:count`.
num.network.threads int 3 [1,...] high cluster ignored
    Threads that read and write sockets. Moldau does it on one event loop.
queued.max.request.bytes long -1 - medium static
    Bytes of requests waiting before sockets are no longer read; negative means no limit.
queued.max.requests int 500 [1,...] high static ignored
    Requests waiting before sockets are no longer read.
security.inter.broker.protocol string PLAINTEXT {PLAINTEXT,SSL,SASL_PLAINTEXT,SASL_SSL} medium static
    Protocol between brokers, unless `inter.broker.listener.name` says it.
socket.connection.setup.timeout.max.ms long 30000 - medium static ignored
    Longest wait for a connection to another node, after several failures.
socket.connection.setup.timeout.ms long 10000 - medium static
    First wait for a connection to another node; grows with failures.
socket.listen.backlog.size int 4096 [1,...] medium static
    Connections the operating system keeps waiting to be accepted.
socket.receive.buffer.bytes int 102400 - high static
    Receive buffer of a socket; -1 is the operating system's default.
socket.request.max.bytes int 104857600 [1,...] high static
    Largest request; a larger one closes the connection.
socket.send.buffer.bytes int 102400 - high static
    Send buffer of a socket; -1 is the operating system's default.
"""
