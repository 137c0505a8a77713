"""`Phenaki` and `make_video` of phenaki-pytorch: the loss of quintet's recipe `phenaki`, and its decoding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from quintet.common.batch import Batch
from quintet.common.weights.loading import load_module
from quintet.compat.model import CompatModel, TrainingParts, notify, refuse_unless
from quintet.compat.phenaki_pytorch.cvivit import CViViT
from quintet.compat.phenaki_pytorch.embeddings import PROJECTION
from quintet.compat.phenaki_pytorch.maskgit import MaskGit, TokenCritic
from quintet.compat.text import DEFAULT_T5_NAME, text_source
from quintet.config import build
from quintet.errors import UsageError
from quintet.families.cvivit.config import CViViTConfig
from quintet.families.cvivit.pipeline import CViViTPipeline
from quintet.families.phenaki.config import PhenakiConfig
from quintet.families.phenaki.model import Phenaki as OwnPhenaki
from quintet.families.phenaki.task import PhenakiTask
from quintet.nn.conditioning import FrozenText
from quintet.nn.maskgit import MaskGit as OwnMaskGit
from quintet.nn.maskgit import TokenCritic as OwnTokenCritic
from quintet.pipelines.base import Pipeline
from quintet.sampling import masked
from quintet.sampling.maskgit_preparation import CodeRows
from quintet.training.phase import Output

NAME = "Phenaki"


class _Task(PhenakiTask):
    """The task of a `Phenaki`, whose conditioning is a field of the batch."""

    drop = 0.0
    """The fraction of texts to drop in the next pass."""

    @property
    def cond_drop_prob(self) -> float:
        return self.drop

    @property
    def training_rows(self) -> Callable[[Batch], CodeRows]:
        return self.code_rows

    def conditioning(self, batch: Batch, keep: Tensor | None = None) -> dict[str, Tensor]:
        conditioning: dict[str, Tensor] = batch["conditioning"](keep)
        return conditioning


class _Unclamped:
    """A `CViViT` for quintet's `Phenaki` whose videos are not clamped, as in the original."""

    def __init__(self, cvivit: CViViT) -> None:
        self.config, self.quantizer = cvivit.model.config, cvivit.model.quantizer
        self.encode, self.parameters = cvivit.model.encode, cvivit.model.parameters
        self.decode = cvivit.decode_from_codebook_indices


