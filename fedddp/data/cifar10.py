"""CIFAR-10: 50,000 + 10,000 photographs of 3 x 32 x 32, ten classes (binary or Python version)."""

from fedddp.core.data import Dataset
from fedddp.data._cifar import read_binary, read_pickled
from fedddp.data._files import downloads, find
from fedddp.data._settings import Images

FOLDERS = ("cifar-10-batches-bin", "cifar-10-batches-py")
BATCHES = [f"data_batch_{number}" for number in range(1, 6)]
NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


class Source(Images):
    def load(self) -> Dataset:
        first = find(self.root, FOLDERS, ("data_batch_1.bin", "data_batch_1"), downloads("cifar10"))
        files = [find(str(first.parent), (), (name + first.suffix,), downloads("cifar10")) for name in BATCHES]
        last = find(str(first.parent), (), ("test_batch" + first.suffix,), downloads("cifar10"))
        if first.suffix == ".bin":
            train, test = (read_binary(part, 1, 0, 10) for part in (files, [last]))
        else:
            train, test = (read_pickled(part, "labels", 10) for part in (files, [last]))
        return self.dataset(train, test, classes=10, label_names=NAMES)
