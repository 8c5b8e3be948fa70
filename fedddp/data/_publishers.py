"""Where each set is published: addresses, sizes and SHA-256 sums of the files `fedddp data get` fetches.

Nothing is listed here whose sum is not known for certain.
"""

from dataclasses import dataclass
from posixpath import basename


@dataclass(frozen=True)
class File:
    url: str
    size: int  # bytes
    sha256: str
    members: tuple[tuple[str, int], ...] = ()  # of a tar archive: the files to take out of it, and their sizes

    @property
    def name(self) -> str:
        return basename(self.url)


@dataclass(frozen=True)
class Published:
    folder: str  # under the data root
    files: tuple[File, ...]


def _files(folder: str, base: str, listing: str, members: tuple[tuple[str, int], ...] = ()) -> Published:
    """`listing` has a line "name size sum" for each file."""
    lines = (line.split() for line in listing.strip().splitlines())
    return Published(folder, tuple(File(base + name, int(size), sum_, members) for name, size, sum_ in lines))


SETS = {
    "mnist": _files(
        "mnist",
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        """
        train-images-idx3-ubyte.gz 9912422 440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609
        train-labels-idx1-ubyte.gz 28881 3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c
        t10k-images-idx3-ubyte.gz 1648877 8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6
        t10k-labels-idx1-ubyte.gz 4542 f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6
        """,
    ),
    "fashion_mnist": _files(
        "fashion-mnist",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        """
        train-images-idx3-ubyte.gz 26421880 3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84
        train-labels-idx1-ubyte.gz 29515 a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845
        t10k-images-idx3-ubyte.gz 4422102 346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073
        t10k-labels-idx1-ubyte.gz 5148 67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5
        """,
    ),
    "cifar10": _files(
        "cifar-10-batches-bin",
        "https://www.cs.toronto.edu/~kriz/",
        "cifar-10-binary.tar.gz 170052171 c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        (*((f"data_batch_{number}.bin", 30730000) for number in range(1, 6)), ("test_batch.bin", 30730000)),
    ),
    "cifar100": _files(
        "cifar-100-binary",
        "https://www.cs.toronto.edu/~kriz/",
        "cifar-100-binary.tar.gz 168513733 58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        (("train.bin", 153700000), ("test.bin", 30740000)),
    ),
    "svhn": _files(
        "svhn",
        "http://ufldl.stanford.edu/housenumbers/",
        """
        train_32x32.mat 182040794 435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8
        test_32x32.mat 64275384 cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b
        """,
    ),
    "omniglot": _files(
        "omniglot",
        "https://github.com/brendenlake/omniglot/raw/master/python/",
        """
        images_background.zip 9464212 ad41ab679c8b5d90b271ef46be6987cc81211774a695c29dcc5367b2b26ee640
        images_evaluation.zip 6462886 1f61a8f3366785b057fc117d9228e78a16e3d976c8953b2a10fcc74cf0609cee
        """,
    ),
    "credit": _files(
        "credit",
        "https://archive.ics.uci.edu/ml/machine-learning-databases/credit-screening/",
        "crx.data 32218 fff49bc186cbddb3ace7371d40d9fbbb3af4f126019c13ff3f562249b1454f4d",
    ),
    "heart": _files(
        "heart",
        "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease/",
        """
        processed.cleveland.data 18461 a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8
        processed.hungarian.data 10263 d1ad108f785768cd3d7e82dc522e6f5a61eea93cccfb3a46ee8076f73fc3d796
        processed.switzerland.data 4109 834a405ccf5b66ab4056bb77794adc8df0b7125186454c0a1d002d33c6c3b314
        processed.va.data 6737 e7c93d8d0d2acdadfa4c5e8de768e2191e7f618b952e29623f1f0d5949ff6b8f
        """,
    ),
}
