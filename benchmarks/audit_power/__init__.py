"""`python -m benchmarks.audit_power`: false alarms and power of the tests of `outpace audit --endpoint`."""
