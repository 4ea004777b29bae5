"""The speed layer: Kafka → speed tables, one streaming query for each pipeline, one commit for each epoch."""
