"""Curvature of each client's sum loss f_k over its own data: the generalised Gauss-Newton matrix and its relatives.

    GGN = Σ_i J_iᵀ H_i J_i,    J_i = ∂ outputs_i/∂theta,    H_i = ∂² loss_i/∂ outputs_i²

Its diagonal is a sum of squares, Σ_i Σ_c (J_iᵀ a_ic)² with H_i = Σ_c a_ic a_icᵀ, and so is the empirical Fisher,
with the loss gradient as the only a_i. One backward pass for each c gives the gradients at the outputs g of every
layer; for a linear layer Σ_i (g_i x_iᵀ)² = (g²)ᵀ(x²) is then one matrix product, a convolution's per-example gradients
are products of g_i with patches of x_i that all c share, other layers take per-example gradients of their own few
parameters. So no Jacobian of batch x classes x parameters is ever held.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev, vjp, vmap

from fedddp.clients.cohort import Cohort
from fedddp.core.gaussian import Family, full, isotropic
from fedddp.core.objective import Objective
from fedddp.core.params import trained
from fedddp.core.task import Task

CURVATURES = ("ggn", "exact")
CHUNK = 256  # examples at a time
ROOM = 1 << 24  # numbers that a chunk's per-example gradients or Jacobians may take

Columns = Callable[[Tensor, Tensor], Iterator[Tensor]]  # outputs, targets -> vectors a_i at the outputs, [B, ...] each
Tap = tuple[str, nn.Module, Tensor, Tensor]  # a layer's name as a prefix, itself, its input and its output
Squares = Callable[[Task, Tensor, Tensor, Tensor, Columns], Tensor]


def curvature(cohort: Cohort, theta: Tensor, family: Family, kind: str = "ggn", samples: int = 0) -> Tensor:
    """The curvature of f_k at theta [C, P] as a precision of the family: [C, 1], [C, P] or [C, P, P]."""
    if family is full:
        return ggn_full(cohort, theta) if kind == "ggn" else exact_hessian(cohort, theta)
    exact = kind == "exact"
    diag = exact_hessian(cohort, theta).diagonal(dim1=1, dim2=2) if exact else ggn_diag(cohort, theta, samples)
    return diag.mean(1, keepdim=True) if family is isotropic else diag


def ggn_diag(cohort: Cohort, theta: Tensor, samples: int = 0) -> Tensor:
    """Diagonal of the GGN of f_k at theta [C, P]; [C, P].

    samples   0: exact, with a backward pass for each output; S: an unbiased estimate from S random signs for each
              example, drawn from the client's own stream "curvature".
    """
    signs = cohort.noise("curvature").generators
    objective = cohort.task.objective

    def columns(row: int) -> Columns:
        if samples:
            return partial(_signed, objective, samples=samples, generator=signs[row])
        return partial(roots, objective)

    return cohort.shared(_sum_of_squares(*cohort.whole(theta), columns))


def squared_grads(cohort: Cohort, theta: Tensor, chosen: Tensor | None = None) -> Tensor:
    """Σ_i (∂loss_i/∂theta)² over each client's examples at theta [C, P]: the empirical Fisher's diagonal; [C, P].

    With coordinates `chosen` [Q] those alone, [C, Q]; layers that have none of them cost nothing.
    """
    whole, point = cohort.whole(theta)
    place = None if chosen is None else cohort.shared(torch.arange(point.shape[1], device=point.device))[chosen]
    found = _sum_of_squares(whole, point, lambda _: partial(_slope, cohort.task.objective), place)
    return cohort.shared(found) if place is None else found[:, place]


def ggn_full(cohort: Cohort, theta: Tensor) -> Tensor:
    """The whole GGN of f_k at theta [C, P], for small models; [C, P, P]."""
    whole, theta = cohort.whole(theta)
    task, size = whole.task, theta.shape[-1]
    total = theta.new_zeros(len(cohort), size, size)
    linear = _is_linear(task, theta[0], next(examples(whole, 1))[1])
    at_a_time = CHUNK if linear else max(1, ROOM // (size * max(task.data.classes, 1)))
    for row, inputs, targets in examples(whole, at_a_time):
        part = _by_linear if linear else _by_jacobian
        total[row] += part(task, theta[row], inputs, targets)
    return cohort.shared(total, 2)


def ggn_of_points(task: Task, theta: Tensor, inputs: Tensor, labels: Tensor, weight: Tensor, family: Family) -> Tensor:
    """Σ_i weight_i GGN_i at theta [P] of a few inputs as the model sees them, as a precision of the family."""
    size = theta.shape[-1]
    total = theta.new_zeros((size, size) if family is full else size)
    for i in weight.nonzero().flatten().tolist():
        half = _half(task, theta, inputs[i : i + 1], labels[i : i + 1]) * weight[i].sqrt()
        total += half.T @ half if family is full else half.square().sum(0)
    return total.mean(0, keepdim=True) if family is isotropic else total


def linear_ggn(x: Tensor, hessian: Tensor, bias: bool) -> Tensor:
    """Σ_i H_i ⊗ x_i x_iᵀ of a linear layer with inputs x [B, d], H [B, V, V] at its outputs: weights, then biases."""
    outputs = hessian.shape[-1]
    if bias:
        x = torch.cat([x, x.new_ones(len(x), 1)], 1)
    blocks = [x.T @ (h.unsqueeze(2) * x.unsqueeze(1)).flatten(1) for h in hessian.unbind(1)]  # [d, V·d] each
    found = torch.cat(blocks)
    if not bias:
        return found
    place = torch.arange(outputs * x.shape[1], device=x.device).view(outputs, -1)
    order = torch.cat([place[:, :-1].flatten(), place[:, -1]])
    return found[order][:, order]


def exact_hessian(cohort: Cohort, theta: Tensor) -> Tensor:
    """The Hessian of f_k at theta [C, P], for small models; it may be indefinite; [C, P, P]."""
    whole, theta = cohort.whole(theta)
    task, size = whole.task, theta.shape[-1]
    total = theta.new_zeros(len(cohort), size, size)

    def loss(point: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        return task.objective.loss(_outputs(task, point, inputs), targets).sum()

    for row, inputs, targets in examples(whole, CHUNK):
        total[row] += jacrev(grad(loss), chunk_size=64)(theta[row], inputs, targets)
    return cohort.shared(total, 2)


def output_hessian(objective: Objective, outputs: Tensor, targets: Tensor) -> Tensor:
    """∂²loss_i/∂outputs² over the last axis, which positions of a sequence do not share; [B, ..., V, V]."""
    pull = vjp(lambda o: next(_slope(objective, o, targets)), outputs)[1]
    units = torch.eye(outputs.shape[-1], dtype=outputs.dtype, device=outputs.device)
    rows = vmap(lambda unit: pull(unit.expand_as(outputs))[0])(units)
    return rows.movedim(0, -1)


def _slope(objective: Objective, outputs: Tensor, targets: Tensor) -> Iterator[Tensor]:
    """The gradient of each example's loss, as the only column."""
    yield grad(lambda o: objective.loss(o, targets).sum())(outputs)


