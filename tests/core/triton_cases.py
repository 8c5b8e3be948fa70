"""The kernels in Triton beside those in C and the tensor operations: one process of its own compares all of them.

    TRITON_INTERPRET=1 python -m tests.core.triton_cases compare cpu     # numpy does what a GPU would
    python -m tests.core.triton_cases compare cuda                       # a GPU does
    python -m tests.core.triton_cases graph                              # recorded and replayed by a GPU
    python -m tests.core.triton_cases ptx                                # the compiler's code; it needs no GPU

ATEN_CPU_CAPABILITY=default is needed for Adam and SGD: torch's own kernels for newer processors join products and sums,
in some of a tensor's numbers and not in others. The answer is a line of JSON.
"""

import itertools
import json
import re
import sys
from unittest.mock import patch

import torch

from fedddp.clients import dropout as masks
from fedddp.clients.noise import Quantile, quantiles, words
from fedddp.core import gaussian, kernels, triton_kernels
from fedddp.core.data import Dataset, Examples
from fedddp.exchange import fixed_point
from fedddp.local import ivon
from fedddp.rounds.iterative import add_pull

SIZES = (1, 2, 7, 1023, 1024, 1025, 2049, 5001)
TIES = [0.5, 1.5, 2.5, -0.5, -1.5, 2.0**22 + 0.5, -(2.0**22) - 1.5, 2.0**23 - 0.5, 2.0**23 + 1, 2.0**24, 2.0**62]
SMALL = [0.0, -0.0, 1e-45, -1e-45, 1e-40, -3e-39, 1.17549435e-38, 1e-30]
LARGE = [2.0**63, -(2.0**63), -(2.0**64), 1e30, 3.4e38, -3.4e38, float("inf"), -float("inf"), float("nan")]
SPECIAL = torch.tensor(TIES + SMALL + LARGE)
WORDS = [2**62, -(2**62), 2**63 - 1, -(2**63), 2**53 + 1, -(2**53) - 1, 2**53 + 3, 2**32, 2**31, -1, 0, 1]


class Inputs:
    """Numbers of one case: ordinary ones, or half of them strange."""

    def __init__(self, rows, size, strange):
        self.rows, self.size, self.strange = rows, size, strange
        self.generator = torch.Generator().manual_seed(size * 10 + rows)

    def floats(self, *shape, positive=False):
        made = torch.randn(*shape, generator=self.generator)
        if positive and not self.strange:
            return made.abs_().add_(0.01)
        if self.strange:
            picked = SPECIAL[torch.randint(len(SPECIAL), shape, generator=self.generator)]
            made = torch.where(torch.rand(*shape, generator=self.generator) < 0.5, picked, made)
        return made

    def matrices(self, count):
        return [self.floats(self.rows, self.size) for _ in range(count)]

    def integers(self, low, high, *shape):
        return torch.randint(low, high, shape, generator=self.generator)


def perturb(of):
    keys = torch.tensor([5, -7, 2**62])[: of.rows]
    mean, variance = of.floats(of.rows, of.size), of.floats(of.rows, of.size, positive=True)
    table, scale = quantiles()
    for draw, counted in ((2, False), (2**40 + 1, True)):
        out = [torch.empty(of.rows, of.size) for _ in range(2)]

        def tensors(draw, mean, variance, *out, keys=keys):
            Quantile(keys, int(draw)).perturb(mean, variance, *out)

        number = torch.tensor(draw) if counted else draw
        yield (of.rows, of.size, keys, number, table, scale, mean, variance, *out), (3, 6, 7, 8, 9), tensors


def dropout(of):
    keys = torch.tensor([5, -7, 2**62])[: of.rows]
    for draw, counted, p in ((0, False, 0.5), (2**40 + 1, True, 0.1), (3, False, 0.0), (4, True, 1.0)):
        below, out = round(p * masks.WORDS), torch.empty(of.rows, of.size)

        def tensors(draw, out, keys=keys, below=below):
            out.copy_(words(keys, int(draw), out.shape[1]) >= below).mul_(1.25)

        number = torch.tensor(draw) if counted else draw
        yield (of.rows, of.size, keys, number, below, 1.25, out), (3, 6), tensors


def pull(of):
    def tensors(site, theta, slope):
        add_pull(slope, site, theta, gaussian.diagonal)

    yield (of.rows, of.size, of.floats(of.rows, 2, of.size), *of.matrices(2)), (2, 3, 4), tensors


def ivon_step(of):
    rows = of.matrices(8)
    rows[1] = of.floats(of.rows, of.size, positive=True)
    curve, debiased, lr = (of.floats(of.rows, 1, positive=True) for _ in range(3))
    solver = ivon.Solver(beta1=0.8, beta2=0.99)

    def tensors(mean, variance, momentum, offset, pull, noise, factor, grad):
        given = {"mean": mean, "variance": variance, "momentum": momentum, "offset": offset, "pull": pull}
        given |= {"noise": noise, "grad": grad, "theta": torch.empty_like(mean), "curve": curve, "lr": lr, "ess": curve}
        solver._step(ivon.State(**given, keys=torch.zeros(0)), factor, debiased)

    settings = (solver.beta1, 1 - solver.beta1, 1 - solver.beta2)
    yield (of.rows, of.size, *rows, curve, debiased, lr, *settings), range(2, 10), tensors


