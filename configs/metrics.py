"""The numbers of a run by the names that Weights & Biases and sweep files know them by; those of
a translation run.

HISTORY grows step by step in training; SUMMARY stands once the test set is translated, and is of the run's
own system (base, base-continued or that of its gates). Every system of the comparison has
`systems/<system>/bleu`, `systems/<system>/chrf` and `systems/<system>/heads_open` beside them. Those of
`--metrics module:function` are called module.function.
"""

from headgates.configs.kinds import KINDS

HISTORY = {
    "train/loss": "mean cross-entropy of the steps since the last row, nats per target token, with label "
    "smoothing, without the penalty",
    "train/learning_rate": "learning rate of the model's weights",
    "val/loss": "cross-entropy of the whole validation set, nats per target token",
    "val/perplexity": "exp of it",
    "val/token_accuracy": "share of target tokens whose logit is the highest",
    "val/bleu": "sacreBLEU of a sample of validation sentences, greedy search",
    "val/objective": "val/loss + lambda * expected open heads",
    "gates/open_heads": "heads whose gate is more likely open than closed",
    "gates/penalty": "expected open heads",
    "gates/lambda": "price of an expected open head, nats per target token",
    **{f"gates/open_{kind}": f"gates/open_heads in {kind} attention" for kind in KINDS},
    **{f"gates/expected_{kind}": f"gates/penalty in {kind} attention" for kind in KINDS},
}
SUMMARY = {
    "bleu": "sacreBLEU on the test set",
    "bleu_low": "lower end of its 95% interval, paired bootstrap",
    "bleu_high": "upper end",
    "bleu_difference": "bleu minus that of the reference, the base trained as long where something trains",
    "bleu_difference_low": "lower end of its 95% interval",
    "bleu_difference_high": "upper end",
    "p_value": "of the difference, two-sided, paired bootstrap",
    "chrf": "chrF on the test set",
    "heads_open": "heads that are open",
    "heads_closed": "heads that are closed",
    "heads_total": "heads of the model",
    **{f"heads_open/{kind}": f"heads_open in {kind} attention" for kind in KINDS},
    "parameters": "weights of the model without its closed heads",
    "seconds": "of translating the test set once; none where closed heads are masked",
}
