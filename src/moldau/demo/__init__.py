"""The demo: a broker, a producer and a consumer, in one terminal, cleaning up after themselves."""
