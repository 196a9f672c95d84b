"""The gRPC shell around every service: tokens, policies, deadlines, limits, error mapping, health and draining."""
