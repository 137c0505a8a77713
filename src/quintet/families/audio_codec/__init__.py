"""The audio codec: sound to residual codes and back."""
