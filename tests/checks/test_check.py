"""`fedddp check`: what keeps the engine's promises passes, and each way to break one fails its own check."""

import textwrap

import pytest

from fedddp.checks.rows import WIDTHS
from tests.forked import Forked, fedddp

METHOD = """
    import torch
    from fedddp.exchange.messages import Mean
    from fedddp.rounds.method import Clients, Method, Server

    class Mine(Method):
        def client_step(self, server, clients, cohort, local):
            fit = local.minimise(cohort, server.theta, clients.solver)
            theta = fit.theta
            {client}
            return Clients(fit.memory), {{"theta": Mean(theta, cohort.num_examples)}}

        def server_step(self, server, total, task):
            theta = total["theta"]
            {server}
            return Server(theta)
"""
BITS = {"same bits", "same bits (some clients)", "same bits (few clients)", "same bits (after stops)"}
ONE_ROUND = "federation.rounds=1"  # quicker, and then there is no stop to check


def method(tmp_path, client: str = "pass", server: str = "pass") -> str:
    return write(tmp_path, METHOD.format(client=client, server=server))


def write(tmp_path, text: str) -> str:
    (tmp_path / "mine.py").write_text(textwrap.dedent(text))
    return "mine.py:Mine"


def rows(done: Forked) -> dict[str, tuple[str, str]]:
    """{check: (outcome, what was seen)} of the printed table."""
    found: dict[str, tuple[str, str]] = {}
    name = ""
    for line in done.stdout.splitlines()[1:]:
        if not line:
            break
        first, outcome, seen = line[: WIDTHS[0]].strip(), line[WIDTHS[0] : sum(WIDTHS)].strip(), line[sum(WIDTHS) :]
        name = first or name
        found[name] = (outcome, seen) if first else (found[name][0], f"{found[name][1]} {seen}")
    return found


def failed(done: Forked) -> set[str]:
    return {name for name, (outcome, _) in rows(done).items() if outcome == "FAILED"}


@pytest.mark.parametrize(
    ("name", "ranks", "sends"),
    [
        ("fedavg", 2, ("3.64 kB up, 3.64 kB down per client and round; a client keeps 0 B", "theta: Mean [910]")),
        ("bayes_admm", 4, ("a client keeps 10.9 kB", "lam: Mean [2, 910]")),  # a dual and a momentum of 910 parameters
    ],
)
def test_our_own_methods_hold(name, ranks, sends):
    done = fedddp("check", name, "--ranks", ranks)
    assert done.returncode == 0, done.stdout + done.stderr
    found = rows(done)
    assert {outcome for outcome, _ in found.values()} == {"ok", "info"}
    assert set(found) > BITS
    assert f"on {', '.join(str(n) for n in range(1, ranks + 1))} ranks" in found["same bits"][1]
    assert all(part in found["sends"][1] for part in sends)


