"""Kafka behind two ports, `EventLog` (read) and `Publisher` (write): one real and one in memory, one contract suite for both."""
