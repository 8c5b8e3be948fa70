"""A pretrained folder of a few kilobytes: a BERT or a GPT with random weights, and a tokeniser of words."""

import json
from pathlib import Path

import pytest

WORDS = [
    "the",
    "a",
    "king",
    "queen",
    "speaks",
    "sings",
    "of",
    "love",
    "war",
    "and",
    "peace",
    "to",
    "night",
    "day",
    "crown",
]
REASON = "needs `pip install fedddp[transformers]` (./launch/setup --extra)"


def needs() -> None:
    for package in ("transformers", "peft", "tokenizers"):
        pytest.importorskip(package, reason=REASON)


def make(folder: Path, language: bool = False) -> Path:
    import torch
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    vocabulary = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
    tokeniser = Tokenizer(models.WordLevel(vocabulary, "[UNK]"))
    tokeniser.pre_tokenizer = pre_tokenizers.Whitespace()
    marks = [("[CLS]", 2), ("[SEP]", 3)]
    tokeniser.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=marks)
    folder.mkdir(parents=True, exist_ok=True)
    tokeniser.save(str(folder / "tokenizer.json"))
    torch.manual_seed(0)
    size = len(vocabulary)
    if language:
        config = transformers.GPT2Config(vocab_size=size + 8, n_embd=16, n_layer=2, n_head=2, n_positions=64)
        transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    else:
        config = transformers.BertConfig(
            vocab_size=size, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
            max_position_embeddings=64,
        )  # fmt: skip
        transformers.BertModel(config).save_pretrained(folder)
    return folder


def texts(file: Path, count: int = 60) -> Path:
    """Lines of a king and of a queen, of 3 to 14 words, by three clients of different sizes."""
    import random

    draw = random.Random(0)
    rows = []
    for number in range(count):
        label = number % 2
        words = [draw.choice(WORDS) for _ in range(draw.randint(1, 12))]
        client = "abc"[min(draw.randint(0, 3), 2)]
        rows.append(
            {"text": " ".join([("king", "queen")[label], *words, "speaks"]), "role": f"r{label}", "who": client}
        )
    file.write_text("\n".join(json.dumps(row) for row in rows))
    return file
