"""Where TensorBoard and other trackers show a number: in a group, and the groups in the order of what one looks at.

TensorBoard sorts groups by their names: hence the digits.
"""

import re

GROUPS = (  # the first whose pattern the name of a number matches
    ("5_clients", r"(skipped|clipped|active|left_out)$|(clients|unseen)_|.*worse_than_alone$"),
    ("7_system", r"seconds_idle|seconds_plan|memory"),
    ("3_time", r"seconds"),
    ("4_traffic", r"bytes"),
    ("6_duals", r"(primal|dual)_residual|hessian_missing"),
    ("2_uncertainty", r"(nll|ece|brier|entropy|ood_auroc|ood_entropy|ess|samples)(_min|_max)?$"),
)
QUALITY = "1_quality"  # whatever else is measured: accuracy, losses, errors, a method's objective
HISTOGRAMS = {"clients/dual": "6_duals", "server/precision": "2_uncertainty", "test/": "2_uncertainty"}
PREFIX = re.compile("^(validation_|averaged_)*")
CURVES = {  # six that one looks at, on TensorBoard's page of custom scalars
    "accuracy (rmse in a regression)": r"1_quality/(averaged_)?(accuracy|rmse)$",
    "training loss": r"1_quality/train_loss$",
    "negative log-likelihood": r"2_uncertainty/(averaged_)?nll$",
    "calibration error": r"2_uncertainty/(averaged_)?ece$",
    "seconds a round": r"3_time/seconds$",
    "bytes up and down, a client": r"4_traffic/bytes_(up|down)$",
}


def tag(name: str) -> str:
    """accuracy -> 1_quality/accuracy"""
    plain = PREFIX.sub("", name)
    return f"{next((group for group, pattern in GROUPS if re.match(pattern, plain)), QUALITY)}/{name}"


def histogram(name: str) -> str:
    """clients/train_loss -> 5_clients/train_loss; never a number's tag, which breaks TensorBoard's HParams page."""
    group = next((group for start, group in HISTOGRAMS.items() if name.startswith(start)), "5_clients")
    return f"{group}/{name.replace('/', '_') if name.startswith('test/') else name.partition('/')[2]}"
