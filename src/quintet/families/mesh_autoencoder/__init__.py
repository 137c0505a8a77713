"""Mesh autoencoder: meshes to a fixed number of codes per face, and back."""
