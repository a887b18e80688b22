"""JSON Schema: from what a caller wrote to what can be enforced exactly."""
