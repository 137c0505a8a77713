"""Owns how the mesh transformer is trained on the codes of a tokenizer, how it is measured, and what it makes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from quintet.common import collectives
from quintet.common.batch import Batch, Dataset, Item
from quintet.common.precision import at_least_fp32
from quintet.common.rng import ItemRNG
from quintet.common.statistics import Statistics
from quintet.config.text import possible_guidance
from quintet.data.captioned import check_request, found_keys
from quintet.data.splits import Splits
from quintet.errors import UnreadableItem, UsageError
from quintet.families.mesh_transformer import data
from quintet.families.mesh_transformer.config import MeshTransformerConfig
from quintet.families.mesh_transformer.grammar import CanonicalCoordinates
from quintet.families.mesh_transformer.judging import clouds, judged, set_figures, soundness
from quintet.families.mesh_transformer.model import Generated, MeshTransformer
from quintet.families.mesh_transformer.part import read_part
from quintet.media.image import write_image
from quintet.media.mesh import EXTENSIONS, Mesh, write_mesh
from quintet.media.mesh_measures import as_triangles, merged
from quintet.media.mesh_render import contact_sheet
from quintet.pipelines.frozen import FrozenModel
from quintet.sampling.autoregressive import Legal, Sampling
from quintet.training.task import Artifact, Loss, Modules, Output, Phase, Request, Task

SHOWN = 192
"""Pixels of one picture of a mesh."""
TURNED = 8
"""Pairs of meshes that are written beside the picture of all."""
MADE_AT_ONCE = 32


class MeshTransformerTask(Task[MeshTransformerConfig]):
    name = "mesh-transformer"
    best: ClassVar[tuple[str, Literal["max", "min"]]] = ("loss", "min")
    exported = "transformer"
    options = ("negative", "mesh")
    shardable = True

    def __init__(
        self,
        config: MeshTransformerConfig,
        tokenizer: FrozenModel | None = None,
        transformer: MeshTransformer | None = None,
    ) -> None:
        if tokenizer is None:
            raise UsageError(
                "mesh-transformer makes the codes of a tokenizer: name one with --tokenizer RUN, or take "
                "--tokenizer coordinates"
            )
        config = _fitted(config, tokenizer)
        super().__init__(config, tokenizer=tokenizer)
        self.tokenizer = tokenizer
        self.transformer = transformer or MeshTransformer(config.model)
        if config.data.cache:
            self.transformer.cache_texts(Path(config.data.cache))
        self.modules = {"transformer": self.transformer}
        self.phases = [Phase("transformer", ("transformer",), self.loss, config.optim.for_phase())]

    @property
    def unprompted(self) -> bool:
        return self.config.model.text == "none"

    # --- data -------------------------------------------------------------------------------------------------

    def splits(self) -> Splits:
        return data.code_splits(self.config, self.tokenizer)

    def collate(self, items: Sequence[Item]) -> dict[str, Any]:
        return data.collate(items)

    def lengths(self, source: Dataset) -> Sequence[int] | None:
        return source.lengths() if hasattr(source, "lengths") else None

    # --- training ---------------------------------------------------------------------------------------------

    def forward(self, modules: Modules, batch: Batch, step: int) -> Output:
        loss, draw = self.config.loss, batch.draw
        conditioning = self._texts(batch, draw.uniform("keep text") >= loss.drop_text)
        conditioning |= self.transformer.faces(batch["faces"], draw.uniform("keep faces") >= loss.drop_faces)
        return Output(self._predicted(modules, batch, conditioning))

    def _texts(self, batch: Batch, keep: Tensor | None = None) -> dict[str, Tensor]:
        # An empty caption is none, here as in generation.
        there = torch.tensor([bool(text) for text in batch["texts"]])
        return self.transformer.texts(batch["texts"], there if keep is None else keep & there)

    def _predicted(self, modules: Modules, batch: Batch, conditioning: dict[str, Tensor]) -> dict[str, Tensor]:
        logits, targets = modules["transformer"](
            batch["codes"], batch["lengths"], conditioning, batch["begins"], batch["ends"]
        )
        return {"logits": at_least_fp32(logits), "targets": targets}

    def loss(self, modules: Modules, batch: Batch, output: Output, step: int) -> Loss:
        logits, targets = output["logits"], output["targets"]
        each = F.cross_entropy(logits, targets, reduction="none", label_smoothing=self.config.loss.label_smoothing)
        everything = torch.ones_like(each, dtype=torch.bool)
        right = (logits.argmax(-1) == targets).to(each.dtype)
        parts = {"accuracy": collectives.mean_over_ranks(right, everything)}
        return Loss(collectives.mean_over_ranks(each, everything), parts)

    # --- looking ----------------------------------------------------------------------------------------------

    def measure(self, modules: Modules, batch: Batch) -> Statistics:
        """Of every token, given the text and no number of faces, as in generation."""
        logits, targets = self._predicted(modules, batch, self._texts(batch)).values()
        return Statistics(
            {
                "loss": F.cross_entropy(logits, targets, reduction="sum"),
                "right": (logits.argmax(-1) == targets).sum().to(logits.dtype),
                "tokens": torch.tensor(float(len(targets)), dtype=logits.dtype),
            }
        )

    def measure_generated(self, modules: Modules, batch: Batch, split: str) -> Statistics:
        """What is found in meshes that were made from captions without a grammar, and in the set of them."""
        if split != "validation":
            return Statistics()
        made = self._made(modules, batch["texts"], batch.draw)
        meshes, real = self._meshes(made), self._reconstructed(batch)
        sums = {"made": torch.tensor(float(len(meshes)), dtype=torch.float64)}
        sums |= soundness(meshes, made.ended.tolist())
        if "class" in batch and "proportions" in batch:
            sums |= judged(meshes, batch["class"], batch["proportions"])
            sums |= judged(real, batch["class"], batch["proportions"], "_reconstruction")
        return Statistics(sums, {"made": clouds(meshes), "real": clouds(real)})

    def summarise(self, statistics: Statistics) -> dict[str, float]:
        sums = {name: float(value) for name, value in statistics.sums.items()}
        loss = sums["loss"] / sums["tokens"]
        figures = {
            "loss": loss,
            "perplexity": float(torch.tensor(loss, dtype=torch.float64).exp()),
            "accuracy": sums["right"] / sums["tokens"],
        }
        if not sums.get("made"):
            return figures
        shares = ("valid", "watertight", "ended", "match_class", "match_class_reconstruction")
        figures |= {name: sums[name] / sums["made"] for name in shares if name in sums}
        for suffix in ("", "_reconstruction"):
            if asked := sums.get(f"proportions{suffix}"):
                figures[f"match_proportions{suffix}"] = sums[f"match_proportions{suffix}"] / asked
        return figures | set_figures(statistics.rows)

    def sample(self, modules: Modules, batch: Batch) -> list[Artifact]:
        """A sheet of pairs: the mesh as the tokenizer has it, and what is made from its caption; the first of them also
        as files to turn."""
        made = self._meshes(self._made(modules, batch["texts"], batch.draw, legal=self._grammar()))
        given = self._reconstructed(batch)
        pairs = [mesh for pair in zip(given, made, strict=True) for mesh in pair]
        sheet = contact_sheet(pairs, columns=8, size=SHOWN)
        about = {"columns": "reconstruction, made from its caption", "texts": list(batch["texts"])}
        artifacts = [Artifact("made.png", partial(write_image, sheet), about, torch.from_numpy(sheet))]
        for number, (text, pair) in enumerate(zip(batch["texts"], zip(given, made, strict=True), strict=True)):
            for what, mesh in zip(("reconstruction", "made"), pair, strict=True):
                about_mesh = {"text": text, "what": what, "faces": len(mesh.faces)}
                artifacts.append(Artifact(f"{number:03d}-{what}.glb", partial(write_mesh, mesh), about_mesh))
        return artifacts[: 1 + 2 * TURNED]

    # --- making -----------------------------------------------------------------------------------------------

    def generate(self, modules: Modules, request: Request) -> list[Artifact]:
        check_request(self.config.model, request, self.config.sample.guidance, self._guidance())
        prompt = self._prompt(request.given)
        meshes: list[Mesh] = []
        ended: list[bool] = []
        for part, draw in request.parts(MADE_AT_ONCE):
            made = self._made(modules, part, draw, request.negative, prompt, self._grammar())
            meshes += self._meshes(made)
            ended += made.ended.tolist()
        texts, common = request.wanted, request.about(self.config.sample, "mesh")
        sheet = contact_sheet(meshes, columns=min(8, len(meshes)), size=SHOWN)
        artifacts = [Artifact("sheet.png", partial(write_image, sheet), {"texts": texts, **common})]
        for number, (mesh, text) in enumerate(zip(meshes, texts, strict=True)):
            about = {"text": text, "number": number, "faces": len(mesh.faces), "ended": ended[number], **common}
            artifacts += [
                Artifact(f"{number:03d}.{suffix}", partial(write_mesh, mesh), about) for suffix in ("glb", "obj")
            ]
        return artifacts

    def _made(
        self,
        modules: Modules,
        texts: Sequence[str],
        draw: ItemRNG,
        negative: str | None = None,
        prompt: Tensor | None = None,
        legal: Legal | None = None,
    ) -> Generated:
        transformer, config = modules["transformer"], self.config.sample
        assert isinstance(transformer, MeshTransformer)
        return transformer.generate(
            [""] * len(texts) if self.unprompted else texts,
            draw,
            Sampling(config.temperature, config.top_k, config.top_p, self._guidance()),
            negative=negative,
            face_counts=[config.faces] * len(texts) if config.faces else None,
            prompts=None if prompt is None else [prompt] * len(texts),
            max_faces=config.max_faces,
            legal=legal,
        )

    def _guidance(self) -> float:
        return possible_guidance(self.config.model, self.config.loss.drop_text, self.config.sample.guidance)

    def _grammar(self) -> Legal | None:
        if self.config.sample.grammar == "none":
            return None
        keys = self.tokenizer.model.config
        if keys.kind != "coordinates" or keys.vertices_per_face != 3:
            raise UsageError("sample.grammar=strict needs a model over the tokenizer `coordinates` of triangles")
        return CanonicalCoordinates(keys.bins)

    def _prompt(self, path: Path | None) -> Tensor | None:
        """The codes of a part to go on from."""
        if path is None:
            return None
        try:
            part = read_part(path, self.tokenizer.model.bins)
        except UnreadableItem as problem:
            raise UsageError(f"--mesh {path}: {problem}") from None
        most = self.config.sample.max_faces or self.config.model.max_faces
        if len(part.faces) > most:
            key = "sample.max_faces" if self.config.sample.max_faces else "model.max_faces"
            raise UsageError(f"--mesh {path} has {len(part.faces)} faces, more than {key}={most}")
        vertices = torch.from_numpy(part.vertices).float()
        device = next(self.transformer.parameters()).device
        codes: Tensor = self.tokenizer.model.tokenize(vertices.to(device), torch.from_numpy(part.faces).to(device))
        return codes

    def _meshes(self, made: Generated) -> list[Mesh]:
        return self._decoded(_rows(made.codes, made.lengths))

    def _reconstructed(self, batch: Batch) -> list[Mesh]:
        """What the tokenizer makes of the codes of a batch, whole meshes even where it holds stretches of them."""
        device = batch["codes"].device
        whole = batch["whole"] if "whole" in batch else _rows(batch["codes"], batch["lengths"])
        return self._decoded([codes.to(device) for codes in whole])

    def _decoded(self, rows: Sequence[Tensor]) -> list[Mesh]:
        """Meshes as they are, nothing left out and nothing mended."""
        model = self.tokenizer.model
        faces = [len(row) for row in rows]
        corners = model.decode_from_codes(torch.cat([*rows]), faces).cpu()
        parts = torch.split(corners, faces)
        soups = [merged(part.double().numpy(), model.bins) for part in parts]
        return [Mesh(mesh.vertices, as_triangles(mesh.faces)) for mesh in soups]


def _rows(codes: Tensor, lengths: Tensor) -> list[Tensor]:
    """Without padding."""
    return [row[:length] for row, length in zip(codes, lengths.tolist(), strict=True)]


def _fitted(config: MeshTransformerConfig, tokenizer: FrozenModel) -> MeshTransformerConfig:
    """The configuration with what follows from tokenizer and captions, which must not contradict it."""
    if tokenizer.recipe.name != "mesh-autoencoder":
        raise UsageError(
            f"mesh-transformer needs a tokenizer of meshes; {tokenizer.reference} is of recipe "
            f"'{tokenizer.recipe.name}'"
        )
    model = tokenizer.model
    found = {"model.num_codes": model.num_codes, "model.tokens_per_face": model.tokens_per_face}
    config = config.adopt(f"the tokenizer {tokenizer.reference}", found)
    return config.changed(found_keys(config.model, config.data, EXTENSIONS))
