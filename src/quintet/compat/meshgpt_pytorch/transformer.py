"""`MeshTransformer` of meshgpt-pytorch: quintet's `MeshTransformer` on the codes of a `MeshAutoencoder`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from quintet.compat.meshgpt_pytorch.autoencoder import MAX_FACES, MeshAutoencoder
from quintet.compat.meshgpt_pytorch.folder import Rebuildable, plain
from quintet.compat.meshgpt_pytorch.text import TEXT_DIM, FrozenWords, as_projection, embedding_mask, text_key
from quintet.compat.model import TrainingParts, notify, refuse_unless
from quintet.errors import UsageError
from quintet.families.mesh_transformer.config import MeshTransformerConfig
from quintet.families.mesh_transformer.model import MeshTransformer as OwnMeshTransformer
from quintet.families.mesh_transformer.task import MeshTransformerTask
from quintet.nn.conditioning import FrozenText, PrecomputedText
from quintet.sampling.autoregressive import Sampling
from quintet.training.objective import ForwardPass

NAME = "MeshTransformer"
ATTENTION_DEFAULTS = {
    "ff_glu": True,
    "attn_num_mem_kv": 4,
    "add_value_residual": True,
    "learned_value_residual_mix": True,
}


def top_k(logits: Tensor, frac_num_tokens: float = 0.1, k: int | None = None) -> Tensor:
    """All but the most likely tokens at -inf; the default of `filter_logits_fn`."""
    count = k or math.ceil(frac_num_tokens * logits.shape[-1])
    limit = logits.topk(min(count, logits.shape[-1]), dim=-1).values[..., -1:]
    return logits.masked_fill(logits < limit, -torch.inf)


class MeshTransformer(Rebuildable):
    """Predicts the next code of a mesh, optionally conditioned on text.

    `forward` returns the loss of quintet's recipe `mesh-transformer`. Texts are encoded by quintet's byte-level
    encoder, which is trained with the model; from the first `text_embeds` on, a model takes embeddings instead.
    """

    config_class = MeshTransformerConfig
    task_class = MeshTransformerTask

    def __init__(
        self,
        autoencoder: MeshAutoencoder,
        *,
        dim: int | tuple[int, int] = 512,
        max_seq_len: int = 8192,
        flash_attn: bool = True,
        attn_depth: int = 12,
        attn_dim_head: int = 64,
        attn_heads: int = 16,
        attn_kwargs: Mapping[str, Any] = ATTENTION_DEFAULTS,
        cross_attn_num_mem_kv: int = 4,
        dropout: float = 0.0,
        coarse_pre_gateloop_depth: int = 2,
        coarse_post_gateloop_depth: int = 0,
        coarse_adaptive_rmsnorm: bool = False,
        fine_pre_gateloop_depth: int = 2,
        gateloop_use_heinsen: bool = False,
        fine_attn_depth: int = 2,
        fine_attn_dim_head: int = 32,
        fine_attn_heads: int = 8,
        fine_cross_attend_text: bool = False,
        pad_id: int = -1,
        num_sos_tokens: int | None = None,
        condition_on_text: bool = False,
        text_cond_with_film: bool = False,
        text_condition_model_types: Sequence[str] = ("t5",),
        text_condition_model_kwargs: Sequence[Mapping[str, Any]] = ({},),
        text_condition_cond_drop_prob: float = 0.25,
        quads: bool = False,
    ) -> None:
        arguments = plain(locals(), "autoencoder")
        super().__init__()
        self.arguments = arguments
        if not isinstance(autoencoder, MeshAutoencoder):
            raise UsageError(f"{NAME} takes a MeshAutoencoder of this package, not a {type(autoencoder).__name__}")
        self.num_vertices_per_face = 4 if quads else 3
        if autoencoder.num_vertices_per_face != self.num_vertices_per_face:
            raise UsageError(f"{NAME}: quads={quads}, but the autoencoder was built for the other kind of faces")
        width = {dim} if isinstance(dim, int) else {*dim}
        if len(width) > 1:
            raise UsageError(f"{NAME}: dim={dim} is refused: both stages have the same dimension")
        refuse_unless(
            NAME, "attn_kwargs", dict(attn_kwargs), ({}, ATTENTION_DEFAULTS), "the blocks have no such settings"
        )
        per_face = autoencoder.model.tokens_per_face
        if max_seq_len % per_face:
            raise UsageError(f"{NAME}: max_seq_len={max_seq_len} must be a multiple of the {per_face} codes of a face")
        (own_dim,) = width
        further = fine_cross_attend_text or text_cond_with_film or coarse_adaptive_rmsnorm
        text = text_key(text_condition_model_kwargs) if condition_on_text else "none"
        self.autoencoder = autoencoder.requires_grad_(False)
        self.model = OwnMeshTransformer(
            num_codes=autoencoder.codebook_size,
            tokens_per_face=per_face,
            max_faces=max_seq_len // per_face,
            dim=own_dim,
            depth=attn_depth,
            fine_depth=fine_attn_depth,
            heads=attn_heads,
            dropout=dropout,
            face_buckets=0,
            text=text,
            text_dim=max(64, min(own_dim, 512) // 8 * 8),
        )
        self.max_seq_len, self.codebook_size, self.num_quantizers = (
            max_seq_len,
            autoencoder.codebook_size,
            autoencoder.num_quantizers,
        )
        self.condition_on_text, self.cond_drop_prob = condition_on_text, text_condition_cond_drop_prob
        self.eos_token_id = self.codebook_size
        self.pad_id = autoencoder.pad_id = pad_id
        self._words: tuple[FrozenWords, ...] = ()
        notify(
            NAME,
            f"attention heads have {own_dim // attn_heads} dimensions (dim / attn_heads)",
            "there are no gate-loop layers, and one start token",
            *(
                ["texts are attended to by the stage over faces only, without FiLM or adaptive norms"]
                if further
                else []
            ),
            *(
                [
                    "nothing is downloaded: texts are encoded by quintet's byte-level encoder, and it is trained with "
                    "the model; pass text_condition_model_kwargs=({'name': FOLDER},) to use a T5"
                ]
                if text == "bytes"
                else []
            ),
        )

    def training_parts(self) -> TrainingParts:
        keys = {
            "loss.cond_drop_prob": self.cond_drop_prob if self.condition_on_text else 0.0,
            "data.augment": False,
            "data.max_faces": MAX_FACES,
            "data.allow_missing_captions": True,
        }
        return TrainingParts(self.model, {"tokenizer": self.autoencoder.pipeline()}, keys=keys, trained=True)

    # --- texts --------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def embed_texts(self, texts: str | Sequence[str]) -> Tensor:
        """Embeddings (texts, words, dim) by a frozen encoder, for `text_embeds`; rows of 0 are padding.

        Without a T5 in a local folder they are the sums of fixed random vectors of words and their parts.
        """
        if not self.condition_on_text:
            raise UsageError(f"{NAME} was built without condition_on_text=True and takes no texts")
        listed = [texts] if isinstance(texts, str) else list(texts)
        encoder = self.model.text_encoder
        if isinstance(encoder, FrozenText):
            vectors, mask = encoder.encoder.embed(listed)
            vectors = vectors.masked_fill(~mask[..., None], 0)
        else:
            dim = encoder.input_dim if isinstance(encoder, PrecomputedText) else TEXT_DIM
            self._words = self._words or (FrozenWords(dim),)
            vectors = self._words[0](listed)
        vectors = vectors.to(self.device)
        return vectors[0] if isinstance(texts, str) else vectors

    def use_text_embeds(self, dim: int) -> None:
        """Take text embeddings of this dimension from now on, instead of texts."""
        encoder = self.model.text_encoder
        if not self.condition_on_text:
            raise UsageError(f"{NAME} was built without condition_on_text=True and takes no text_embeds")
        if isinstance(encoder, FrozenText):
            return
        if isinstance(encoder, PrecomputedText):
            if encoder.input_dim != dim:
                raise UsageError(f"text_embeds have dimension {dim}, but this model takes {encoder.input_dim}")
            return
        assert encoder is not None
        self.model.text_encoder = as_projection(encoder, dim)
        self.model.config = self.model.config.model_copy(update={"text": "vectors", "vector_dim": dim})
        self._task = None

    def _texts(self, texts: Sequence[str] | None, text_embeds: Tensor | None, count: int) -> dict[str, Any]:
        """The fields of the texts of a batch."""
        if (texts is not None or text_embeds is not None) != self.condition_on_text:
            missing = "needs texts or text_embeds" if self.condition_on_text else "takes no texts"
            raise UsageError(f"{NAME} was built with condition_on_text={self.condition_on_text} and {missing}")
        if texts is not None and text_embeds is not None:
            raise UsageError(f"{NAME} takes either texts or text_embeds")
        if texts is not None and isinstance(self.model.text_encoder, PrecomputedText):
            text_embeds = self.embed_texts(list(texts))
        given = texts if text_embeds is None else text_embeds
        if given is not None and len(given) != count:
            raise UsageError(f"{len(given)} texts are given for {count} meshes")
        if text_embeds is None:
            return {"texts": list(texts or [""] * count)}
        self.use_text_embeds(text_embeds.shape[-1])
        return {"texts": [""] * count, "vectors": text_embeds, "words": embedding_mask(text_embeds)}

    # --- training -----------------------------------------------------------------------------------------------

    def forward(
        self,
        *,
        vertices: Tensor | None = None,
        faces: Tensor | None = None,
        face_edges: Tensor | None = None,
        codes: Tensor | None = None,
        cache: Any = None,
        **kwargs: Any,
    ) -> Tensor:
        """The loss of meshes or of their codes; see `forward_on_codes` for further arguments."""
        if codes is None:
            if vertices is None or faces is None:
                raise UsageError(f"{NAME} takes vertices and faces, or codes")
            codes = self.autoencoder.tokenize(vertices=vertices, faces=faces, face_edges=face_edges)
        return self.forward_on_codes(codes, cache=cache, **kwargs)

    def forward_on_codes(
        self,
        codes: Tensor,
        return_loss: bool = True,
        return_cache: bool = False,
        append_eos: bool = True,
        cache: Any = None,
        texts: Sequence[str] | None = None,
        text_embeds: Tensor | None = None,
        cond_drop_prob: float | None = None,
    ) -> Tensor:
        """The loss of codes of any shape (batch, …), or with `return_loss=False` the logits of every next code."""
        refuse_unless(NAME, "return_cache", return_cache, (False,), "generate has its own cache")
        refuse_unless(NAME, "cache", cache, (None,), "generate has its own cache")
        rows = self._rows(codes)
        fields = self._texts(texts, text_embeds, len(rows))
        dropped = cond_drop_prob if cond_drop_prob is not None else self.cond_drop_prob if self.training else 0.0
        if not return_loss:
            return self._logits(rows, fields, dropped)
        refuse_unless(NAME, "append_eos", append_eos, (True,), "the end token is always predicted")
        lengths = (rows >= 0).all(-1).sum(1)
        everything = torch.ones_like(lengths, dtype=torch.bool)
        fields |= {"codes": rows, "lengths": lengths, "faces": lengths, "begins": everything, "ends": everything}
        return self.phase_loss("transformer", self._pass(fields, dropped)).value

    def _pass(self, fields: dict[str, Any], dropped: float) -> ForwardPass:
        """A forward pass of the task, in which this fraction of the texts is dropped."""
        task = self.task
        assert isinstance(task, MeshTransformerTask)
        config = task.config
        if dropped >= 1:
            fields = {name: value for name, value in fields.items() if name not in ("vectors", "words")}
            fields["texts"] = [""] * len(fields["texts"])
        task.config = config.changed({"loss.cond_drop_prob": 0.0 if dropped >= 1 else dropped})
        try:
            return self.forward_pass(fields, len(fields["texts"]))
        finally:
            task.config = config

    def _logits(self, rows: Tensor, fields: Mapping[str, Any], dropped: float) -> Tensor:
        keep = self.new_rng(len(rows)).uniform("keep text") >= dropped
        if "vectors" in fields:
            return self.model.logits(rows, self.model.text_vectors(fields["vectors"], fields["words"], keep))
        has_text = torch.tensor([bool(text) for text in fields["texts"]])
        return self.model.logits(rows, self.model.texts(fields["texts"], keep & has_text))

    def _rows(self, codes: Tensor) -> Tensor:
        """Codes (batch, faces, tokens per face), -1 in padding, of codes in any shape."""
        flat, per_face = codes.to(self.device).flatten(1), self.model.tokens_per_face
        if flat.shape[1] % per_face or not flat.shape[1]:
            raise UsageError(f"{flat.shape[1]} codes of a mesh are not a multiple of the {per_face} codes of a face")
        if flat.shape[1] > self.max_seq_len:
            raise UsageError(
                f"{NAME}: {flat.shape[1]} codes of a mesh ({flat.shape[1] // per_face} faces) are more than "
                f"max_seq_len={self.max_seq_len}"
            )
        rows = flat.view(len(flat), -1, per_face)
        return rows.masked_fill((rows == self.pad_id).any(-1, keepdim=True), -1)

    # --- generation ---------------------------------------------------------------------------------------------

    @torch.no_grad()
    def generate(
        self,
        prompt: Tensor | None = None,
        batch_size: int | None = None,
        filter_logits_fn: Callable[..., Tensor] = top_k,
        filter_kwargs: Mapping[str, Any] | None = None,
        temperature: float = 1.0,
        return_codes: bool = False,
        texts: Sequence[str] | None = None,
        text_embeds: Tensor | None = None,
        cond_scale: float = 1.0,
        cache_kv: bool = True,
        max_seq_len: int | None = None,
        face_coords_to_file: Callable[[Tensor], Any] | None = None,
        remove_parallel_component: bool = False,
    ) -> Any:
        """Faces (batch, faces, vertices, 3), NaN in padding, and their mask (batch, faces).

        With `return_codes` the codes (batch, faces * vertices, quantizers); with `face_coords_to_file` its results.
        """
        if prompt is not None and batch_size is not None:
            raise UsageError(f"{NAME}.generate takes either a prompt or batch_size")
        given = prompt if prompt is not None else text_embeds if text_embeds is not None else texts
        count = batch_size or (1 if given is None else len(given))
        if texts is not None and len(texts) == 1:
            texts = [*texts] * count
        fields = self._texts(texts, text_embeds, count)
        embeddings = (fields["vectors"], fields["words"]) if "vectors" in fields else None
        prompts = None if prompt is None else [row[row != self.pad_id] for row in prompt.flatten(1)]
        self._check_lengths(prompts, max_seq_len)
        training = self.training
        self.eval()
        try:
            generated = self.model.generate(
                fields["texts"],
                self.new_rng(count),
                Sampling(
                    temperature,
                    **_filters(filter_logits_fn, filter_kwargs or {}, self.codebook_size + 1),
                    guidance_scale=cond_scale,
                    guidance_projection=remove_parallel_component,
                ),
                embeddings=embeddings,
                prompts=prompts,
                max_faces=None if max_seq_len is None else max(1, max_seq_len // self.model.tokens_per_face),
            )
        finally:
            self.train(training)
        codes = generated.codes.clone().masked_fill(generated.codes < 0, self.pad_id)
        if return_codes:
            return codes.view(count, -1, self.num_quantizers)
        coordinates, mask = self.autoencoder.decode_from_codes_to_faces(codes)
        if face_coords_to_file is None:
            return coordinates, mask
        return [face_coords_to_file(own[kept]) for own, kept in zip(coordinates, mask, strict=True)]

    def _check_lengths(self, prompts: Sequence[Tensor] | None, max_seq_len: int | None) -> None:
        if max_seq_len is not None and not self.model.tokens_per_face <= max_seq_len <= self.max_seq_len:
            raise UsageError(
                f"{NAME}.generate: max_seq_len={max_seq_len} is not between {self.model.tokens_per_face}, the codes of "
                f"a face, and the max_seq_len={self.max_seq_len} of the model"
            )
        longest = max(map(len, prompts or [torch.empty(0)]))
        if longest > self.max_seq_len:
            raise UsageError(
                f"{NAME}.generate: a prompt of {longest} codes is longer than max_seq_len={self.max_seq_len}"
            )
        highest = max((int(row.max()) for row in prompts or () if len(row)), default=0)
        if highest >= self.codebook_size:
            raise UsageError(
                f"{NAME}.generate: a prompt has code {highest}, with codebook_size={self.codebook_size} of the "
                "autoencoder"
            )

    # --- folders ------------------------------------------------------------------------------------------------

    def saved_arguments(self) -> dict[str, Any]:
        encoder = self.model.text_encoder
        embeds = encoder.input_dim if isinstance(encoder, PrecomputedText) else None
        return {**super().saved_arguments(), "autoencoder": self.autoencoder.saved_arguments(), "embeds": embeds}

    @classmethod
    def rebuild(cls, saved: Mapping[str, Any]) -> Self:
        made = cls(MeshAutoencoder.rebuild(saved["autoencoder"]), **saved["arguments"])
        if saved["embeds"] is not None:
            made.use_text_embeds(saved["embeds"])
        return made

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.autoencoder.eval()  # frozen
        return self

    def load(self, path: str | Path, strict: bool = True) -> Self:
        return super().load(path, strict)


def _filters(function: Callable[..., Tensor], options: Mapping[str, Any], codes: int) -> dict[str, Any]:
    """The settings of quintet for `top_k` or `top_p` of x-transformers, or of this package."""
    name = getattr(function, "__name__", "")
    if name == "top_k" and options.keys() <= {"frac_num_tokens", "k"}:
        count = options.get("k") or math.ceil(options.get("frac_num_tokens", 0.1) * codes)
        return {"top_k": min(int(count), codes)}
    if name == "top_p" and options.keys() <= {"thres"}:
        return {"top_p": float(options.get("thres", 0.9))}
    raise UsageError(f"{NAME}.generate: filter_logits_fn={name or function!r} is refused: use top_k or top_p")
