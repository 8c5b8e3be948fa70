# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Your own text and a pretrained model
#
# A text file with labels, a folder with a pretrained transformer, adapters of low rank (LoRA) on it, and BayesADMM
# over three clients who keep their texts: predictions say how sure they are. Needs `pip install fedddp[transformers]`;
# nothing is downloaded. In place of the small folder made here, name any folder with `config.json`,
# `*.safetensors` and `tokenizer.json`.

# %%
import json
import random
import tempfile
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import fedddp

folder = Path(tempfile.mkdtemp())

# %% [markdown]
# ## A text file of your own
#
# One line of JSON for each text, with its label and whose it is. Here are short reports of a garden and of a harbour,
# by three stations that see different shares of them.

# %%
draw = random.Random(0)
words = {
    "garden": "roses bees soil apples rain leaves spade seeds hedge pears".split(),  # noqa: SIM905
    "harbour": "ropes gulls tide boats rain sails anchor nets quay crabs".split(),  # noqa: SIM905
}
rows = []
for number in range(240):
    label = draw.choices(["garden", "harbour"], weights=[(3, 1), (1, 1), (1, 3)][number % 3])[0]
    text = " ".join(["today we saw", *draw.choices(words[label], k=draw.randint(2, 9))])
    rows.append({"text": text, "label": label, "station": "north east south".split()[number % 3]})  # noqa: SIM905
(folder / "reports.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
rows[0]

# %% [markdown]
# ## A pretrained folder
#
# Made small here, and its weights are random: even so, adapters on frozen layers learn these texts.

# %%
every = sorted({word for known in words.values() for word in known})
vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "today", "we", "saw", *every]
tokeniser = Tokenizer(models.WordLevel({word: number for number, word in enumerate(vocabulary)}, "[UNK]"))
tokeniser.pre_tokenizer = pre_tokenizers.Whitespace()
marks = [("[CLS]", 2), ("[SEP]", 3)]
tokeniser.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=marks)
pretrained = folder / "model"
pretrained.mkdir()
tokeniser.save(str(pretrained / "tokenizer.json"))
torch.manual_seed(0)
config = transformers.BertConfig(
    vocab_size=len(vocabulary), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
)
transformers.BertModel(config).save_pretrained(pretrained)

# %% [markdown]
# ## BayesADMM on the adapters
#
# Only the adapters and the new last layer are trained, sent and kept; the pretrained weights are mapped from the
# folder's file, once for all processes of the machine.

# %%
settings = {
    "data": {"name": "text", "file": str(folder / "reports.jsonl"), "client": "station", "tokenizer": str(pretrained)},
    "split": {"name": "natural"},
    "model": {"name": "transformers", "path": str(pretrained), "pool": "mean", "lora": {"rank": 4}},
    "method": {"name": "bayes_admm", "temperature": 0.1},
    "local": {"name": "ivon", "lr": 0.05, "hess_init": 1.0, "batch_size": 16},
}
run = fedddp.run(**settings, rounds=6, folder=folder / "run", quiet=True)
run.metrics[["accuracy", "nll", "averaged_nll", "bytes_up"]]

# %%
trained = run.posterior.mean.numel()
whole = sum(own.numel() for own in run.model.parameters())
f"{trained} of {whole} numbers are sent"

# %% [markdown]
# ## Predictions with uncertainty
#
# What the run's data source makes of a text is what `predict` takes. The last text is of both kinds.

# %%
asked = ["today we saw roses bees pears", "today we saw nets tide gulls quay", "today we saw roses nets"]
rows = [torch.tensor(row.ids) for row in tokeniser.encode_batch(asked)]
inputs = torch.zeros(len(rows), 2, run.trained.task.data.input_shape[-1], dtype=torch.long)
for place, row in zip(inputs, rows, strict=True):
    place[0, : len(row)], place[1, : len(row)] = row, 1
found = run.predict(inputs, samples=32)
{name: value.round(decimals=3).tolist() for name, value in found.items()}

# %%
assert run.summary["accuracy"] > 0.9
assert found["probabilities"].argmax(1)[:2].tolist() == [0, 1]
assert found["entropy"][2] > found["entropy"][:2].mean()
