"""The demo: a broker, its clients and five data pipelines, in one terminal, cleaning up after themselves."""
