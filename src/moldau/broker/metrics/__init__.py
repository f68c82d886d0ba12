"""What people see of a node from outside: numbers for Prometheus, whether it lives and is ready, and who it is.

Each file gathers the numbers of one part when somebody asks; nothing is gathered in between. Names are those that
Kafka's JMX exporter and kafka_exporter give, where dashboards exist for them; the rest begins with `moldau_`.
"""
