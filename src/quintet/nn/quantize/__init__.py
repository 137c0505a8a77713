"""Quantizers: VQ, LFQ and FSQ with one interface, each as a single or a residual quantizer."""

from quintet.nn.quantize.base import Quantized, Quantizer, SingleQuantizer, perplexity, usage
from quintet.nn.quantize.codebook_free import FiniteScalarQuantizer, LookupFreeQuantizer
from quintet.nn.quantize.factory import Kind, configured_quantizer, make_quantizer
from quintet.nn.quantize.residual import ProductQuantizer, ResidualQuantizer
from quintet.nn.quantize.vector import VectorQuantizer

__all__ = [
    "FiniteScalarQuantizer",
    "Kind",
    "LookupFreeQuantizer",
    "ProductQuantizer",
    "Quantized",
    "Quantizer",
    "ResidualQuantizer",
    "SingleQuantizer",
    "VectorQuantizer",
    "configured_quantizer",
    "make_quantizer",
    "perplexity",
    "usage",
]