def gather(of):
    stored, index = of.integers(0, 256, 5, of.size).to(torch.uint8), of.integers(0, 5, 2, of.rows)
    for scale, shift in ((1.0, 0.0), (1 / 255, 0.0), (2 / 255, -1.0)):
        data = Dataset(Examples(stored, torch.arange(5)), Examples(stored, torch.arange(5)), 5, scale, shift)

        def tensors(out, data=data):
            with patch.object(Dataset, "_bytes", lambda *_: False):
                out.copy_(data.gather(index, torch.float32)[0])

        out = torch.empty(*index.shape, of.size)
        yield (index.numel(), of.size, index, stored, scale, shift, out), (6,), tensors


def to_grid(of):
    part, word = of.floats(of.size), of.integers(-(2**40), 2**40, of.size)
    for bits, adds in itertools.product((-126, -3, 0, 7, 40, 126), (0, 1)):

        def tensors(part, word, bits=bits, adds=adds):
            fixed_point._to_grid(part, bits, word, bool(adds))

        yield (of.size, part, 2.0**bits, adds, word), (1, 4), tensors


def from_grid(of):
    word = of.integers(-(2**62), 2**62, of.size) >> of.integers(0, 60, of.size)
    word[: len(WORDS)] = torch.tensor(WORDS)[: of.size]
    weights = (1e-300, 0.0, float("nan"), float("inf"), -2.0) if of.strange else (1.0, 3.7)
    for bits, weight in itertools.product((-90, 0, 41, 180, 1000), weights):
        by = torch.tensor([weight], dtype=torch.float64)

        def tensors(word, total, bits=bits, by=by):
            fixed_point._from_grid(word, bits, by, total)

        yield (of.size, word, bits, by, torch.empty(of.size)), (1, 4), tensors


ADAM = [(0.9, 0.999, 0.0, 0), (0.9, 0.999, 0.01, 0), (0.9, 0.99, 0.1, 1), (0.3, 0.5, 0.0, 0), (0.5, 0.95, 0.01, 1)]


def adam_step(of):
    rows = [*of.matrices(3), of.floats(of.rows, of.size, positive=True)]
    rates = torch.tensor([1e-3, 0.03, 0.4], dtype=torch.float64)[: of.rows]
    for number, (beta1, beta2, decay, decoupled) in enumerate(ADAM):
        taken = torch.tensor([1.0 + number, 77.0, 123456.0])[: of.rows]
        lr = rates if number % 2 else rates.float()
        settings = (beta1, beta2, decay, 1e-8, decoupled)

        def tensors(*given, lr=lr, settings=settings):
            kernels._adam_step(of.rows, of.size, *given, lr, *settings)

        yield (of.rows, of.size, *rows, taken, lr, *settings), range(2, 7), tensors


def sgd_step(of):
    rows, lr = of.matrices(3), torch.tensor([0.1, 1e-3, 3.0], dtype=torch.float64)[: of.rows]
    for momentum, nesterov, decay in ((0.0, 0, 0.0), (0.0, 0, 0.01), (0.9, 0, 0.0), (0.9, 0, 0.01), (0.7, 1, 0.1)):

        def tensors(*given, momentum=momentum, nesterov=nesterov, decay=decay):
            kernels._sgd_step(of.rows, of.size, *given, lr, momentum, nesterov, decay)

        yield (of.rows, of.size, *rows, lr, momentum, nesterov, decay), (2, 3, 4), tensors


CASES = {  # and the places of what a kernel writes
    "perturb": (perturb, (8, 9)),
    "dropout": (dropout, (6,)),
    "add_pull": (pull, (4,)),
    "ivon_step": (ivon_step, (2, 3, 4)),
    "gather": (gather, (6,)),
    "to_grid": (to_grid, (4,)),
    "from_grid": (from_grid, (4,)),
    "adam_step": (adam_step, (2, 4, 5)),
    "sgd_step": (sgd_step, (2, 4)),
}
NOT_IN_C = ("adam_step", "sgd_step")
WITHOUT_ROWS = ("to_grid", "from_grid")


def compare(device):
    """Kernel -> against what -> [comparisons, the cases that differ]."""
    triton_kernels.probe(device)
    found = {name: {"tensors": [0, []]} | ({} if name in NOT_IN_C else {"c": [0, []]}) for name in CASES}
    for name, size, rows, strange in itertools.product(CASES, SIZES, (1, 3), (False, True)):
        if rows > 1 and name in WITHOUT_ROWS:
            continue
        cases, writes = CASES[name]
        for number, (arguments, places, tensors) in some(list(enumerate(cases(Inputs(rows, size, strange)))), size):
            made = fresh(arguments, device)
            triton_kernels.call(name, *made)
            for what, score in found[name].items():
                other = fresh(arguments, "cpu")
                if what == "c":
                    kernels.in_c(name, *other)
                else:
                    with patch.object(kernels, "suit", lambda _: False):
                        tensors(*(other[at] for at in places))
                score[0] += 1
                if any(different(made[at].cpu(), other[at]) for at in writes):
                    score[1].append([size, rows, strange, number])
    return found


