"""Every published speculative-decoding method as a short recipe on one engine."""

__version__ = "0.1.0"
