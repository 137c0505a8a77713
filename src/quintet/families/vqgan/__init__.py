"""VQ-GAN: pictures to a grid of codes and back."""
