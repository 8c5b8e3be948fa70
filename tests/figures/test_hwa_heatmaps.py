"""HWA's heat maps on the digits: who is drawn, and that the curvature is that of the client beside it."""

import torch

from fedddp.figures import hwa_heatmaps

SMALL = ["local.epochs=1", "split.clients=4"]
TWO = ["split=shards", "split.shards=2"]


def test_the_clients_of_the_lowest_and_the_highest_labels_are_drawn():
    cohort, theta = hwa_heatmaps.trained("digits", [*SMALL, *TWO])
    task = cohort.task
    means = [task.data.train.targets[task.shards.of_client(k)].float().mean() for k in range(task.num_clients)]
    assert {float(means[k]) for k in cohort.ids} == {float(min(means)), float(max(means))}
    assert theta.shape == (2, task.layout.numel)
    assert not torch.equal(theta[0], theta[1])


def test_classes_names_the_labels_a_client_has():
    cohort, _ = hwa_heatmaps.trained("digits", [*SMALL, *TWO])
    for client in cohort.ids:
        labels = cohort.task.data.train.targets[cohort.task.shards.of_client(client)]
        common = [digit for digit in range(10) if (labels == digit).float().mean() >= 0.05]
        assert hwa_heatmaps.classes(cohort.task, client) == "digits " + ", ".join(map(str, common))
        assert len(common) < 10


def test_curvature_is_the_sum_of_the_last_clients_squared_gradients():
    cohort, theta = hwa_heatmaps.trained("digits", SMALL)
    task, found = cohort.task, hwa_heatmaps.curvature(cohort, theta)
    index = task.shards.of_client(cohort.ids[-1])
    name, expected = list(found)[-1], 0.0
    for inputs, target in zip(task.data.train.inputs[index], task.data.train.targets[index], strict=True):
        own = theta[-1].clone().requires_grad_()
        task.objective.loss(task.outputs(own, inputs[None]), target[None]).sum().backward()
        expected = expected + task.layout.views(own.grad)[f"{name}.weight"].square()
    torch.testing.assert_close(found[name], expected, rtol=2e-4, atol=1e-6)
    assert hwa_heatmaps.means(found)[name] == 1.0


def test_the_figure_is_drawn(tmp_path):
    hwa_heatmaps.draw(tmp_path / "maps.png", ("digits", "digits"), SMALL)
    assert (tmp_path / "maps.png").stat().st_size > 20_000
