"""Pipelines, the interface for inference: trained models that encode, generate or embed."""
