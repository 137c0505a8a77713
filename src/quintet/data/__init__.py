"""Datasets of images, audio, video and meshes: folders, shards and Python objects, their captions, and token caches."""
