"""The peer: the same translation model built from `torch.nn.Transformer`, trained by the plain loop of a
tutorial.

Pre-norm, tied embeddings scaled by sqrt(D), sinusoids, cross-entropy over whole logits with label smoothing.
`copy_weights` makes it compute what our model computes, which is the proof that both do the same work.
Letters: B sentences, S source, T target positions, D model width, V vocabulary.
"""

import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headgates.configs.schema import ModelConfig, StageConfig
from headgates.data.batch import Batch
from headgates.data.special_tokens import SpecialTokens
from headgates.lightning_modules.schedules import inverse_sqrt
from headgates.models.attention import MultiHeadAttention
from headgates.models.positions import sinusoids
from headgates.models.transformer import Transformer

PADDING = SpecialTokens().padding


class TorchTransformer(nn.Module):
    """Sources (B, S) and target inputs (B, T) to logits (B, T, V), made of torch's own modules alone."""

    def __init__(self, config: ModelConfig, vocab: int):
        super().__init__()
        assert (config.embeddings, config.positions) == (
            "tied",
            "sinusoidal",
        )  # the architecture that is compared
        self.d_model = config.d_model
        self.embedding = nn.Embedding(vocab, config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", message="enable_nested_tensor is True"
            )  # pre-norm has none; nothing to change here
            self.transformer = nn.Transformer(
                config.d_model,
                config.heads,
                config.encoder_layers,
                config.decoder_layers,
                config.ffn,
                config.dropout,
                norm_first=config.norm == "pre",
                batch_first=True,
            )
        for module in self.transformer.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = config.attention_dropout  # nn.Transformer gives it the residuals'
        self.output = nn.Linear(config.d_model, vocab, bias=False)
        self.output.weight = self.embedding.weight
        self.register_buffer("sinusoids", sinusoids(config, config.max_positions), persistent=False)
        self.sinusoids: Tensor

    def embed(self, ids: Tensor) -> Tensor:
        return self.dropout(
            self.embedding(ids) * math.sqrt(self.d_model) + self.sinusoids[: ids.shape[1]]
        )  # (B, L, D)

    def forward(self, source: Tensor, target_in: Tensor) -> Tensor:
        padding = source == PADDING
        # padded target positions come last: the causal mask hides them from the others
        hidden = self.transformer(
            self.embed(source),
            self.embed(target_in),
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(target_in.shape[1], device=source.device),
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        return self.output(hidden)


class PlainLoop:
    """One optimiser step a call: forward, loss, backward, clip, AdamW. bf16: under autocast."""

    def __init__(self, model: TorchTransformer, stage: StageConfig, *, bf16: bool):
        self.model, self.stage, self.bf16 = model.train(), stage, bf16
        self.optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=stage.lr,
            betas=(0.9, 0.98),
            eps=1e-9,
            weight_decay=stage.weight_decay,
            fused=True,
        )
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: inverse_sqrt(step, stage.warmup_steps)
        )

    def loss(self, batch: Batch) -> Tensor:
        """Label-smoothed cross-entropy per target token, in nats."""
        logits = self.model(batch.source, batch.target_in)
        return F.cross_entropy(
            logits.flatten(0, 1),
            batch.target_out.flatten(),
            ignore_index=PADDING,
            label_smoothing=self.stage.label_smoothing,
        )

    def __call__(self, batch: Batch) -> Tensor:
        """The step's loss."""
        with torch.autocast(batch.source.device.type, torch.bfloat16, enabled=self.bf16):
            loss = self.loss(batch)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.stage.clip)
        self.optimizer.step()
        self.scheduler.step()
        return loss.detach()

    def block(self, batches: Sequence[Batch]) -> None:
        for batch in batches:
            self(batch)


@torch.no_grad()
def copy_weights(ours: Transformer, theirs: TorchTransformer) -> None:
    """Gives the peer the weights of our pre-norm model."""
    theirs.embedding.weight.copy_(ours.source_embedding.weight)
    stacks: list[tuple[Any, Any]] = [
        (ours.encoder, theirs.transformer.encoder),
        (ours.decoder, theirs.transformer.decoder),
    ]
    for stack, theirs_stack in stacks:
        theirs_stack.norm.load_state_dict(stack.norm.state_dict())
        for layer, peer in zip(stack.layers, theirs_stack.layers, strict=True):
            residuals = [layer.self_residual, layer.feed_residual]
            copy_attention(layer.self_attention, peer.self_attn)
            if stack is ours.decoder:
                residuals.insert(1, layer.cross_residual)
                copy_attention(layer.cross_attention, peer.multihead_attn)
            for number, residual in enumerate(residuals, start=1):
                getattr(peer, f"norm{number}").load_state_dict(residual.norm.state_dict())
            peer.linear1.load_state_dict(layer.feed_forward.inner.state_dict())
            peer.linear2.load_state_dict(layer.feed_forward.outer.state_dict())


def copy_attention(ours: MultiHeadAttention, theirs: nn.MultiheadAttention) -> None:
    projections = (ours.q_proj, ours.k_proj, ours.v_proj)
    theirs.in_proj_weight.copy_(torch.cat([projection.weight for projection in projections]))
    theirs.in_proj_bias.copy_(torch.cat([projection.bias for projection in projections]))
    theirs.out_proj.load_state_dict(ours.out_proj.state_dict())
