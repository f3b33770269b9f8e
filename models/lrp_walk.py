"""A forward pass over a batch that knows the way back: from the top-1 logits through every step to the
embeddings.

The pass is computed again from the modules' weights, so that it can be in float64 and each step is seen; it
is what models/transformer.py does in evaluation (a test compares the logits). Each step leaves a function
that carries relevance from its output to its input (lrp_rules.py). Several rows of seeds, one for each
generation step, go the same way back at once: they are one more dimension in front. Letters: C rows of seeds,
B sentences, L positions of queries, S of keys, T target positions, H heads, K head width, D model width, V
vocabulary.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headgates.data.batch import Batch
from headgates.gates import gate_heads
from headgates.models.attention import MultiHeadAttention
from headgates.models.cpu_kernels import attention_weights
from headgates.models.lrp_rules import Account, Back, Ratio, passed
from headgates.models.ssru import SSRU, decays
from headgates.models.transformer import (
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    Residual,
    Transformer,
    padding_bias,
)

CHUNK = 256  # tokens whose logits exist at a time: (N, V) of a whole batch would be its largest tensor

# y / x of y = f(x)
SLOPES: dict[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]] = {
    F.relu: lambda x: (x > 0).to(x),
    F.gelu: lambda x: torch.erfc(x * -math.sqrt(0.5)) / 2,  # the normal distribution function
    F.silu: torch.sigmoid,
}

Inner = Callable[
    [Tensor, Account], tuple[Tensor | None, Tensor | None]
]  # relevance of a sub-layer's output -> of its input, of the memory
Layer = Callable[
    [Tensor, Account], tuple[Tensor, Tensor | None]
]  # the same through its residual connection and norm


class Walk:
    """The model must be in evaluation mode. `logits` (B, T) are the largest logits, `best` (B, T) their ids,
    both 0 at padding, where `real` (B, T) is False."""

    def __init__(
        self, model: nn.Module, batch: Batch, rule: Ratio | None = None, dtype: torch.dtype | None = None
    ):
        """dtype: what the walk computes in, the model's own unless given. Raises ValueError at a model that
        is no Transformer of ours."""
        if not isinstance(model, Transformer):
            raise ValueError(
                f"the ratio rule walks through a Transformer of ours, got {type(model).__name__}; take the "
                "gate's gradient (walk=None)"
            )
        self.rule, self.dtype = rule or Ratio(), dtype or model.output.weight.dtype
        dtype, rule = self.dtype, self.rule
        longest = max(batch.source.shape[1], batch.target_in.shape[1])
        self.numbers = len(batch) * longest * max(model.config.ffn, model.config.d_model)
        hidden = padding_bias(batch.source, model.source_specials.padding)  # (B, 1, 1, S)
        length = batch.target_in.shape[1]
        causal = torch.full((length, length), -torch.inf, device=batch.source.device).triu(1)

        self.source = model.embeddings(batch.source, "source").to(dtype)
        x, self.source_norm = self.norm(model.source_norm, self.source)
        self.encoder: list[Layer] = []
        for i, layer in enumerate(cast(list[EncoderLayer], model.encoder.layers)):
            x = self.attend(
                self.encoder,
                layer.self_residual,
                x,
                layer.self_attention,
                f"encoder.{i}.enc-self",
                None,
                hidden,
            )
            x = self.feed(self.encoder, layer.feed_residual, x, layer.feed_forward)
        memory, self.encoder_norm = self.norm(model.encoder.norm, x)

        self.target = model.embeddings(batch.target_in, "target").to(dtype)
        x, self.target_norm = self.norm(model.target_norm, self.target)
        self.decoder: list[Layer] = []
        for i, each in enumerate(cast(list[DecoderLayer], model.decoder.layers)):
            mixer = each.self_attention
            if isinstance(mixer, SSRU):
                x = self.residual(self.decoder, each.self_residual, x, partial(self.recurrence, mixer))
            else:
                x = self.attend(
                    self.decoder, each.self_residual, x, mixer, f"decoder.{i}.dec-self", None, causal
                )
            x = self.attend(
                self.decoder,
                each.cross_residual,
                x,
                each.cross_attention,
                f"decoder.{i}.cross",
                memory,
                hidden,
            )
            x = self.feed(self.decoder, each.feed_residual, x, each.feed_forward)
        x, self.decoder_norm = self.norm(model.decoder.norm, x)

        weight, bias = weight_and_bias(model.output, dtype)
        self.best, self.real = best_tokens(x, weight, bias, batch, model.target_specials.padding)
        rows, constant = weight[self.best], bias[self.best]  # (B, T, D), (B, T)
        y = (x * rows).sum(-1) + constant
        self.logits = y * self.real
        self.top = rule.top(x, rows, constant, y)

    def linear(self, module: nn.Linear, x: Tensor) -> tuple[Tensor, Back]:
        weight, bias = weight_and_bias(module, self.dtype)
        y = F.linear(x, weight, bias)
        return y, self.rule.linear(x, weight, bias, y)

    def norm(self, module: nn.Module, x: Tensor) -> tuple[Tensor, Back]:
        if isinstance(module, nn.Identity):  # what stands at the end of a post-norm stack
            return x, passed
        assert isinstance(module, nn.LayerNorm)
        y = F.layer_norm(
            x, x.shape[-1:], module.weight.to(self.dtype), module.bias.to(self.dtype), module.eps
        )
        return y, self.rule.norm(module, x, y)

    def residual(
        self,
        ways: list[Layer],
        residual: Residual,
        x: Tensor,
        inner: Callable[[Tensor], tuple[Tensor, Inner]],
    ) -> Tensor:
        """x + f(norm(x)) or norm(x + f(x)); `inner` is f. Its way back is added to `ways`."""
        h, before = self.norm(residual.norm, x) if residual.pre else (x, passed)
        y, within = inner(h)
        out, after = (x + y, passed) if residual.pre else self.norm(residual.norm, x + y)
        split = self.rule.add(x, y)

        def back(R: Tensor, account: Account) -> tuple[Tensor, Tensor | None]:
            R_x, R_y = split(after(R, account), account)
            R_h, R_memory = within(R_y, account)
            return R_x if R_h is None else R_x + before(R_h, account), R_memory

        ways.append(back)
        return out

    def feed(self, ways: list[Layer], residual: Residual, x: Tensor, module: FeedForward) -> Tensor:
        def inner(h: Tensor) -> tuple[Tensor, Inner]:
            a, inner_back = self.linear(module.inner, h)
            slope = SLOPES[module.activation](a)
            activation_back = self.rule.activation(slope)
            y, outer_back = self.linear(module.outer, a * slope)
            return y, lambda R, account: (
                inner_back(activation_back(outer_back(R, account), account), account),
                None,
            )

        return self.residual(ways, residual, x, inner)

    def attend(
        self,
        ways: list[Layer],
        residual: Residual,
        x: Tensor,
        module: MultiHeadAttention,
        site: str,
        memory: Tensor | None,
        bias: Tensor,
    ) -> Tensor:
        """Return the output of a sub-layer of attention from x to `memory`, or to x itself where memory is
        None."""
        return self.residual(ways, residual, x, lambda h: self.attention(module, site, h, memory, bias))

    def attention(
        self, module: MultiHeadAttention, site: str, x: Tensor, memory: Tensor | None, bias: Tensor
    ) -> tuple[Tensor, Inner]:
        """W_O [xi_1 A_1 V_1; ..; xi_H A_H V_H] + b_O. The way back leads through the values alone, because A
        is constant."""
        keys = x if memory is None else memory
        if module.heads:
            v, v_back = self.linear(module.v_proj, keys)
            q = F.linear(x, module.q_proj.weight.to(self.dtype), module.q_proj.bias.to(self.dtype))
            k = F.linear(keys, module.k_proj.weight.to(self.dtype), module.k_proj.bias.to(self.dtype))
            weights = attention_weights(
                module.split(q) * module.head_width**-0.5, module.split(k), bias
            )  # (B, H, L, S)
            if module.gate is not None:
                weights = gate_heads(weights, module.gate())  # xi (A V) = (xi A) V
            values = module.split(v)
            heads = weights @ values  # (B, H, L, K)
            mix_back = self.rule.mix(weights, values, heads)
            z = heads.transpose(1, 2).flatten(2)  # (B, L, H * K)
        else:
            z = x[..., :0]  # only the bias of W_O comes out
        y, out_back = self.linear(module.out_proj, z)

        def back(R: Tensor, account: Account) -> tuple[Tensor | None, Tensor | None]:
            R_z = out_back(R, account)
            if module.heads:
                R_heads = R_z.unflatten(-1, (module.heads, -1))  # (C, B, L, H, K)
                account.heads[site] = (
                    self.rule.relevance(R_z, z).unflatten(-1, (module.heads, -1)).sum((2, 4)).double()
                )
                R_v = mix_back(R_heads.transpose(2, 3), account)  # (C, B, H, S, K)
                R_keys = v_back(R_v.transpose(2, 3).flatten(3), account)
            else:
                R_keys = R.new_zeros(len(R), *keys.shape)
            return (R_keys, None) if memory is None else (None, R_keys)

        return y, back

    def recurrence(self, module: SSRU, x: Tensor) -> tuple[Tensor, Inner]:
        """relu(c), c_t = sum_s a_ts W x_s. The way back leads through W x alone, because the forget gates are
        constant."""
        w, update_back = self.linear(module.update, x)
        forget = F.linear(x, *weight_and_bias(module.forget, self.dtype))
        left = decays(F.logsigmoid(forget)) * torch.sigmoid(-forget)[:, None]  # (B, T, T, D)
        weights, values = left.permute(0, 3, 1, 2), w.transpose(1, 2)[..., None]  # (B, D, T, T), (B, D, T, 1)
        states = weights @ values
        mix_back = self.rule.mix(weights, values, states)
        c = states[..., 0].transpose(1, 2)  # (B, T, D)
        relu_back = self.rule.activation((c > 0).to(c))

        def back(R: Tensor, account: Account) -> tuple[Tensor, None]:
            R_c = relu_back(R, account)
            R_w = mix_back(R_c.transpose(2, 3).unsqueeze(-1), account)
            return update_back(R_w.squeeze(-1).transpose(2, 3), account), None

        return F.relu(c), back

    def back(self, seed: Tensor) -> Account:
        """Return where the relevance `seed` (C, B, T) of the top-1 logits goes."""
        account = Account(seed.sum(2))
        R = self.decoder_norm(self.top(seed, account), account)
        memory: Tensor | None = None
        for layer in reversed(self.decoder):
            R, R_memory = layer(R, account)
            if R_memory is not None:
                memory = R_memory if memory is None else memory + R_memory
        R = self.target_norm(R, account)
        account.target += self.rule.relevance(R, self.target).sum((2, 3))
        assert memory is not None  # a decoder has layers, and every layer answers to the memory
        R = self.encoder_norm(memory, account)
        for layer in reversed(self.encoder):
            R, _ = layer(R, account)
        R = self.source_norm(R, account)
        account.source += self.rule.relevance(R, self.source).sum((2, 3))
        return account


def top_logits(model: Transformer, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the largest logit of every target position (B, T), 0 at padding, and (B, T) bool, True where
    there is a position."""
    memory, bias = model.encode(batch.source)
    x = model.decode(memory, bias, batch.target_in)  # (B, T, D)
    weight, bias = weight_and_bias(model.output, x.dtype)
    best, real = best_tokens(x, weight, bias, batch, model.target_specials.padding)
    return ((x * weight[best]).sum(-1) + bias[best]) * real, real


def weight_and_bias(module: nn.Linear, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The bias is 0 where the module has none."""
    weight = module.weight.to(dtype)
    return weight, weight.new_zeros(len(weight)) if module.bias is None else module.bias.to(dtype)


@torch.no_grad()
def best_tokens(
    states: Tensor, weight: Tensor, bias: Tensor, batch: Batch, padding: int
) -> tuple[Tensor, Tensor]:
    """Return the ids (B, T) of the largest logits, 0 at padding, and (B, T) bool, False at padding. states
    (B, T, D), weight (V, D), bias (V,)."""
    real = batch.target_out != padding
    best = torch.zeros_like(batch.target_out)
    best[real] = torch.cat([(part @ weight.T + bias).argmax(1) for part in states[real].split(CHUNK)])
    return best, real
