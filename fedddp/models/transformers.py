"""A pretrained transformer from a Hugging Face folder, and adapters of low rank (LoRA, Hu et al. 2022) on its layers.

    W x  ->  W x + alpha/rank B A x,     A [rank, in] drawn at random, B [out, rank] zero, W frozen

The folder has config.json and *.safetensors; nothing is downloaded. What the folder does not have (a classifier's last
layers) is drawn from the model's seed and trained. Frozen weights are mapped from the folder's files, so all ranks of a
machine share them. The mean of clients' B A is not the product of their mean B and mean A; model.lora.train says what
is done about it: both (plain means of A and B), B alone (FFA-LoRA, Sun et al. 2024: A stays as it was drawn, and the
mean of products is exact), or stack (FLoRA, fedddp/rounds/stacking.py: products are added up at the server).

Needs `pip install fedddp[transformers]`. Dropout of the pretrained model is off; an adapter's own is lora.dropout.
"""

import os
from dataclasses import field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedddp.core import model
from fedddp.core.adapters import Merged, add_merged
from fedddp.core.check import check, check_count, first_line, hint
from fedddp.core.files import folder
from fedddp.core.mapped import share

TASKS = ("classification", "language")
POOLS = ("library", "mean")
LORA: dict[str, Any] = {"rank": 0, "alpha": 0.0, "targets": ["query", "value"], "dropout": 0.0, "train": "both"}
TRAINED = ("both", "B", "stack")