def _root(objective: Objective, outputs: Tensor, targets: Tensor) -> Tensor:
    """A with H = A Aᵀ, for the convex losses here; rounding may leave eigenvalues just below 0."""
    values, vectors = torch.linalg.eigh(output_hessian(objective, outputs, targets))
    return vectors * values.clamp_min(0).sqrt().unsqueeze(-2)


def roots(objective: Objective, outputs: Tensor, targets: Tensor) -> Iterator[Tensor]:
    """The columns of every position's A, one after the other."""
    root = _root(objective, outputs, targets)  # [B, ..., V, V]
    blocks = root.reshape(len(root), -1, *root.shape[-2:])  # [B, positions, V, V]
    for position in range(blocks.shape[1]):
        for column in blocks[:, position].unbind(-1):
            vector = torch.zeros_like(blocks[..., 0])
            vector[:, position] = column
            yield vector.view_as(outputs)


def _signed(
    objective: Objective, outputs: Tensor, targets: Tensor, samples: int, generator: torch.Generator
) -> Iterator[Tensor]:
    """A r/√S with random signs r, whose outer product is H/S in the mean."""
    root = _root(objective, outputs, targets)
    for _ in range(samples):
        signs = torch.randint(0, 2, outputs.shape, generator=generator).to(outputs) * 2 - 1
        yield (root @ signs.unsqueeze(-1)).squeeze(-1) / samples**0.5


def _sum_of_squares(
    cohort: Cohort, theta: Tensor, columns: Callable[[int], Columns], chosen: Tensor | None = None
) -> Tensor:
    """Σ_i Σ_c (J_iᵀ a_ic)² for each client; [C, P]."""
    task = cohort.task
    total = torch.zeros_like(theta)
    squares: Squares | None = None
    for row, inputs, targets in examples(cohort, _chunk(task.module)):
        if squares is None:
            by_layer = partial(_by_layer, wanted=_names(task, chosen))
            squares = by_layer if _layers_tell_all(task, theta[row], inputs[:1], targets[:1]) else _by_example
        total[row] += squares(task, theta[row], inputs, targets, columns(row))
    return total


