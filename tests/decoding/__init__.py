"""Decoding on a device: the same tokens as on the host, without waiting for the device."""
