"""Runs untrusted Python, isolated, fast, and with every wait bounded."""