def _is_linear(task: Task, theta: Tensor, one: Tensor) -> bool:
    """Whether the model is one linear layer and nothing after it, seen on one example."""
    with _tapped(task.module) as taps:
        outputs = _outputs(task, theta, one)
    if len(taps) != 1 or not _plain_linear(*taps[0][1:3]) or taps[0][3].shape != outputs.shape:
        return False
    layer, values = taps[0][1], taps[0][3]
    return sum(p.numel() for p in layer.parameters()) == len(theta) and torch.equal(values, outputs)


def _by_linear(task: Task, theta: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
    """The GGN of a chunk [P, P], of a linear model."""
    with _tapped(task.module) as taps:
        outputs = _outputs(task, theta, inputs)
    _, layer, x, _ = taps[0]
    return linear_ggn(x, output_hessian(task.objective, outputs, targets), layer.bias is not None)


def _by_jacobian(task: Task, theta: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
    """The GGN of a chunk [P, P], of any model."""
    half = _half(task, theta, inputs, targets)
    return half.T @ half


def _half(task: Task, theta: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
    """A [examples x columns, P] with GGN = AᵀA."""
    outputs = _outputs(task, theta, inputs)
    root = torch.stack([a.flatten(1) for a in roots(task.objective, outputs, targets)], 2)  # [B, F, columns]

    def predict(one: Tensor, point: Tensor) -> Tensor:
        return _outputs(task, point, one.unsqueeze(0)).flatten()

    jacobian = vmap(jacrev(predict, argnums=1), in_dims=(0, None))(inputs, theta)  # [B, F, P]
    return torch.einsum("bfp,bfc->bcp", jacobian, root).flatten(0, 1)


def _names(task: Task, chosen: Tensor | None) -> set[str] | None:
    """Parameters that have one of the chosen coordinates; None for all."""
    if chosen is None:
        return None
    marks = torch.zeros(task.layout.numel, dtype=torch.bool, device=chosen.device).index_fill(0, chosen, True)
    return {name for name, place in task.layout.slices().items() if bool(marks[place].any())}


def _by_layer(
    task: Task, theta: Tensor, inputs: Tensor, targets: Tensor, columns: Columns, wanted: set[str] | None = None
) -> Tensor:
    """Sum of squares [P] from the inputs and output gradients of each layer; of those `wanted`, where not of all."""
    total = torch.zeros_like(theta)
    place, views = task.layout.slices(), task.layout.views(theta)
    taps, outputs = tapped(task, theta, inputs)
    if wanted is not None:
        taps = [t for t in taps if any(f"{t[0]}{n}" in wanted for n in trained(t[1]))]
    squared = [torch.zeros_like(output) for _, _, _, output in taps]
    patches = [patches_of(layer, x) for _, layer, x, _ in taps]
    for slopes in slopes_at(taps, outputs, columns(outputs.detach(), targets)):
        for (name, layer, x, _), g, sum_, patch in zip(taps, slopes, squared, patches, strict=True):
            if g is None:
                continue
            if _plain_linear(layer, x):  # Σ_c can be taken before the product with x²
                sum_.addcmul_(g, g)
                continue
            own = {n: views[f"{name}{n}"] for n in trained(layer)}
            each = _per_example(layer, own, x, g) if patch is None else _of_convolution(layer, patch, g)
            for n in own:
                total[place[f"{name}{n}"]] += each[n].square().sum(0).flatten()
    for (name, layer, x, _), sum_ in zip(taps, squared, strict=True):
        if _plain_linear(layer, x):
            if layer.weight.requires_grad:
                total[place[f"{name}weight"]] += (sum_.T @ x.square()).flatten()
            if layer.bias is not None and layer.bias.requires_grad:
                total[place[f"{name}bias"]] += sum_.sum(0)
    return total


def _per_example(layer: nn.Module, own: dict[str, Tensor], x: Tensor, g: Tensor) -> dict[str, Tensor]:
    """Each example's gradient of one layer's own parameters, {name: [B, *shape]}."""

    def one(x: Tensor, g: Tensor) -> dict[str, Tensor]:
        pull = vjp(lambda p: functional_call(layer, p, (x.unsqueeze(0),)).squeeze(0), own)[1]
        gradients: dict[str, Tensor] = pull(g)[0]
        return gradients

    gradients: dict[str, Tensor] = vmap(one)(x, g)
    return gradients


def patches_of(layer: nn.Module, x: Tensor) -> Tensor | None:
    """[B, positions, inputs of one] that an ordinary convolution multiplies its kernels with; None for other layers."""
    if not isinstance(layer, nn.Conv2d) or layer.groups > 1 or layer.padding_mode != "zeros" or x.dim() != 4:
        return None
    if isinstance(layer.padding, str):
        return None
    return F.unfold(x, layer.kernel_size, layer.dilation, layer.padding, layer.stride).mT


def _of_convolution(layer: nn.Module, patches: Tensor, g: Tensor) -> dict[str, Tensor]:
    """Each example's gradients of a convolution, from what its kernels met."""
    found = {"weight": g.flatten(2) @ patches}
    return found if layer.bias is None else found | {"bias": g.sum((2, 3))}


def _by_example(task: Task, theta: Tensor, inputs: Tensor, targets: Tensor, columns: Columns) -> Tensor:
    """The same for any module at all, one example after the other: slow."""
    total, leaf = torch.zeros_like(theta), theta.detach().requires_grad_()
    for i in range(len(inputs)):
        with torch.enable_grad():
            outputs = _outputs(task, leaf, inputs[i : i + 1])
        for vector in columns(outputs.detach(), targets[i : i + 1]):
            total += torch.autograd.grad(outputs, leaf, vector, retain_graph=True)[0].square()
    return total


def _layers_tell_all(task: Task, theta: Tensor, inputs: Tensor, targets: Tensor) -> bool:
    """Whether every parameter acts only inside a layer that is called once with one tensor, seen on one example."""
    slope = partial(_slope, task.objective)
    found = _by_layer(task, theta, inputs, targets, slope)
    truth = _by_example(task, theta, inputs, targets, slope)
    return bool((found - truth).norm() <= 1e-3 * truth.norm())


def tapped(task: Task, theta: Tensor, inputs: Tensor) -> tuple[list[Tap], Tensor]:
    """The layers' taps and the model's outputs, with a graph from the outputs to every tap.

    It ends at the inputs rather than at theta, where it can (tokens have no gradients): a backward pass through a
    convolution would otherwise also take the gradient of its kernel, which nobody asks for.
    """
    leaf = inputs.is_floating_point()
    with _tapped(task.module) as taps, torch.enable_grad():
        inputs = inputs.detach().requires_grad_(leaf)
        outputs = _outputs(task, theta.detach().requires_grad_(not leaf), inputs)
    return taps, outputs


def slopes_at(taps: list[Tap], outputs: Tensor, vectors: Iterable[Tensor]) -> Iterator[list[Tensor | None]]:
    """Gradients at the layers' outputs, for one vector at the model's outputs after the other; None where unused."""
    used = [tap[3].requires_grad for tap in taps]
    nodes = [tap[3] for tap, use in zip(taps, used, strict=True) if use]
    for vector in vectors:
        found = iter(torch.autograd.grad(outputs, nodes, vector, retain_graph=True, allow_unused=True))
        yield [next(found) if use else None for use in used]


@contextmanager
def _tapped(module: nn.Module) -> Iterator[list[Tap]]:
    """Collects (name, layer, input, output) of every layer with trained parameters as the module is called."""
    taps: list[Tap] = []

    def tap(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]:
        def hook(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            if len(inputs) != 1 or not isinstance(output, Tensor):
                return output
            taps.append((f"{name}." if name else "", layer, inputs[0].detach(), output))
            return output.clone()  # an activation in place must not overwrite what we keep

        return hook

    named = [(n, m) for n, m in module.named_modules() if trained(m)]
    handles = [m.register_forward_hook(tap(n)) for n, m in named]
    try:
        yield taps
    finally:
        for handle in handles:
            handle.remove()


def _plain_linear(layer: nn.Module, x: Tensor) -> bool:
    return isinstance(layer, nn.Linear) and x.dim() == 2


def _chunk(module: nn.Module) -> int:
    """Examples at a time, so that per-example gradients of the largest layer have room."""
    layers = (layer for layer in module.modules() if not isinstance(layer, nn.Linear))
    sizes = (p.numel() for layer in layers for p in layer.parameters(recurse=False) if p.requires_grad)
    largest = max(sizes, default=1)
    return max(1, min(CHUNK, ROOM // largest))


def examples(cohort: Cohort, batch_size: int) -> Iterator[tuple[int, Tensor, Tensor]]:
    """(row, inputs, targets) chunk by chunk, without padding."""
    for batch in cohort.everything(batch_size):
        for row in range(len(batch.inputs)):
            used = slice(None) if batch.counts is None else slice(batch.counts[row])
            yield row, batch.inputs[row, used], batch.targets[row, used]


def _outputs(task: Task, theta: Tensor, inputs: Tensor) -> Tensor:
    """[B, ..., V] without dropout; a single output has an axis of its own."""
    outputs = task.evaluate(theta, inputs)
    return outputs.unsqueeze(-1) if outputs.dim() == 1 else outputs
