"""CIFAR-100: 50,000 + 10,000 photographs of 3 x 32 x 32, 100 classes in 20 groups (binary or Python version)."""

from fedddp.core.check import check
from fedddp.core.data import Dataset
from fedddp.data._cifar import read_binary, read_pickled
from fedddp.data._files import downloads, find
from fedddp.data._settings import Images

FOLDERS = ("cifar-100-binary", "cifar-100-python")
CLASSES = {"coarse": 20, "fine": 100}  # in the order of a row's two label bytes


class Source(Images):
    labels: str = "fine"  # fine: 100 classes; or coarse: their 20 groups

    def __post_init__(self) -> None:
        super().__post_init__()
        check("data.labels", self.labels, self.labels in CLASSES, " or ".join(CLASSES))

    def load(self) -> Dataset:
        classes = CLASSES[self.labels]
        first = find(self.root, FOLDERS, ("train.bin", "train"), downloads("cifar100"))
        last = find(str(first.parent), (), ("test" + first.suffix,), downloads("cifar100"))
        if first.suffix == ".bin":
            column = list(CLASSES).index(self.labels)
            train, test = (read_binary([path], 2, column, classes) for path in (first, last))
        else:
            train, test = (read_pickled([path], f"{self.labels}_labels", classes) for path in (first, last))
        return self.dataset(train, test, classes)
