"""What `import fedddp` offers: runs, sweeps and reports from Python, in a script, a notebook, or on every rank.

    run = fedddp.run("digits", method="bayes_admm", seed=1, ranks=2)
    run = fedddp.run(model=net, clients={"rome": (x1, y1), "oslo": (x2, y2)}, test=(xt, yt), method=MyMethod())
    run.metrics, run.model, run.posterior, run.predict(x)

Under torchrun or srun every rank makes the same calls.
"""
