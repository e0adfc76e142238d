"""The compiled form of the policy ``joulery``'s decision: plain C, reached through ctypes."""
