"""VQ-GAN: encodes images to a grid of codes and decodes them."""
