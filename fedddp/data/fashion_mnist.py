"""Fashion-MNIST: 60,000 + 10,000 pictures of clothes, 28 x 28, ten classes (idx files, plain or .gz)."""

from fedddp.core.data import Dataset
from fedddp.data._idx import read_pair
from fedddp.data._settings import Images

FOLDERS = ("fashion-mnist", "FashionMNIST/raw")
NAMES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")


class Source(Images):
    def load(self) -> Dataset:
        train, test = (read_pair(self.root, FOLDERS, part, "fashion_mnist", 10) for part in ("train", "t10k"))
        return self.dataset(train, test, classes=10, label_names=NAMES)