def test_a_method_of_ones_own_holds(tmp_path):
    done = fedddp("check", method(tmp_path), "--ranks", 2, ONE_ROUND, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert rows(done)["same bits (after stops)"] == ("skipped", "needs federation.rounds=3 or more")


def test_state_hidden_in_self(tmp_path):
    counts = "self._calls = getattr(self, '_calls', 0) + 1; theta = theta * (1 + 0.01 * self._calls)"
    done = fedddp("check", method(tmp_path, counts), "--ranks", 2, cwd=tmp_path)
    assert done.returncode == 1
    assert failed(done) == {"pure steps", *BITS}
    assert "client_step changes self._calls, which no checkpoint" in rows(done)["pure steps"][1]
    assert " without a stop, " in rows(done)["same bits (after stops)"][1]


def test_the_global_random_state(tmp_path):
    draws = "theta = theta + 0.01 * torch.randn(theta.shape, device=theta.device)"
    done = fedddp("check", method(tmp_path, draws), "--ranks", 2, ONE_ROUND, cwd=tmp_path)
    assert done.returncode == 1
    assert failed(done) == {"pure steps", *BITS} - {"same bits (after stops)"}
    assert "client_step draws from torch's global random state" in rows(done)["pure steps"][1]


def test_a_tensor_of_the_cpu(tmp_path):
    makes = "theta = theta + torch.zeros(len(cohort), 1)"
    done = fedddp("check", method(tmp_path, makes), "--ranks", 2, ONE_ROUND, cwd=tmp_path)
    assert done.returncode == 1
    assert failed(done) == {"device", "local steps"}
    seen = rows(done)["device"][1]
    assert "aten.add.Tensor: tensors of the device and of the CPU" in seen
    assert "(mine.py:10 in client_step)" in seen


@pytest.mark.parametrize(
    ("step", "code", "breaks"),
    [("server", "theta = server.theta.copy_(theta)", set()), ("client", "server.theta.mul_(0.9)", BITS)],
)
def test_a_server_changed_in_place(tmp_path, step, code, breaks):
    """A server step that does so happens to give the same bits; a client's changes what the next cohort starts from."""
    done = fedddp("check", method(tmp_path, **{step: code}), "--ranks", 2, ONE_ROUND, cwd=tmp_path)
    assert done.returncode == 1
    assert failed(done) == {"pure steps", *breaks} - {"same bits (after stops)"}
    assert f"{step}_step changes server.theta in place" in rows(done)["pure steps"][1]


def test_a_message_that_is_not_finite(tmp_path):
    done = fedddp("check", method(tmp_path, "theta = theta * float('nan')"), cwd=tmp_path)
    assert done.returncode == 1
    assert failed(done) == {"runs and stays finite"}
    seen = rows(done)["runs and stays finite"][1]
    assert "client " in seen
    assert "its theta is not finite" in seen
    assert {outcome for outcome, _ in rows(done).values()} == {"FAILED", "skipped"}


def test_an_exception_shows_its_line_and_with_debug_its_trace(tmp_path):
    what = method(tmp_path, server="theta = total['thete']")
    done = fedddp("check", what, cwd=tmp_path)
    assert done.returncode == 1
    assert "KeyError: 'thete' (mine.py:15 in server_step)" in rows(done)["runs and stays finite"][1]
    assert "Traceback" not in done.stdout + done.stderr
    assert "Traceback" in fedddp("check", what, "--debug", cwd=tmp_path).stdout


def test_a_solver_of_ones_own(tmp_path):
    what = write(
        tmp_path,
        """
        import torch
        from fedddp.rounds.solver import Fit, PointSolver

        class Mine(PointSolver):  # no epochs, no batch_size
            lr: float = 0.1

            def minimise(self, cohort, start, memory, site=None, family=None, watch=None):
                theta = start.expand(len(cohort), -1).clone()
                theta = theta - self.lr * cohort.full_grad(theta) / cohort.num_examples.unsqueeze(1)
                return Fit(theta, memory, torch.ones(len(cohort), device=theta.device))
        """,
    )
    done = fedddp("check", what, "local.lr=0.2", "--ranks", 2, ONE_ROUND, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fedavgg"], "did you mean fedavg?"),
        (["credit"], "is a split and a data source; say which: --kind split or --kind data"),
        (["fedavg", "--ranks", "1"], "--ranks=1: must be at least 2"),
        (["fedavg", "local.lrr=1"], "local.lrr: unknown key"),
        (["fedavg", "fedprox"], "name one thing to check"),
        (["nowhere.py:Mine"], "no such file"),
    ],
)
def test_mistakes_of_the_user(words, said):
    done = fedddp("check", *words)
    assert done.returncode == 2, done.stdout
    assert said in done.stderr


def test_a_file_that_cannot_be_imported_or_has_no_such_thing(tmp_path):
    (tmp_path / "mine.py").write_text("import torch\n\nclass Mine:\n    size = nowhere\n")
    done = fedddp("check", "mine.py:Mine", cwd=tmp_path)
    assert done.returncode == 2
    assert "NameError: name 'nowhere' is not defined (mine.py:4 in Mine)" in done.stderr
    (tmp_path / "mine.py").write_text("class Mine:\n    size = 1\n")
    done = fedddp("check", "mine.py:Mine", cwd=tmp_path)
    assert done.returncode == 2
    assert "derive it from fedddp.Method" in done.stderr