class Model(model.Model):
    path: str = ""  # folder with config.json and *.safetensors, or package/folder of an installed package
    task: str = "classification"  # classification of a text, or language: the next token at each position
    pool: str = "library"  # a classifier's head: the library's own, or mean: one linear layer on the mean of positions
    freeze: bool = True  # whether pretrained weights stay as they are; the new layers and the adapters are trained
    lora: dict[str, Any] = field(default_factory=dict)  # rank (0: none), alpha (0: rank), targets, dropout, train

    def __post_init__(self) -> None:
        check("model.task", self.task, self.task in TASKS, " or ".join(TASKS))
        check("model.pool", self.pool, self.pool in POOLS, " or ".join(POOLS))
        for key in self.lora:
            if key not in LORA:
                raise ValueError(f"model.lora.{key}: unknown key; {hint(key, LORA, 'model.lora.')}")
        lora = LORA | self.lora
        for key, kinds in {"rank": int, "alpha": int | float, "dropout": int | float, "targets": list | str}.items():
            fine = isinstance(lora[key], kinds) and not isinstance(lora[key], bool)
            check(f"model.lora.{key}", lora[key], fine, str(kinds.__name__ if isinstance(kinds, type) else kinds))
        check_count("model.lora.rank", lora["rank"], least=0, most=100_000)
        check("model.lora.alpha", lora["alpha"], lora["alpha"] >= 0, "above 0, or 0 for the rank")
        check("model.lora.dropout", lora["dropout"], 0 <= lora["dropout"] < 1, "in [0, 1)")
        check("model.lora.train", lora["train"], lora["train"] in TRAINED, " or ".join(TRAINED))
        check("model.freeze", self.freeze, self.freeze or not lora["rank"], "true with adapters")

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        check("model.path", self.path, bool(self.path), "a folder with config.json and *.safetensors")
        place = folder("model.path", self.path)
        module, new = self._load(place, outputs)
        if self.freeze:
            for name, own in module.named_parameters():
                own.requires_grad_(name in new)
        if self.lora.get("rank"):
            self._adapt(module)
        share(module, sorted(place.glob("*.safetensors")))
        return module

    def _load(self, place: Path, outputs: int) -> tuple[nn.Module, set[str]]:
        """The pretrained module, and the names of the parameters that the folder does not have."""
        library = _library("transformers")
        kinds = {"language": "AutoModelForCausalLM", "classification": "AutoModelForSequenceClassification"}
        kind = "AutoModel" if self._pools else kinds[self.task]
        more = {"num_labels": outputs} if self.task == "classification" else {}
        try:
            config = library.AutoConfig.from_pretrained(place, local_files_only=True, **more)
            config.use_cache = False  # of keys and values of earlier tokens, which only generation asks for
            for key, value in vars(config).items():
                if ("drop" in key or key.endswith("pdrop")) and isinstance(value, float):
                    setattr(config, key, 0.0)
            known = getattr(library, kind)
            found, told = known.from_pretrained(
                place, config=config, local_files_only=True, output_loading_info=True, dtype=torch.float32
            )
        except Exception as error:  # the library's own errors have no common type
            raise ValueError(f"model.path={self.path}: cannot be read: {first_line(error)}") from error
        if self._pools:
            module = Pooled(found, nn.Linear(config.hidden_size, outputs))
            return module, {name for name, _ in module.head.named_parameters(prefix="head")}
        if self.task == "language" and config.vocab_size < outputs:
            raise ValueError(
                f"model.path={self.path}: knows {config.vocab_size} tokens, the data have {outputs}; "
                "data.tokenizer must be this model's own"
            )
        if self.task == "language" and config.vocab_size > outputs:
            return Cut(found, outputs), {f"body.{name}" for name in told["missing_keys"]}
        return found, set(told["missing_keys"])

    @property
    def _pools(self) -> bool:
        return self.task == "classification" and self.pool == "mean"

    def _adapt(self, module: nn.Module) -> None:
        """Adapters beside the layers whose names end in one of the targets."""
        library, lora = _library("peft"), LORA | self.lora
        wanted = [lora["targets"]] if isinstance(lora["targets"], str) else list(lora["targets"])
        linear = {name.rpartition(".")[2] for name, layer in module.named_modules() if isinstance(layer, nn.Linear)}
        for target in wanted:
            if not any(name.endswith(str(target)) for name, _ in module.named_modules()):
                raise ValueError(f"model.lora.targets={target}: no layer is called so; {hint(target, linear)}")
        trained = {name for name, own in module.named_parameters() if own.requires_grad}
        scale = lora["alpha"] or lora["rank"]
        settings = {"r": lora["rank"], "lora_alpha": scale, "lora_dropout": lora["dropout"], "target_modules": wanted}
        try:
            library.inject_adapter_in_model(library.LoraConfig(**settings), module)
        except ValueError as error:
            raise ValueError(f"model.lora.targets={wanted}: {first_line(error)}") from error
        for name, own in module.named_parameters():
            adapter = ".lora_B." in name or (".lora_A." in name and lora["train"] != "B")
            own.requires_grad_(adapter or name in trained)
        if lora["train"] == "stack":
            self._stack(module, scale / lora["rank"])

    def _stack(self, module: nn.Module, scale: float) -> None:
        """Beside every layer with an adapter, a place for what is merged."""
        for name, layer in list(module.named_modules()):
            parts = dict(layer.named_parameters())
            a, b = "lora_A.default.weight", "lora_B.default.weight"
            if a in parts and b in parts:
                shape = (parts[b].shape[0], parts[a].shape[1])
                add_merged(layer, Merged(f"{name}.{a}", f"{name}.{b}", shape, scale))


class Pooled(nn.Module):
    """A linear layer on the mean of a transformer's last states over real positions, centred and of deviation 1."""

    def __init__(self, body: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.body, self.head = body, head

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        states = self.body(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weight = attention_mask.unsqueeze(-1).to(states)
        mean = (states * weight).sum(1) / weight.sum(1).clamp_min(1)
        return self.head(F.layer_norm(mean, mean.shape[1:]))


class Cut(nn.Module):
    """A language model whose table of tokens is longer than its tokeniser's."""

    def __init__(self, body: nn.Module, outputs: int) -> None:
        super().__init__()
        self.body, self.outputs = body, outputs

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.body(input_ids=input_ids, attention_mask=attention_mask).logits[..., : self.outputs]


def _library(name: str) -> Any:
    """An optional package; it must not ask the network."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        if name == "peft":
            import peft

            return peft
        import transformers
    except ImportError as error:
        raise ValueError(
            f"model=transformers: needs {name}; install it with `pip install fedddp[transformers]`"
        ) from error
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers
