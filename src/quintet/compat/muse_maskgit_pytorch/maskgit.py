"""`MaskGit` and `Muse` of muse-maskgit-pytorch: the loss of quintet's recipe `muse`, and its decoding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from quintet.common.batch import Batch
from quintet.compat.model import CompatModel, TrainingParts
from quintet.compat.muse_maskgit_pytorch.transformer import MaskGitTransformer, TokenCritic
from quintet.compat.muse_maskgit_pytorch.vqgan import VQGanVAE
from quintet.config import build
from quintet.errors import UsageError
from quintet.families.muse.config import MuseConfig
from quintet.families.muse.pipeline import MusePipeline
from quintet.families.muse.task import MuseTask
from quintet.families.vqgan.config import VQGanConfig
from quintet.families.vqgan.pipeline import VQGanPipeline
from quintet.media.image import to_uint8
from quintet.nn.maskgit import MaskGit as OwnMaskGit
from quintet.nn.maskgit import TokenCritic as OwnTokenCritic
from quintet.pipelines.base import Frozen, Pipeline
from quintet.sampling import masked
from quintet.sampling.maskgit import fill
from quintet.training.phase import Output

Schedule = Callable[[Tensor], Tensor]


class _Pipeline(MusePipeline):
    @classmethod
    def fit(cls, config: MuseConfig, frozen: Frozen) -> MuseConfig:
        # A super-resolution model of the original has no base model until it becomes a part of Muse.
        return config


class _Task(MuseTask):
    """The task of a `MaskGit`, whose conditioning is a field of the batch."""

    pipeline_class = _Pipeline
    schedule: Schedule | None = None
    drop = 0.0
    """The fraction of texts to drop in the next pass."""

    @property
    def mask_schedule(self) -> Schedule:
        return self.schedule or super().mask_schedule

    @property
    def cond_drop_prob(self) -> float:
        return self.drop

    def conditioning(self, batch: Batch, keep: Tensor | None = None) -> dict[str, Tensor]:
        conditioning: dict[str, Tensor] = batch["conditioning"](keep)
        return conditioning


class MaskGit(CompatModel):
    """Text to image: a transformer over the codes of a `VQGanVAE`, with super-resolution if `cond_image_size` is set.

    `forward` returns the loss. A super-resolution model is conditioned on the codes of `cond_images`, by default the
    images at `cond_image_size`.
    """

    config_class = MuseConfig
    task_class = _Task

    def __init__(
        self,
        image_size: int,
        transformer: MaskGitTransformer,
        noise_schedule: Schedule = masked.cosine,
        token_critic: TokenCritic | None = None,
        self_token_critic: bool = False,
        vae: VQGanVAE | None = None,
        cond_vae: VQGanVAE | None = None,
        cond_image_size: int | None = None,
        cond_drop_prob: float = 0.5,
        self_cond_prob: float = 0.9,
        no_mask_token_prob: float = 0.0,
        critic_loss_weight: float = 1.0,
    ) -> None:
        super().__init__()
        _check_parts(transformer, token_critic, self_token_critic, vae, cond_vae, cond_image_size, self_cond_prob)
        assert vae is not None
        self.image_size, self.cond_image_size = image_size, cond_image_size
        self.resize_image_for_cond_image = cond_image_size is not None
        self.cond_drop_prob = cond_drop_prob
        self.no_mask_token_prob, self.critic_loss_weight = no_mask_token_prob, critic_loss_weight
        self.noise_schedule = noise_schedule
        self.self_token_critic = self_token_critic
        self.vae = vae.copy_for_eval().requires_grad_(False)
        self.vae.set_image_size(image_size)
        self.cond_vae = self.vae if cond_vae is None else cond_vae.eval()
        for each in (self.vae, self.cond_vae):
            if each.codebook_size != transformer.num_tokens:
                raise UsageError(
                    f"the transformer has num_tokens={transformer.num_tokens}, but the VAE has "
                    f"codebook_size={each.codebook_size}; they must be equal"
                )
        self.transformer = transformer
        self.token_critic = token_critic
        self.self_cond = transformer.self_cond
        self.mask_id = transformer.mask_id
        for part in (transformer, token_critic):
            if part is not None:
                self._adapt(part, self_critic=self_token_critic and part is transformer)

    def _adapt(self, part: MaskGitTransformer | TokenCritic, self_critic: bool) -> None:
        side = self.vae.get_encoded_fmap_size(self.image_size)
        if side * side > part.seq_len:
            raise UsageError(f"an image of {self.image_size} pixels has {side * side} codes; seq_len={part.seq_len}")
        keys: dict[str, Any] = {"grid": [side, side], "self_critic": self_critic}
        if self.cond_image_size is not None:
            low = self.cond_vae.get_encoded_fmap_size(self.cond_image_size)
            keys |= {"low_res_grid": [low, low], "low_res_num_codes": self.cond_vae.codebook_size}
        part.adapt(**keys)

    # --- parts ----------------------------------------------------------------------------------------------

    @property
    def model(self) -> OwnMaskGit:
        model = self.transformer.model
        assert isinstance(model, OwnMaskGit)
        return model

    @property
    def critic(self) -> OwnTokenCritic | None:
        model = None if self.token_critic is None else self.token_critic.model
        assert model is None or isinstance(model, OwnTokenCritic)
        return model

    def training_parts(self) -> TrainingParts:
        modules: dict[str, nn.Module] = {} if self.critic is None else {"critic": self.critic}
        keys = {
            "loss.cond_drop_prob": min(self.cond_drop_prob, 0.99),
            "loss.label_smoothing": 0.0,
            "loss.visible_token_prob": self.no_mask_token_prob,
            "loss.critic": self.critic is not None,
        }
        return TrainingParts(self.model, {"tokenizer": self._tokenizer()}, modules, keys)

    def _tokenizer(self) -> Pipeline[Any]:
        model = self.vae.model
        overrides = {"data.path": None, "model": model.config.model_dump(mode="json")}
        return VQGanPipeline(build(VQGanConfig, overrides=overrides), {"vae": model}).freeze()

    # --- training -------------------------------------------------------------------------------------------

    def forward(
        self,
        images_or_ids: Tensor,
        ignore_index: int = -1,
        cond_images: Tensor | None = None,
        cond_token_ids: Tensor | None = None,
        texts: Sequence[str] | None = None,
        text_embeds: Tensor | None = None,
        cond_drop_prob: float | None = None,
        train_only_generator: bool = False,
        sample_temperature: float | None = None,
    ) -> Tensor:
        """The loss of images (batch, channels, height, width) or of their codes, and of the critic if there is one.

        The critic sees codes sampled at `sample_temperature`, by default 1. `ignore_index` has no meaning: only masked
        codes are predicted.
        """
        if cond_images is not None and cond_token_ids is not None:
            raise UsageError("MaskGit: pass either cond_images or cond_token_ids")
        codes, images = self._codes(images_or_ids)
        if self.cond_image_size is not None and cond_token_ids is None:
            low = cond_images if cond_images is not None else self._smaller(images)
            with torch.no_grad():
                cond_token_ids = self.cond_vae.encode(low.to(self.device))[1]

        def conditioning(keep: Tensor | None) -> dict[str, Tensor]:
            return self.transformer.conditioning(texts, text_embeds, keep, cond_token_ids)

        task = self.task
        assert isinstance(task, _Task)
        task.drop = self.cond_drop_prob if cond_drop_prob is None else cond_drop_prob
        task.schedule = None if self.noise_schedule is masked.cosine else self.noise_schedule
        forward_pass = self.forward_pass({"codes": codes, "conditioning": conditioning}, len(codes))
        loss = task.prediction_loss(forward_pass.output).value
        if train_only_generator or (self.critic is None and not self.self_token_critic):
            return loss
        values = dict(forward_pass.output.values)
        values["logits"] = values["logits"].detach() / max(sample_temperature or 1.0, 1e-10)
        if self.token_critic is not None:
            # The critic has its own text encoder, and the same texts are dropped.
            keep = forward_pass.batch.rng.uniform("keep text") >= task.drop
            values["conditioning"] = self.token_critic.conditioning(texts, text_embeds, keep, cond_token_ids)
        critic = task.critic_loss(task.modules, forward_pass.batch, Output(values), forward_pass.step)
        return loss + self.critic_loss_weight * critic.value

    @torch.no_grad()
    def _codes(self, images_or_ids: Tensor) -> tuple[Tensor, Tensor | None]:
        """Codes (batch, positions), and the images if those were passed."""
        if not images_or_ids.is_floating_point():
            ids = images_or_ids.flatten(1).to(self.device)
            if ids.shape[1] != self.model.length:
                raise UsageError(f"MaskGit: ids have {ids.shape[1]} codes; images have {self.model.length}")
            return ids, None
        if images_or_ids.shape[-2:] != (self.image_size, self.image_size):
            raise UsageError(
                f"MaskGit: images have shape {tuple(images_or_ids.shape)}, but image_size={self.image_size}"
            )
        return self.vae.encode(images_or_ids.to(self.device))[1].flatten(1), images_or_ids

    def _smaller(self, images: Tensor | None) -> Tensor:
        if images is None:
            raise UsageError("MaskGit: a super-resolution model needs images, cond_images or cond_token_ids")
        assert self.cond_image_size is not None
        return F.interpolate(images, self.cond_image_size, mode="nearest")

    # --- generating -----------------------------------------------------------------------------------------

    @torch.no_grad()
    def generate(
        self,
        texts: Sequence[str],
        negative_texts: Sequence[str] | None = None,
        cond_images: Tensor | None = None,
        fmap_size: int | None = None,
        temperature: float = 1.0,
        topk_filter_thres: float = 0.9,
        can_remask_prev_masked: bool = False,
        force_not_use_token_critic: bool = False,
        timesteps: int = 18,
        cond_scale: float = 3,
        critic_noise_scale: float = 1,
    ) -> Tensor:
        """Images (batch, channels, height, width), one for each text; they are not clamped, as in the original.

        With a critic, `critic_noise_scale` is the temperature of Gumbel noise on its scores.
        """
        side = self.model.grid[0]
        if fmap_size not in (None, side):
            raise UsageError(f"MaskGit: fmap_size={fmap_size}, but the model was built for {side} x {side} codes")
        if can_remask_prev_masked and not self.no_mask_token_prob:
            raise UsageError("can_remask_prev_masked=True needs a model trained with no_mask_token_prob above 0")
        if negative_texts is not None and len(negative_texts) != len(texts):
            raise UsageError(f"MaskGit: {len(texts)} texts, but {len(negative_texts)} negative_texts")
        low = None
        if self.cond_image_size is not None:
            if cond_images is None:
                raise UsageError("MaskGit: a super-resolution model needs cond_images")
            low = self.cond_vae.encode(cond_images.to(self.device))[1]
        uses_critic = not force_not_use_token_critic and (self.critic is not None or self.self_token_critic)
        settings = masked.Sampling(
            steps=timesteps,
            schedule=self.noise_schedule,
            temperature=temperature,
            temperature_schedule=masked.linear,
            top_k=None if topk_filter_thres <= 0 else max(1 - topk_filter_thres, 1e-9),
            guidance_scale=cond_scale,
            choice_temperature=critic_noise_scale if uses_critic else 0.0,
            remask_kept=can_remask_prev_masked,
        )
        was_training = self.training
        self.eval()
        codes = self._fill(list(texts), negative_texts, low, settings, uses_critic)
        images = self.vae.decode_from_ids(codes.view(len(texts), side, side))
        self.train(was_training)
        return images

    def _fill(
        self,
        texts: list[str],
        negative: Sequence[str] | None,
        low: Tensor | None,
        settings: masked.Sampling,
        uses_critic: bool,
    ) -> Tensor:
        count = len(texts)
        # In one call, so that both are padded to the same length.
        others = texts if negative is None else list(negative)
        keep = torch.tensor([True] * count + [negative is not None] * count)
        both_low = None if low is None else torch.cat([low, low])
        conditioning = self.transformer.conditioning([*texts, *others], None, keep, both_low)
        tokens = torch.full((count, self.model.length), self.model.mask_id, device=self.device)
        return fill(
            self.model,
            tokens,
            torch.ones_like(tokens, dtype=torch.bool),
            rng=self.new_rng(count),
            settings=settings,
            cond={name: value[:count] for name, value in conditioning.items()},
            uncond={name: value[count:] for name, value in conditioning.items()},
            critic=self.critic,
            use_critic=uses_critic,
        )


class Muse(nn.Module):
    """Text to image with a base model and a super-resolution model."""

    def __init__(self, base: MaskGit, superres: MaskGit) -> None:
        super().__init__()
        if not superres.resize_image_for_cond_image:
            raise UsageError("Muse: superres needs a MaskGit with cond_image_size")
        self.base_maskgit = base.eval()
        self.superres_maskgit = superres.eval()

    @torch.no_grad()
    def forward(
        self,
        texts: Sequence[str],
        cond_scale: float = 3.0,
        temperature: float = 1.0,
        timesteps: int = 18,
        superres_timesteps: int | None = None,
        return_lowres: bool = False,
        return_pil_images: bool = True,
    ) -> Any:
        """One image for each text, as PIL images or as a tensor; with `return_lowres` also those of the base model."""
        common: dict[str, Any] = {"texts": texts, "cond_scale": cond_scale, "temperature": temperature}
        low: Any = self.base_maskgit.generate(**common, timesteps=timesteps)
        steps = timesteps if superres_timesteps is None else superres_timesteps
        high: Any = self.superres_maskgit.generate(**common, cond_images=low, timesteps=steps)
        if return_pil_images:
            low, high = ([_pil(image) for image in images] for images in (low, high))
        return (high, low) if return_lowres else high


def _pil(image: Tensor) -> Image.Image:
    pixels = to_uint8(image.clamp(0, 1).cpu())
    return Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)


def _check_parts(
    transformer: Any,
    token_critic: Any,
    self_token_critic: bool,
    vae: Any,
    cond_vae: Any,
    cond_image_size: int | None,
    self_cond_prob: float,
) -> None:
    if not isinstance(transformer, MaskGitTransformer):
        raise UsageError(f"MaskGit: transformer is a MaskGitTransformer, not a {type(transformer).__name__}")
    if token_critic is not None and not isinstance(token_critic, TokenCritic):
        raise UsageError(f"MaskGit: token_critic is a TokenCritic, not a {type(token_critic).__name__}")
    if not isinstance(vae, VQGanVAE):
        raise UsageError("MaskGit needs vae, the VQGanVAE whose codes it generates")
    if cond_vae is not None and not isinstance(cond_vae, VQGanVAE):
        raise UsageError(f"MaskGit: cond_vae is a VQGanVAE, not a {type(cond_vae).__name__}")
    if self_token_critic and token_critic is not None:
        raise UsageError("MaskGit: pass either token_critic or self_token_critic=True")
    if cond_vae is not None and cond_image_size is None:
        raise UsageError("MaskGit: cond_vae needs cond_image_size")
    if transformer.self_cond and self_cond_prob != 0.9:
        raise UsageError(f"MaskGit: self_cond_prob={self_cond_prob} is refused: it is always 0.9; leave it out")
