"""Neural audio codec: waveforms to residual codes and back."""
