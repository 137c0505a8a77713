"""Mesh autoencoder: triangle meshes to codes, a few a face, and back."""
