"""Schemas by id: Confluent's registry API, and values that begin with a zero byte and the id of their schema.

`client` asks the registry, `formats` reads and writes values of the three kinds (Avro, JSON Schema, Protobuf),
`protobuf_text` makes descriptors of `.proto` text, `types` says which Spark type a schema is.
"""
