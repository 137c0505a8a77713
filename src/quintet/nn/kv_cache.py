"""Keys and values that a causal transformer keeps from one step of decoding to the next, in room taken once."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


class LayerKVCache:
    """The keys and values of the tokens that one self-attention has seen, `(batch, heads, max_length, head_dim)`.

    The room is taken at the first step, in the precision that the step runs in; of it, `length` places are filled.
    """

    keys: Tensor
    values: Tensor

    def __init__(self, max_length: int) -> None:
        self.max_length = max_length
        self.length = 0
        self.has_room = False

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add `(batch, heads, new, head_dim)` and return all there is."""
        if not self.has_room:
            batch, heads, _, head_dim = keys.shape
            self.keys, self.values = keys.new_empty(2, batch, heads, self.max_length, head_dim)
            self.has_room = True
        last = self.length + keys.shape[2]
        self.keys[:, :, self.length : last] = keys
        self.values[:, :, self.length : last] = values
        self.length = last
        return self.keys[:, :, :last], self.values[:, :, :last]

    def select(self, rows: Tensor) -> None:
        """Go on with these rows of the batch alone."""
        if self.has_room:
            self.keys, self.values = self.keys[rows], self.values[rows]


@dataclass
class KVCache:
    """What a causal transformer keeps from one `step` to the next.

    `contexts` are the keys and values of every block's attention to the context, made once; `context_mask` is what
    `attention_mask` made.
    """

    layers: list[LayerKVCache]
    contexts: list[tuple[Tensor, Tensor]]
    context_mask: Tensor | None

    @property
    def length(self) -> int:
        """How many tokens were seen."""
        return self.layers[0].length

    @property
    def max_length(self) -> int:
        return self.layers[0].max_length

    def rewind(self) -> None:
        """Forget the tokens, and keep the room and the context."""
        for layer in self.layers:
            layer.length = 0

    def select(self, rows: Tensor) -> None:
        """Go on with these rows of the batch alone."""
        for layer in self.layers:
            layer.select(rows)
        self.contexts = [(keys[rows], values[rows]) for keys, values in self.contexts]
        self.context_mask = None if self.context_mask is None else self.context_mask[rows]
