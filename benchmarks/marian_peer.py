"""The peer: Hugging Face's MarianMTModel of random weights, trained by the plain loop of a tutorial.

Post-norm, tied embeddings scaled by sqrt(D), sinusoids in halves, eager attention (its sdpa is slower on
short sentences on a CPU), cross-entropy over whole logits with label smoothing. `our_marian` is our model of
the same weights, which computes the same.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.torch_peer import PADDING, PlainLoop
from headgates.bridges.hf import FAMILIES, architecture, our_tensor
from headgates.configs.schema import ModelConfig
from headgates.data.batch import Batch
from headgates.models.transformer import Transformer


def marian(config: ModelConfig, vocab: int) -> Any:
    """A MarianMTModel of our sizes. It needs the extra `hf`."""
    import transformers

    sides: dict[str, Any] = {
        f"{side}_{name}": value
        for side, layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers))
        for name, value in (
            ("layers", layers),
            ("ffn_dim", config.ffn),
            ("attention_heads", config.heads),
            ("layerdrop", 0.0),
        )
    }
    settings: dict[str, Any] = {
        "vocab_size": vocab,
        "d_model": config.d_model,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": 0.0,
        "activation_function": config.activation,
        "scale_embedding": True,
        "pad_token_id": PADDING,
        "decoder_start_token_id": PADDING,
        "max_position_embeddings": config.max_positions,
        "attn_implementation": "eager",
    }
    return transformers.MarianMTModel(transformers.MarianConfig(**settings, **sides))


class MarianLoop(PlainLoop):
    """One optimiser step a call, as `PlainLoop`."""

    def loss(self, batch: Batch) -> Tensor:
        seen: Any = {
            "input_ids": batch.source,
            "attention_mask": batch.source != PADDING,
            "decoder_input_ids": batch.target_in,
        }
        model: nn.Module = self.model
        logits = model(**seen, use_cache=False).logits
        return F.cross_entropy(
            logits.flatten(0, 1),
            batch.target_out.flatten(),
            ignore_index=PADDING,
            label_smoothing=self.stage.label_smoothing,
        )


@torch.no_grad()
def our_marian(theirs: Any) -> Transformer:
    """Our model with the weights of a MarianMTModel, whose bias of the logits is no parameter."""
    family, state = (
        FAMILIES["marian"],
        {name: tensor.detach().float() for name, tensor in theirs.state_dict().items()},
    )
    ours = Transformer(
        architecture(theirs.config, family, state), theirs.config.vocab_size, theirs.config.vocab_size
    )
    ours.load_state_dict({name: our_tensor(name, state, family, ours) for name in ours.state_dict()})
    ours.output.bias.requires_grad_(False)
    return ours
