"""docs/gpu.md names every file with a path that only a GPU takes: what was never run is listed in one place."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
ONLY_THERE = re.compile(r'torch\.cuda|"cuda"|import triton')


def test_every_file_with_a_path_of_its_own_for_gpus_is_listed():
    page = (ROOT / "docs" / "gpu.md").read_text()
    listed = set(re.findall(r"`(fedddp/[\w/]+\.py)`", page))
    found = {str(p.relative_to(ROOT)) for p in (ROOT / "fedddp").rglob("*.py") if ONLY_THERE.search(p.read_text())}
    assert found == listed, f"missing: {sorted(found - listed)}; listed in vain: {sorted(listed - found)}"