def some(variants, size):
    """All of them at two sizes; at the others every third, as the interpreter is slow."""
    return variants if size in (7, 1025) else variants[size % 3 :: 3] or variants


def fresh(arguments, device):
    return [a.clone().to(device) if isinstance(a, torch.Tensor) else a for a in arguments]


def different(one, other):
    """How many numbers have other bits; every nan is like every other."""
    if one.dtype == torch.float32:
        both = one.isnan() & other.isnan()
        return int(((one.view(torch.int32) != other.view(torch.int32)) & ~both).sum())
    return int((one != other).sum())


def graph():
    """Draws that a CUDA graph makes, its counter on the device, and the same draws from C: how many numbers differ."""
    of = Inputs(3, 5001, False)
    arguments = next(perturb(of))[0]
    there, draw, wrong = fresh(arguments, "cuda"), torch.zeros((), dtype=torch.int64, device="cuda"), 0
    there[3] = draw
    triton_kernels.call("perturb", *there)  # compiles
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        triton_kernels.call("perturb", *there)
        draw.add_(1)
    for number in range(3):
        recorded.replay()
        here = fresh(arguments, "cpu")
        here[3] = number
        kernels.in_c("perturb", *here)
        wrong += different(there[9].cpu(), here[9])
    return wrong


def entropies(device):
    """The largest gap between cross_entropy and torch, of losses and of slopes; exponentials are a device's own."""
    worst = [0.0, 0.0]
    for rows, classes, weighted in itertools.product((1, 7, 64), (2, 3, 10, 33), (False, True)):
        generator = torch.Generator().manual_seed(rows * classes)
        logits = 5 * torch.randn(rows, classes, generator=generator)
        target = torch.randint(classes, (rows,), generator=generator)
        share = torch.rand(rows, generator=generator) if weighted else 1 / rows
        given = (rows, classes, logits, target, share)
        made = fresh((*given, torch.empty(rows), torch.empty(rows, classes)), device)
        triton_kernels.call("cross_entropy", *made)
        other = fresh((*given, torch.empty(rows), torch.empty(rows, classes)), "cpu")
        kernels.in_c("cross_entropy", *other)
        gaps = [float((a.cpu() - b).abs().max() / b.abs().max()) for a, b in zip(made[5:], other[5:], strict=True)]
        worst = [max(pair) for pair in zip(worst, gaps, strict=True)]
    return worst


F, D, W, FLOAT, INT = "*fp32", "*fp64", "*i64", "fp32", "i32"
SIGNATURES = {  # one of each kernel that a GPU may be given
    "perturb": ("_perturb", [W, W, "*i16", FLOAT, F, F, F, F, INT], {"COUNTED": True}),
    "perturb, the draw a number": ("_perturb", [W, "i64", "*i16", FLOAT, F, F, F, F, INT], {"COUNTED": False}),
    "dropout": ("_dropout", [W, W, "i64", FLOAT, F, INT], {"COUNTED": True}),
    "add_pull": ("_add_pull", [F, F, F, INT], {}),
    "add_pull, one column": ("_add_pull", [F, F, F], {"n": 1}),
    "ivon_step": ("_ivon_step", [F] * 11 + [FLOAT] * 3 + [INT], {}),
    "gather": ("_gather", [W, "*u8", FLOAT, FLOAT, F, INT], {}),
    "to_grid": ("_to_grid", [F, FLOAT, W, INT], {"ADDS": True}),
    "from_grid": ("_from_grid", [W, INT, D, F, INT], {}),
    "adam_step": (
        "_adam_step",
        [F, F, F, F, F, D, INT],
        {"BETA1": 0.9, "BETA2": 0.999, "DECAY": 0.1, "EPS": 1e-8, "DECOUPLED": True},
    ),
    "sgd_step": ("_sgd_step", [F, F, F, F, FLOAT, FLOAT, INT], {"MOVING": True, "NESTEROV": True, "DECAYING": True}),
}


def ptx():
    """Kernel -> the operations with floats in its code, compiled with the launcher's options."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    found = {}
    for name, (kernel, types, constants) in SIGNATURES.items():
        function, constants = getattr(triton_kernels, kernel), {**constants, "BLOCK": triton_kernels.BLOCK}
        rest = iter(types)
        signature = {arg: "constexpr" if arg in constants else next(rest) for arg in function.arg_names}
        made = compile(
            ASTSource(fn=function, signature=signature, constexprs=constants),
            target=GPUTarget("cuda", 80, 32),
            options=triton_kernels.OPTIONS,
        )
        found[name] = sorted(set(re.findall(r"\b([a-z0-9]+\.[a-z0-9.]*f(?:32|64)\b[a-z0-9.]*)", made.asm["ptx"])))
    return found


if __name__ == "__main__":
    calls = {"compare": compare, "entropies": entropies, "graph": graph, "ptx": ptx}
    print(json.dumps(calls[sys.argv[1]](*sys.argv[2:])))