class Phenaki(CompatModel):
    """Text to video: a `MaskGit` over the codes of a `CViViT`, with an optional critic. `forward` returns the loss.

    The window of the model, in which frames see each other, is as long as `max_seq_len` allows; longer videos continue
    window by window.
    """

    config_class = PhenakiConfig
    task_class = _Task

    def __init__(
        self,
        *,
        maskgit: MaskGit,
        cvivit: CViViT,
        critic: TokenCritic | None = None,
        steps: int = 18,
        t5_name: str = DEFAULT_T5_NAME,
        sample_temperature: float = 0.0,
        text_embed_dim: int | None = None,
        cond_drop_prob: float = 0.25,
        max_text_len: int = 128,
        self_token_critic: bool = False,
        critic_loss_weight: float = 1.0,
        critic_noise_anneal_schedule: str = "decay",
        critic_train_sample_temperature: float = 1.0,
    ) -> None:
        super().__init__()
        _check_parts(maskgit, cvivit, critic, self_token_critic, cond_drop_prob)
        reason = "the noise of the critic always decays; leave it out"
        refuse_unless(NAME, "critic_noise_anneal_schedule", critic_noise_anneal_schedule, ("decay",), reason)
        self._trains_projection = False
        self.cvivit = cvivit.copy_for_eval().requires_grad_(False)
        self.maskgit, self.critic = maskgit, critic
        self.unconditional = maskgit.unconditional
        self.steps, self.sample_temperature = steps, sample_temperature
        self.cond_drop_prob, self.max_text_len = cond_drop_prob, max_text_len
        self.self_token_critic, self.critic_loss_weight = self_token_critic, critic_loss_weight
        self.critic_train_sample_temperature = critic_train_sample_temperature
        source = text_source(t5_name, text_embed_dim)
        self.text_embed_dim = source.embed_dim
        notices = [] if self.unconditional else list(source.notices)
        notices += self._adapt(maskgit, source.text, source.embed_dim, self_critic=self_token_critic)
        if critic is not None:
            notices += self._adapt(critic, source.text, source.embed_dim)
        notify(NAME, *notices)

    def _adapt(self, part: MaskGit | TokenCritic, text: str, embed_dim: int, self_critic: bool = False) -> list[str]:
        """Give a transformer the grid and codes of the tokenizer, and the text encoder; returns notices."""
        config, notices = self.cvivit.model.config, []
        latent_frames = min(part.max_seq_len // self.cvivit.image_num_tokens, config.latent_frames(config.max_frames))
        if latent_frames < 1:
            raise UsageError(
                f"{type(part).__name__}: max_seq_len={part.max_seq_len} is less than the "
                f"{self.cvivit.image_num_tokens} codes of one frame"
            )
        if part.mask_id != self.cvivit.codebook_size:
            notices.append(
                f"num_tokens={part.mask_id} of the {type(part).__name__} becomes {self.cvivit.codebook_size}, the "
                "codebook_size of the CViViT"
            )
        keys: dict[str, Any] = {
            "grid": [latent_frames, *self.cvivit.patch_height_width],
            "num_codes": self.cvivit.codebook_size,
            "self_critic": self_critic,
        }
        if part.project is not None:
            keys |= {"text": text, "text_length": self.max_text_len}
            if part.project.project.in_features != embed_dim:
                part.set_context_dim(embed_dim)
        part.adapt(**keys)
        return notices

    def check_num_frames(self, frames: int) -> None:
        """Raise `UsageError` if clips of a data set do not fit in the window."""
        config = self.cvivit.model.config
        if config.latent_frames(frames) * self.cvivit.image_num_tokens > self.maskgit.max_seq_len:
            raise UsageError(
                f"{NAME}: clips of {frames} frames have "
                f"{config.latent_frames(frames) * self.cvivit.image_num_tokens} codes, more than "
                f"max_seq_len={self.maskgit.max_seq_len} of the MaskGit"
            )

    # --- parts ------------------------------------------------------------------------------------------------

    @property
    def mask_id(self) -> int:
        return self.maskgit.mask_id

    @property
    def own_maskgit(self) -> OwnMaskGit:
        assert isinstance(self.maskgit.model, OwnMaskGit)
        return self.maskgit.model

    @property
    def own_critic(self) -> OwnTokenCritic | None:
        model = None if self.critic is None else self.critic.model
        assert model is None or isinstance(model, OwnTokenCritic)
        return model

    def training_parts(self) -> TrainingParts:
        modules: dict[str, nn.Module] = {} if self.own_critic is None else {"critic": self.own_critic}
        if self._trains_projection and self.maskgit.project is not None:
            modules[PROJECTION] = self.maskgit.project
        keys = {
            "data.frames": self.cvivit.model.config.frames(self.own_maskgit.grid[0]),
            "loss.cond_drop_prob": min(self.cond_drop_prob, 0.99),
            "loss.label_smoothing": 0.0,
            "loss.continuation_prob": 0.0,
            "loss.critic": self.critic is not None,
            "sample.steps": self.steps,
            "sample.temperature": 0.9,
            "sample.temperature_schedule": "linear",
            "sample.guidance_scale": 3.0,
            "sample.guidance_schedule": "constant",
            "sample.choice_temperature": 1.0 if self._has_critic else 0.0,
        }
        return TrainingParts(self.own_maskgit, {"tokenizer": self._tokenizer()}, modules, keys)

    def train_on_embeddings(self, dim: int) -> bool:
        """Prepare for a trainer whose items have text embeddings; whether the projection takes them, which is trained
        then. A frozen text encoder takes them itself."""
        project = self.maskgit.project
        if project is None or isinstance(self.own_maskgit.text_encoder, FrozenText):
            return False
        if dim != project.project.in_features:
            raise UsageError(
                f"{NAME}: the text_embeds of the items have dimension {dim}, but the model takes "
                f"{project.project.in_features}; pass text_embed_dim={dim} to {NAME}"
            )
        self._trains_projection = True
        return True

    def _load_checkpoint(self, folder: Path) -> Self:
        super()._load_checkpoint(folder)
        if self.maskgit.project is not None and (folder / f"{PROJECTION}.safetensors").is_file():
            load_module(self.maskgit.project, folder, PROJECTION)
        return self

    @property
    def _has_critic(self) -> bool:
        return self.critic is not None or self.self_token_critic

    def _tokenizer(self) -> Pipeline[Any]:
        model, keys = self.cvivit.model, self.cvivit.training_parts().keys
        overrides = {**keys, "data.path": None, "model": model.config.model_dump(mode="json")}
        return CViViTPipeline(build(CViViTConfig, overrides=overrides), {"cvivit": model}).freeze()

    # --- training ---------------------------------------------------------------------------------------------

    def forward(
        self,
        videos: Tensor | None = None,
        *,
        texts: Sequence[str] | None = None,
        video_codebook_ids: Tensor | None = None,
        video_frame_mask: Tensor | None = None,
        text_embeds: Tensor | None = None,
        cond_drop_prob: float | None = None,
        only_train_generator: bool = False,
        only_train_critic: bool = False,
    ) -> Tensor:
        """The loss of videos (batch, 3, frames, height, width), of images, or of their codes."""
        self._check_call(videos, video_codebook_ids, texts, text_embeds, only_train_generator, only_train_critic)
        codes = self._codes(videos, video_codebook_ids)
        valid = None
        if video_frame_mask is not None:
            valid = self.cvivit.calculate_video_token_mask(videos, video_frame_mask.bool()).to(self.device)
            valid = None if valid.all() else valid
        captions = None if texts is None else list(texts)

        def conditioning(keep: Tensor | None) -> dict[str, Tensor]:
            return self.maskgit.conditioning(captions, text_embeds, keep)

        drop = self.cond_drop_prob if cond_drop_prob is None else cond_drop_prob
        fields = {"codes": codes, "valid_mask": valid, "conditioning": conditioning}
        task = self.task
        assert isinstance(task, _Task)
        task.drop = drop
        with torch.set_grad_enabled(torch.is_grad_enabled() and not only_train_critic):
            forward_pass = self.forward_pass(fields, len(codes))
        loss = task.prediction_loss(forward_pass.output).value
        if only_train_generator or not self._has_critic:
            return loss
        values = dict(forward_pass.output.values)
        values["logits"] = values["logits"].detach() / max(self.critic_train_sample_temperature, 1e-10)
        if self.critic is not None:
            # The critic has its own text encoder, and the same texts are dropped.
            keep = forward_pass.batch.rng.uniform("keep text") >= drop
            values["conditioning"] = self.critic.conditioning(captions, text_embeds, keep)
            values["conditioning"] |= {} if valid is None else {"valid_mask": valid}
        critic = task.critic_loss(task.modules, forward_pass.batch, Output(values), forward_pass.step).value
        return critic if only_train_critic else loss + self.critic_loss_weight * critic

    def _check_call(
        self,
        videos: Tensor | None,
        ids: Tensor | None,
        texts: Sequence[str] | None,
        text_embeds: Tensor | None,
        only_train_generator: bool,
        only_train_critic: bool,
    ) -> None:
        if only_train_generator and only_train_critic:
            raise UsageError(f"{NAME}: only_train_generator and only_train_critic exclude each other")
        if only_train_critic and not self._has_critic:
            raise UsageError(f"{NAME}: only_train_critic needs a critic: pass critic= or self_token_critic=True")
        if (videos is None) == (ids is None):
            raise UsageError(f"{NAME}: pass either videos or video_codebook_ids")
        if self.unconditional and (texts is not None or text_embeds is not None):
            raise UsageError(f"{NAME} is unconditional: pass neither texts nor text_embeds")
        if not self.unconditional and (texts is None) == (text_embeds is None):
            raise UsageError(f"{NAME}: pass either texts or text_embeds")

    @torch.no_grad()
    def _codes(self, videos: Tensor | None, ids: Tensor | None) -> Tensor:
        """Codes (batch, latent frames, rows, columns)."""
        if videos is not None:
            codes: Tensor = self.cvivit(videos, return_only_codebook_ids=True)
        else:
            assert ids is not None
            codes = ids.to(self.device).view(len(ids), -1, *self.cvivit.patch_height_width)
        if codes.shape[1] > self.own_maskgit.grid[0]:
            raise UsageError(
                f"{NAME}: a video of {codes[0].numel()} codes exceeds max_seq_len={self.maskgit.max_seq_len} of the "
                "MaskGit"
            )
        return codes

    # --- generating -------------------------------------------------------------------------------------------

    def sample_images(
        self,
        *,
        texts: Sequence[str] | str | None = None,
        batch_size: int = 1,
        cond_scale: float = 3.0,
        starting_temperature: float = 0.9,
        noise_K: float = 1.0,  # noqa: N803
    ) -> Tensor:
        """Images (batch, 3, height, width), one for each text."""
        videos = self.sample(
            texts=texts,
            num_frames=1,
            batch_size=batch_size,
            cond_scale=cond_scale,
            starting_temperature=starting_temperature,
            noise_K=noise_K,
        )
        return videos[:, :, 0]

    @torch.no_grad()
    def sample(
        self,
        *,
        num_frames: int,
        texts: Sequence[str] | str | None = None,
        prime_frames: Tensor | None = None,
        batch_size: int = 1,
        cond_scale: float = 3.0,
        starting_temperature: float = 0.9,
        noise_K: float = 1.0,  # noqa: N803
    ) -> Tensor:
        """Videos (batch, 3, num_frames, height, width), one for each text; they are not clamped, as in the original.

        With `prime_frames` (batch, 3, frames, height, width) the result is `num_frames` new frames that continue them.
        With a critic, `noise_K` is the temperature of Gumbel noise on its scores.
        """
        captions = [texts] if isinstance(texts, str) else [""] * batch_size if texts is None else list(texts)
        primed = 0 if prime_frames is None else prime_frames.shape[2]
        self._check_frames(num_frames, primed)
        settings = masked.Sampling(
            steps=self.steps,
            temperature=starting_temperature,
            temperature_schedule=masked.linear,
            guidance_scale=1.0 if self.unconditional else cond_scale,
            choice_temperature=noise_K if self._has_critic else 0.0,
        )
        was_training = self.training
        self.eval()
        own = OwnPhenaki(self.own_maskgit, _Unclamped(self.cvivit), self.own_critic, settings)
        count = len(captions)
        keep = torch.tensor([bool(text) for text in captions] + [False] * count)
        # In one call, so that both are padded to the same length.
        both = self.maskgit.conditioning(captions * 2, None, keep)
        cond, uncond = ({name: value[part] for name, value in both.items()} for part in _halves(count))
        start = None if prime_frames is None else own.prime_batch(prime_frames, count)
        videos = own.generate((cond, uncond), self.new_rng(count), primed + num_frames, start)
        self.train(was_training)
        return videos[:, :, primed:]

    def _check_frames(self, num_frames: int, primed: int) -> None:
        step = self.cvivit.temporal_patch_size
        total = num_frames + primed
        if num_frames < 1 or (total - 1) % step or (primed and (primed - 1) % step):
            raise UsageError(
                f"{NAME}: num_frames={num_frames} with {primed} prime frames is invalid: the number of prime frames, "
                f"and of all frames, is 1 plus a multiple of temporal_patch_size={step}"
            )


def make_video(
    phenaki: Phenaki, texts: Sequence[str], num_frames: int | tuple[int, ...], prime_lengths: int | tuple[int, ...]
) -> tuple[Tensor, list[Tensor]]:
    """One video that shows a scene for each text, and the list of its scenes (1, 3, frames, height, width).

    Each scene continues the last `prime_lengths` frames of the previous one.
    """
    counts = num_frames if isinstance(num_frames, tuple) else (num_frames,) * len(texts)
    lengths = prime_lengths if isinstance(prime_lengths, tuple) else (prime_lengths,) * (len(texts) - 1)
    if len(counts) != len(texts) or len(lengths) != len(texts) - 1:
        raise UsageError(
            f"make_video: {len(texts)} texts need as many num_frames and one prime_lengths less, not {len(counts)} "
            f"and {len(lengths)}"
        )
    scenes: list[Tensor] = []
    for number, (text, frames) in enumerate(zip(texts, counts, strict=True)):
        prime = scenes[-1][:, :, -lengths[number - 1] :] if scenes else None
        scenes.append(phenaki.sample(texts=text, prime_frames=prime, num_frames=frames))
    return torch.cat(scenes, dim=2), scenes


def _halves(count: int) -> tuple[slice, slice]:
    return slice(None, count), slice(count, None)


def _check_parts(maskgit: Any, cvivit: Any, critic: Any, self_token_critic: bool, cond_drop_prob: float) -> None:
    if not isinstance(maskgit, MaskGit):
        raise UsageError(f"{NAME}: maskgit is a MaskGit, not a {type(maskgit).__name__}")
    if not isinstance(cvivit, CViViT):
        raise UsageError(f"{NAME}: cvivit is a CViViT, not a {type(cvivit).__name__}")
    if critic is not None and not isinstance(critic, TokenCritic):
        raise UsageError(f"{NAME}: critic is a TokenCritic, not a {type(critic).__name__}")
    if critic is not None and self_token_critic:
        raise UsageError(f"{NAME}: pass either critic or self_token_critic=True")
    if critic is not None and critic.has_cross_attn == maskgit.unconditional:
        raise UsageError(f"{NAME}: a critic of a model with texts needs has_cross_attn=True, and only that")
    if cond_drop_prob <= 0:
        raise UsageError(f"{NAME}: cond_drop_prob={cond_drop_prob} must be above 0, for classifier-free guidance")
