"""C-ViViT: encodes videos and images to codes and decodes them."""
