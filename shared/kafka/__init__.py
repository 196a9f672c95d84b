"""Kafka behind two ports, `EventLog` (read) and `Publisher` (write): real and in memory, one contract suite for both."""
